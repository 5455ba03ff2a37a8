package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
)

// processName is the application_name, before the process's own name, of the
// session by which others see that the process lives.
const processName = "onceward process "

const (
	lookoutLimit = 10 * time.Second // of one piece of work, the connect included
	lookoutPause = 10 * time.Second // after one that failed
	healthEvery  = time.Second      // how often what is known is compared with what is written
	figuresEvery = 10 * time.Second // between two writes of which only figures differ
)

// lookout is one connection of a process, kept for as long as it runs, with a
// session or without: a standby looks by it whether the slot is free, and it
// writes the process's row of onceward.relay_health. That is also how others see
// that the process lives. Nothing waits for it. Safe for concurrent use.
type lookout struct {
	cfg     *Config
	log     *slog.Logger
	process string

	mu      sync.Mutex
	conn    *pgx.Conn
	queries *outboxdb.Queries
	usable  bool // the table is there, and may be written

	// Of the one goroutine that writes.
	written   string // what decides whether a row is written at once
	figures   string // all that is in it
	writtenAt time.Time
	seenAt    time.Time
	retryAt   time.Time
	tried     string // what could not be written then
	said      bool   // about a table that cannot be written
}

func newLookout(cfg *Config, log *slog.Logger) *lookout {
	return &lookout{cfg: cfg, log: log, process: processID()}
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// processID names this process for people, and tells it from one of the same
// host and number that ran before.
func processID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%06x", shortHost(host), os.Getpid(), rand.N(1<<24)) //nolint:gosec // G404: it is a name
}

// shortHost is what of a host's name has room in an application_name, and tells it from
// others: not the domain, and of a long name the end, where pods of one deployment differ.
func shortHost(name string) string {
	const most = 31
	name = notInNames.ReplaceAllString(name, "-")
	if len(name) > most {
		name, _, _ = strings.Cut(name, ".")
	}
	return name[max(0, len(name)-most):]
}

// run keeps the process's row true until ctx ends.
func (l *lookout) run(ctx context.Context, health func(time.Time) Health) {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			l.show(ctx, health(now), now)
		case <-ctx.Done():
			return
		}
	}
}

// close ends it. The row of a process that has ended as it should is removed; one
// that was halted leaves its word.
func (l *lookout) close(ctx context.Context, last Health) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	switch {
	case l.written == "":
	case last.State == StateHalted:
		l.retryAt = time.Time{}
		l.show(ctx, last, time.Now())
	default:
		_ = l.work(ctx, func(q *outboxdb.Queries) error { // the next owner does it
			return q.RemoveHealth(ctx, outboxdb.RemoveHealthParams{Slot: l.cfg.SlotName(), Process: l.process})
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(ctx)
}

// show writes the row if it is due. What cannot be written now is written later:
// the log and the health pages do not wait for it.
func (l *lookout) show(ctx context.Context, h Health, now time.Time) {
	row, key := l.row(h)
	if now.Before(l.retryAt) && key == l.tried { // a session that begins has met the server again
		return
	}
	figures := row.State + row.Code + row.Detail + string(row.Waits)
	var err error
	switch {
	case key != l.written || figures != l.figures && now.Sub(l.writtenAt) >= figuresEvery:
		var wrote bool
		wrote, err = l.write(ctx, row, h.State == StateStreaming)
		if err == nil && !wrote {
			l.retryAt, l.tried = now.Add(lookoutPause), key // until the roles are brought up to date
		}
		if wrote {
			l.written, l.figures, l.writtenAt, l.seenAt = key, figures, now, now
		}
	case now.Sub(l.seenAt) >= lookoutPause:
		err = l.stay(ctx, row, h.State == StateStreaming)
		l.seenAt = now
	}
	if err != nil && ctx.Err() == nil {
		l.retryAt, l.tried = now.Add(lookoutPause), key
		l.log.DebugContext(ctx, "health not written", "error", err)
	}
}

// row returns what is written, and what of it is written at once. The next try
// after a failure changes nothing, and neither does what a transaction that pins
// the log is just doing: an outage is no reason to write a row every few seconds.
func (l *lookout) row(h Health) (row outboxdb.SaveHealthParams, key string) {
	waits := make([]Wait, len(h.Waiting))
	for i, w := range h.Waiting {
		w.What, w.Detail = storable(w.What), storable(w.Detail)
		waits[i] = w
	}
	if h.State == StateConnecting && h.Error != "" {
		h.State = StateBackoff
		if len(waits) > 0 {
			h.Since = waits[0].Since
		}
	}
	text, err := json.Marshal(waits)
	if err != nil {
		text = []byte("[]") // it is strings, numbers and times
	}
	for _, w := range waits {
		key += w.For + "\x00"
		if w.For != WaitTransaction {
			key += w.What + "\x00"
		}
	}
	if h.State == StateHalted || h.State == StateStreaming {
		// What is to be done about this event is not what mended the last one; and another
		// session began while the server could not be written to.
		key += h.Since.String() + "\x00"
	}
	return outboxdb.SaveHealthParams{
		Slot: l.cfg.SlotName(), Process: l.process, Relay: l.cfg.Name, State: string(h.State), Since: h.Since,
		Code:   h.Code,
		Detail: storable(h.Error), Waits: text,
	}, key + string(h.State) + "\x00" + h.Code
}

// storable returns what of a text a column can hold: names come from rows, and
// errors from anywhere.
func storable(text string) string {
	const longest = 4096
	if len(text) > longest {
		text = text[:longest]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
}

// write reports whether it may write the table.
func (l *lookout) write(ctx context.Context, row outboxdb.SaveHealthParams, owner bool) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookoutLimit)
	defer cancel()
	err = l.work(ctx, func(q *outboxdb.Queries) error {
		if err := l.probe(ctx); err != nil || !l.usable {
			return err
		}
		wrote = true
		if err := q.SaveHealth(ctx, row); err != nil || !owner {
			return err
		}
		return q.RemoveDeadHealth(ctx, outboxdb.RemoveDeadHealthParams{Slot: row.Slot, Process: row.Process})
	})
	return wrote && err == nil, err
}

// stay makes sure that the row is there and the connection alive: an owner that
// saw the process without one took it for dead. The owner removes those that died
// since. Nothing is written where nothing has changed.
func (l *lookout) stay(ctx context.Context, row outboxdb.SaveHealthParams, owner bool) error {
	ctx, cancel := context.WithTimeout(ctx, lookoutLimit)
	defer cancel()
	found := true
	err := l.work(ctx, func(q *outboxdb.Queries) (err error) {
		if err = l.probe(ctx); err != nil || !l.usable { // it may be another connection
			return err
		}
		if found, err = q.HasHealth(ctx, outboxdb.HasHealthParams{Slot: row.Slot, Process: row.Process}); err != nil ||
			!owner {
			return err
		}
		return q.RemoveDeadHealth(ctx, outboxdb.RemoveDeadHealthParams{Slot: row.Slot, Process: row.Process})
	})
	if err != nil || found {
		return err
	}
	_, err = l.write(ctx, row, owner)
	return err
}

// free reports whether nobody streams from the slot, or begins to; taken is a holder of
// it that is no process of a relay, nil: there is none.
func (l *lookout) free(ctx context.Context) (free bool, taken *cdc.StartError, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookoutLimit)
	defer cancel()
	slot := l.cfg.SlotName()
	err = l.work(ctx, func(q *outboxdb.Queries) error {
		pid, err := q.SlotActive(ctx, slot)
		if free = err == nil && pid == 0; free || err != nil {
			return err
		}
		who, err := q.SlotStranger(ctx, slot)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		taken = cdc.SlotTaken(slot, who.Pid, who.Application, who.Role)
		return err
	})
	if err != nil {
		return false, nil, fmt.Errorf("look whether slot %s is free: %w", slot, err)
	}
	return free, taken, nil
}

