package stream

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
)

// graves are the letters of one session, with the rules of [letters.Store].
type graves struct{ g *ground }

func (m graves) find(id uuid.UUID) *graveyard {
	for _, d := range m.g.dead {
		if d.ID() == id {
			return d
		}
	}
	return nil
}

func (m graves) Ended(_ context.Context, id uuid.UUID, _ pglogrepl.LSN) (bool, error) {
	return m.find(id) != nil, nil
}

func (m graves) Parked(row *outbox.Row, commit pglogrepl.LSN) bool {
	for _, d := range m.g.dead {
		if d.state == graveOpen && d.Parks() && keyOfAggregate(d.Row) == keyOfAggregate(row) && older(d.Commit, d.Row.Seq, commit, row.Seq) {
			return true
		}
	}
	return slices.ContainsFunc(m.g.admitted, func(d letters.Dead) bool { return keyOfAggregate(d.Row) == keyOfAggregate(row) })
}

func (m graves) Admit(dead *letters.Dead) *publisher.RouteError {
	if dead.Parks() {
		m.g.admitted = append(m.g.admitted, *dead)
	}
	return nil
}

func (m graves) ParkedCount() int { return 0 }

func (m graves) Around(context.Context, *outbox.Row) (last, oldest pglogrepl.LSN, _ error) {
	return 0, 0, nil
}

func (m graves) Write(_ context.Context, dead ...letters.Dead) error {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	m.g.admitted = nil
	for _, c := range dead {
		if m.find(c.ID()) == nil {
			m.g.dead = append(m.g.dead, &graveyard{Dead: c, state: graveOpen})
		}
	}
	return m.g.mayCrash("after a letter")
}

func (m graves) Skip(_ context.Context, c letters.Dead) (bool, error) {
	m.g.dead = append(m.g.dead, &graveyard{Dead: c, state: graveDiscarded})
	return true, nil
}

func (m graves) LaneOf(context.Context, uuid.UUID) (ledger.Lane, error) { return ledger.Lane{}, nil }

func (m graves) Settle(context.Context, pglogrepl.LSN) error { return nil }

func (m graves) Reopen(_ context.Context, c *cdc.Control, from uint32) error {
	m.g.reopen(c.ID, from)
	return m.g.mayCrash("after letters are taken back")
}

func (g *ground) reopen(control uuid.UUID, from uint32) {
	for _, d := range g.dead {
		if d.control == control && d.state == graveRetrying && d.index >= from {
			d.state = graveOpen
		}
	}
}

// again is what a control that has acted released then, but for what stands
// behind an older letter by now: that is given up.
func (m graves) again(c *cdc.Control) (released []*graveyard) {
	var givenUp []*graveyard
	for _, d := range m.g.dead {
		if d.control != c.ID || d.state != graveOpen {
			continue
		}
		if slices.ContainsFunc(m.g.dead, func(o *graveyard) bool {
			return o.state == graveOpen && o.control != c.ID && keyOfAggregate(o.Row) == keyOfAggregate(d.Row) && older(o.Commit, o.Row.Seq, d.Commit, d.Row.Seq)
		}) {
			givenUp = append(givenUp, d)
			continue
		}
		released = append(released, d)
	}
	for _, d := range givenUp {
		d.control = uuid.Nil
	}
	slices.SortFunc(released, func(a, b *graveyard) int { return int(a.index) - int(b.index) })
	return released
}

func (m graves) Apply(_ context.Context, c *cdc.Control, _ error, at pglogrepl.LSN, waited bool) (pages, error) {
	settled := at
	if waited {
		settled = math.MaxUint64
	}
	released, repeat := m.again(c), m.g.acted[c.ID]
	if !repeat {
		if m.g.acted == nil {
			m.g.acted = make(map[uuid.UUID]bool)
		}
		m.g.acted[c.ID] = true
		for _, d := range m.g.dead {
			if d.state == graveOpen && d.Commit < at && bytes.Equal(d.Row.AggregateID, c.AggregateID) {
				released = append(released, d)
			}
		}
		slices.SortFunc(released, func(a, b *graveyard) int {
			return ledger.Place{Commit: a.Commit, Ordinal: uint32(a.Row.Seq)}.Compare(ledger.Place{Commit: b.Commit, Ordinal: uint32(b.Row.Seq)})
		})
		for i, d := range released {
			d.control, d.index = c.ID, uint32(i)
		}
	}
	for _, d := range released {
		d.state, d.after = graveRetrying, settled
		delete(m.g.poison, d.Row.ID)
	}
	if err := m.g.mayCrash("after retrying"); err != nil {
		return nil, err
	}
	if len(released) == 0 {
		return nil, nil
	}
	return &gravePages{left: slices.Clone(released), all: released, repeat: repeat}, nil
}

type gravePages struct {
	left, all []*graveyard
	repeat    bool
}

func (p *gravePages) Again() bool { return p.repeat }

func (p *gravePages) Next(context.Context) ([]*letters.Letter, error) {
	n := min(2, len(p.left))
	var page []*letters.Letter
	for _, d := range p.left[:n] {
		page = append(page, &letters.Letter{ID: d.ID(), Index: d.index, Commit: d.Commit, Row: d.Row, Holds: d.Holds})
	}
	p.left = p.left[n:]
	return page, nil
}

func (p *gravePages) Skip(context.Context, *letters.Letter) (bool, error) {
	return false, errors.New("no letter is given up here")
}

func (p *gravePages) Fail(_ context.Context, failed *letters.Letter, _, _ string) error {
	for _, d := range p.all {
		if d.state == graveRetrying && (d.ID() == failed.ID || d.index > failed.Index) {
			d.state, d.control = graveOpen, uuid.Nil
		}
	}
	p.left = nil
	return nil
}

// States of a grave, as the table has them.
const (
	graveOpen      = "open"
	graveRetrying  = "retrying"
	graveDiscarded = "discarded"
)

// older reports whether a row stands before another one.
func older(commit pglogrepl.LSN, seq int64, than pglogrepl.LSN, thanSeq int64) bool {
	return commit < than || commit == than && seq < thanSeq
}

func keyOfAggregate(row *outbox.Row) [3]string {
	return [3]string{row.Namespace, row.AggregateType, string(row.AggregateID)}
}
