package relay

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/publisher"
)

// What a relay can wait for: [Wait].For, and the label of onceward_waiting.
const (
	WaitKafka       = "kafka"       // it acknowledges nothing, or cannot be reached
	WaitPostgres    = "postgres"    // it cannot be reached, or ended the session
	WaitSlot        = "slot"        // it is being made, behind open transactions; a session of no relay holds it; or it waits for standbys
	WaitRoute       = "route"       // events of a route are held
	WaitLetter      = "letter"      // a dead letter is being written
	WaitTransaction = "transaction" // an open one pins the log
	WaitStandby     = "standby"     // another process holds the slot
	WaitPaused      = "paused"      // an operator wants it so
	WaitHalted      = "halted"      // an operator has to decide or to mend
	WaitSettings    = "settings"    // a standby is configured otherwise than who holds the slot
	WaitMaintenance = "maintenance" // partitions cannot be made nor dropped
)

// Waits lists them all.
var Waits = []string{WaitKafka, WaitPostgres, WaitSlot, WaitRoute, WaitLetter, WaitTransaction, WaitStandby, WaitPaused,
	WaitHalted, WaitSettings, WaitMaintenance}

// Wait is one thing that waits.
type Wait struct {
	For    string    `json:"for"`
	What   string    `json:"what,omitempty"` // the route, the slot, the transaction
	Since  time.Time `json:"since"`
	Detail string    `json:"detail"`
	Events int       `json:"events,omitempty"` // that wait for it
}

// Health is the state of a relay: what the log, /readyz, the metrics and
// onceward.relay_health say.
type Health struct {
	State   State
	Since   time.Time
	Code    string // of docs/troubleshooting.md: of what halts it or ended the last session; may be empty
	Error   string // the same in words, which may be a driver's or a server's
	Waiting []Wait // by kind in the order of Waits, each kind oldest first

	public string // Error in words of ours, for whoever has no login
}

// maxWaits bounds the waits of one kind that are shown. There is one per held
// route, and routes come from rows.
const maxWaits = 100

// stepPatience is after how long a step of a session's start is what the relay
// waits for, though the last session failed for another reason.
const stepPatience = 5 * time.Second

// vitals is the one place where it is known how a relay does. It reads no clock
// and no connection. Safe for concurrent use.
type vitals struct {
	relay string // its name

	mu    sync.Mutex
	state State
	since time.Time
	err   error
	ended *Health // what it said last, where it was halted when it was stopped

	down    time.Time // since when there is no session; zero while there is one
	blamed  string    // what the last session failed of
	asked   string    // by which step of its start, if that was for Kafka
	step    Wait      // of the session that is being opened
	opening bool

	reported map[string][]Wait // by kind, of the session that runs
}

func newVitals(relay string, now time.Time) *vitals {
	return &vitals{relay: relay, state: StateConnecting, since: now, down: now, reported: make(map[string][]Wait)}
}

// enter moves to a state. What ended the last session is kept while the next one
// is opened.
func (v *vitals) enter(s State, err error, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s == StateStopped && v.state == StateHalted {
		last := v.now(now)
		v.ended = &last
	}
	if s == StateConnecting {
		v.opening = true
		if v.state == StateStandby || v.state == StateHalted {
			return // until it is known whether anything has changed
		}
		err = v.err
	} else {
		if err != nil && s == StateBackoff {
			v.blameNow(v.blame(err), now)
			v.asked = ""
			if v.step.For == WaitKafka {
				v.asked = v.step.Detail
			}
		}
		v.opening, v.step = false, Wait{}
	}
	v.err = err
	if s == v.state {
		return
	}
	v.state, v.since = s, now
	switch s {
	case StateStreaming, StatePaused, StateHalted, StateStandby: // what comes after them begins then
		v.down, v.blamed, v.asked = time.Time{}, "", ""
	default:
		if v.down.IsZero() {
			v.down = now
		}
	}
}

// blameNow notes what the last session failed of. Of another thing than the one before, or
// after a time in which nothing failed, it is waited for since the step that met it.
func (v *vitals) blameNow(kind string, now time.Time) {
	if v.down.IsZero() || v.blamed != "" && v.blamed != kind {
		v.down = now
		if v.step.For == kind {
			v.down = v.step.Since
		}
	}
	v.blamed = kind
}

