package relay

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
)

// graves are the letters of one session, with the rules of [letters].
type graves struct{ g *ground }

func (m graves) find(id uuid.UUID) *graveyard {
	for _, d := range m.g.dead {
		if d.id() == id {
			return d
		}
	}
	return nil
}

func (m graves) ended(_ context.Context, id uuid.UUID, _ pglogrepl.LSN) (bool, error) {
	return m.find(id) != nil, nil
}

func (m graves) parked(row *outbox.Row, commit pglogrepl.LSN) bool {
	for _, d := range m.g.dead {
		if d.state == letterOpen && d.parks() && aggregateOf(d.row) == aggregateOf(row) && (holder{d.commit, d.row.Seq}).before(commit, row.Seq) {
			return true
		}
	}
	return slices.ContainsFunc(m.g.admitted, func(d casualty) bool { return aggregateOf(d.row) == aggregateOf(row) })
}

func (m graves) admit(dead *casualty) *publisher.RouteError {
	if dead.parks() {
		m.g.admitted = append(m.g.admitted, *dead)
	}
	return nil
}

func (m graves) parkedCount() int { return 0 }

func (m graves) lastBefore(context.Context, *outbox.Row) (pglogrepl.LSN, error) { return 0, nil }

func (m graves) park(_ context.Context, dead ...casualty) error {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	m.g.admitted = nil
	for _, c := range dead {
		if m.find(c.id()) == nil {
			m.g.dead = append(m.g.dead, &graveyard{casualty: c, state: letterOpen})
		}
	}
	return m.g.mayCrash("after a letter")
}

func (m graves) skip(_ context.Context, c casualty) (bool, error) {
	m.g.dead = append(m.g.dead, &graveyard{casualty: c, state: letterDiscarded})
	return true, nil
}

func (m graves) laneOf(context.Context, uuid.UUID) (lane, error) { return lane{}, nil }

func (m graves) settle(context.Context, pglogrepl.LSN) error { return nil }

func (m graves) reopen(_ context.Context, c *cdc.Control, from uint32) error {
	m.g.reopen(c.ID, from)
	return m.g.mayCrash("after letters are taken back")
}

func (g *ground) reopen(control uuid.UUID, from uint32) {
	for _, d := range g.dead {
		if d.control == control && d.state == letterRetrying && d.index >= from {
			d.state = letterOpen
		}
	}
}

// again is what a control that has acted released then, but for what stands
// behind an older letter by now: that is given up.
func (m graves) again(c *cdc.Control) (released []*graveyard) {
	var givenUp []*graveyard
	for _, d := range m.g.dead {
		if d.control != c.ID || d.state != letterOpen {
			continue
		}
		if slices.ContainsFunc(m.g.dead, func(o *graveyard) bool {
			return o.state == letterOpen && o.control != c.ID && aggregateOf(o.row) == aggregateOf(d.row) && (holder{o.commit, o.row.Seq}).before(d.commit, d.row.Seq)
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

func (m graves) act(_ context.Context, c *cdc.Control, _ error, at pglogrepl.LSN, waited bool) (pages, error) {
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
			if d.state == letterOpen && d.commit < at && bytes.Equal(d.row.AggregateID, c.AggregateID) {
				released = append(released, d)
			}
		}
		slices.SortFunc(released, func(a, b *graveyard) int {
			return ledger.Place{Commit: a.commit, Ordinal: uint32(a.row.Seq)}.Compare(ledger.Place{Commit: b.commit, Ordinal: uint32(b.row.Seq)})
		})
		for i, d := range released {
			d.control, d.index = c.ID, uint32(i)
		}
	}
	for _, d := range released {
		d.state, d.after = letterRetrying, settled
		delete(m.g.poison, d.row.ID)
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

func (p *gravePages) again() bool { return p.repeat }

func (p *gravePages) next(context.Context) ([]*letter, error) {
	n := min(2, len(p.left))
	var page []*letter
	for _, d := range p.left[:n] {
		page = append(page, &letter{id: d.id(), index: d.index, commit: d.commit, row: d.row, holds: d.holds})
	}
	p.left = p.left[n:]
	return page, nil
}

func (p *gravePages) skip(context.Context, *letter) (bool, error) {
	return false, errors.New("no letter is given up here")
}

func (p *gravePages) fail(_ context.Context, failed *letter, _, _ string) error {
	for _, d := range p.all {
		if d.state == letterRetrying && (d.id() == failed.id || d.index > failed.index) {
			d.state, d.control = letterOpen, uuid.Nil
		}
	}
	p.left = nil
	return nil
}