// relayState reads the relay's row of onceward.relay_state.
func (l *lookout) relayState(ctx context.Context) (row outboxdb.RelayState, err error) {
	err = l.work(ctx, func(q *outboxdb.Queries) (err error) {
		row, err = q.LoadRelayState(ctx, l.cfg.SlotName())
		return err
	})
	return row, err
}

// work does something with the connection, and makes it when there is none, or when it
// turns out to be gone; what it does may be done twice then. After an error it is made anew.
func (l *lookout) work(ctx context.Context, do func(*outboxdb.Queries) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.conn != nil
	if !kept {
		if err := l.connect(ctx); err != nil {
			return err
		}
	}
	err := do(l.queries)
	if err != nil && kept && l.conn.IsClosed() && ctx.Err() == nil {
		// It was cut since it was used last, by a restart of the server, say.
		l.drop(ctx)
		if err := l.connect(ctx); err != nil {
			return err
		}
		err = do(l.queries)
	}
	if err != nil {
		l.drop(ctx)
	}
	return err
}

// connect opens the connection. What it writes need not be durable, and waits
// for no standby.
func (l *lookout) connect(ctx context.Context) error {
	dsn, err := l.cfg.DSN()
	if err != nil {
		return err
	}
	conn, err := Connect(ctx, dsn, l.cfg.SlotName())
	if err != nil {
		return err
	}
	l.conn, l.queries = conn, outboxdb.New(conn)
	_, err = conn.Exec(ctx, "SET application_name = '"+processName+l.process+"'; SET synchronous_commit = off; SET lock_timeout = '5s'")
	if err != nil {
		l.drop(ctx)
		return fmt.Errorf("prepare the connection for health: %w", err)
	}
	return nil
}

// probe looks whether the table can be written. The relay works without, until its
// roles are brought up to date.
func (l *lookout) probe(ctx context.Context) (err error) {
	if l.usable {
		return nil
	}
	if l.usable, err = l.queries.HealthAllowed(ctx); err != nil || l.usable || l.said {
		return err
	}
	l.said = true
	l.log.InfoContext(ctx, "the relay's role may not write onceward.relay_health: `outboxctl status` cannot say what the relay waits for; "+
		"run `outboxctl migrate roles --side outbox --apply`")
	return nil
}

func (l *lookout) drop(ctx context.Context) {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = l.conn.Close(ctx)
	l.conn, l.queries, l.usable = nil, nil, false
}