// blame returns what a session failed of.
func (v *vitals) blame(err error) string {
	var file *fileError
	switch {
	case errors.As(err, &file) && file.code == CodeKafka: // it is read beside a step of PostgreSQL
		return WaitKafka
	case v.opening && v.step.For != "":
		return v.step.For
	case errors.Is(err, publisher.ErrFailed), errors.Is(err, publisher.ErrFenced), errors.Is(err, publisher.ErrClosed):
		return WaitKafka
	}
	return WaitPostgres
}

// try says which step of a session's start is under way. One that waits for the slot is
// told again and again, with whom it waits for behind a colon, and has begun when it was told first.
func (v *vitals) try(kind, detail string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	what, _, _ := strings.Cut(detail, ": ")
	if before, _, _ := strings.Cut(v.step.Detail, ": "); kind == WaitSlot && v.step.For == kind && what == before {
		now = v.step.Since
	}
	v.opening, v.step = true, Wait{For: kind, Since: now, Detail: detail}
}

// report replaces what waits of one kind. A wait with a name that is there already
// keeps its beginning.
func (v *vitals) report(kind string, waits ...Wait) {
	v.mu.Lock()
	defer v.mu.Unlock()
	began := make(map[string]time.Time)
	for _, old := range v.reported[kind] {
		began[old.What] = old.Since
	}
	kept := make([]Wait, 0, len(waits))
	for _, w := range waits {
		w.For = kind
		if since, known := began[w.What]; known && w.What != "" && since.Before(w.Since) {
			w.Since = since
		}
		kept = append(kept, w)
	}
	v.reported[kind] = kept
}

// over forgets what a session reported: it has ended. Maintenance is of none.
func (v *vitals) over() {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.reported, func(kind string, _ []Wait) bool { return kind != WaitMaintenance })
}

// health returns how the relay does.
func (v *vitals) health(now time.Time) Health {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now(now)
}

// last returns what is left of a process that ends. One that was halted has not mended
// what halted it by being stopped, whether it was looking again at that moment or not.
func (v *vitals) last(now time.Time) Health {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended != nil {
		return *v.ended
	}
	return v.now(now)
}

func (v *vitals) now(now time.Time) Health {
	h := Health{State: v.state, Since: v.since}
	if v.err != nil {
		h.Error = label.Said(v.err)
		h.Code, h.public = reason(v.state, v.err)
		if h.Code == codeSession && v.asked != "" {
			h.Code, h.public = CodeKafka, "no session with Kafka: "+v.asked+", or with an error that the log has"
		}
	}
	all := v.session(now, h.Error)
	for _, waits := range v.reported {
		all = append(all, waits...)
	}
	slices.SortStableFunc(all, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(slices.Index(Waits, a.For), slices.Index(Waits, b.For)), a.Since.Compare(b.Since),
			strings.Compare(a.What, b.What))
	})
	h.Waiting = bounded(all)
	return h
}

// session says what the relay waits for as a whole.
func (v *vitals) session(now time.Time, why string) []Wait {
	switch v.state {
	case StateStandby:
		return []Wait{{For: WaitStandby, Since: v.since, Detail: "another process holds the slot"}}
	case StatePaused:
		return []Wait{{For: WaitPaused, Since: v.since, Detail: "an operator wants it so; `outboxctl resume --relay " + v.relay + "` lets it go on"}}
	case StateHalted:
		return []Wait{{For: WaitHalted, Since: v.since, Detail: why}}
	case StateConnecting, StateBackoff:
	default:
		return nil
	}
	stuck := v.step.For != "" && now.Sub(v.step.Since) >= stepPatience
	switch {
	case v.blamed != "" && !stuck:
		return []Wait{{For: v.blamed, Since: v.down, Detail: why}}
	case v.step.For != "":
		since := v.step.Since
		if v.step.For == v.blamed || v.blamed == "" {
			since = v.down
		}
		return []Wait{{For: v.step.For, Since: since, Detail: v.step.Detail}}
	}
	return nil
}

// bounded leaves out what is beyond maxWaits of a kind: the youngest.
func bounded(all []Wait) []Wait {
	out := make([]Wait, 0, len(all))
	count := make(map[string]int)
	for _, w := range all {
		count[w.For]++
		if count[w.For] <= maxWaits {
			out = append(out, w)
		}
	}
	return out
}

// codeOf returns the stable name of what halts a relay.
func codeOf(err error) string {
	code, _ := reason(StateHalted, err)
	return code
}
