//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/pgserver"
)

// Moves of TestAccount that put another state of the whole database in the place of
// the present one: what was committed since then is gone from the tables, and may be
// in Kafka.

// histories is what TestAccount knows of the histories of its database that are over.
type histories struct {
	traces  []func() bool      // what ends the moves of late that leave something in the database
	changes int                // of the mode
	saved   *saved             // nil: no snapshot of the storage was taken
	standby *standby           // nil: there is none
	servers []*pgserver.Server // those that run or ran, the one in use or its standby last
	dirs    []string           // of standbys
	seconds int                // processes of second relays

	over    []over            // oldest first
	born    map[string]int    // how many histories were over when a row was first seen
	lost    map[string]int    // rows of a history that is over: the number of it
	ghosts  map[string]bool   // of them, those that are in a topic
	causes  map[string]string // of gaps, by id; a gap of a history that is over is gone from the tables
	unheard bool              // nobody has asked yet whether the relays noticed the end of the last history
}

// past is what was known when a copy of the database was made.
type past struct {
	rows    map[string]bool // keys that were there, or that retention had dropped; nil: of a copy that follows, what it has dropped by now
	all     bool
	mode    string
	changes int
	traces  []func() bool
}

// over is the end of a history.
type over struct {
	by     step
	ends   map[string]map[int32]int64 // of topics, by name and life
	exact  bool                       // nothing was published in idempotent mode of late
	noted  bool                       // and what was published since the copy made a relay's checkpoint one that does not fit
	before map[string]bool            // gaps that it had
}

// undoes ends a move later. What it ends is in the database: a copy of that has it
// too, and whoever goes on with the copy ends it again. It may be called more than once.
func (a *accounting) undoes(lasting time.Duration, do func() bool) {
	a.traces = append(a.traces, do)
	a.nemesis.undos = append(a.nemesis.undos, undo{time.Now().Add(lasting), do})
}

// perMinutes is the time in which a run goes back once by each of the moves, and one
// time more.
const perMinutes = 40 * time.Second

// may says whether a move that is not to be made at all times may be made again.
func (a *accounting) may(p pack) bool {
	return a.nemesis.counts[string(p)] <= int(time.Since(a.nemesis.began)/perMinutes)
}

// started waits for what is being started. A restart of the server may need the end of a move: a session that
// takes nothing from its slot keeps it from shutting down.
func (a *accounting) started() {
	n := a.nemesis
	for restarts := true; restarts; {
		n.until(time.Now().Add(50 * time.Millisecond))
		n.mu.Lock()
		restarts = n.database
		n.mu.Unlock()
	}
	n.tasks.Wait()
}

// answers waits for a restart of the server that is under way, and for its end.
func (a *accounting) answers() bool {
	a.started()
	a.pool.Reset()
	a.app.Reset()
	return a.holds(`SELECT true`)
}

// present is what is known now.
func (a *accounting) present() past {
	return past{rows: keySet(a.rows), all: a.all, mode: a.mode, changes: a.changes, traces: slices.Clone(a.traces)}
}

func keySet[V any](m map[string]V) map[string]bool {
	set := make(map[string]bool, len(m))
	for key := range m {
		set[key] = true
	}
	return set
}

// abandon ends the present history of the database: replace puts in its place what a
// copy says, of which was is known. Nobody writes meanwhile, and the relays cannot
// reach the server; half of the times they are killed before.
func (a *accounting) abandon(s step, was past, replace func()) {
	a.load.pause()
	defer a.load.resume()
	exact := !a.copies && a.mode == "exactly-once" && was.mode == a.mode && was.changes == a.changes
	a.readRows() // what is committed, to the last row
	if was.rows == nil {
		was.rows = keySet(a.dropped)
		maps.DeleteFunc(was.rows, func(key string, _ bool) bool { return !a.dropped[key] })
	}
	if s.up {
		a.nemesis.killRelays(s)
	}
	a.postgres.Refuse(true)
	a.postgres.Cut()
	replace()
	a.pool.Reset()
	a.app.Reset()
	ends, ok := a.ends()
	require.True(a.t, ok, "the ends of the topics")
	a.over = append(a.over, over{
		by: s, ends: ends, exact: exact,
		noted:  exact && scalar[string](a.environment, `SELECT mode FROM onceward.relay_state WHERE slot = $1`, a.slot()) == "exactly-once",
		before: keySet(a.readGaps()),
	})
	a.unheard = true
	a.goBack(was)
	a.copies, a.all = true, was.all
	for _, trace := range was.traces {
		a.undoes(time.Duration(a.random.Int64N(int64(time.Second))), trace)
	}
	a.undoes(time.Second, a.forgetSecond)
	a.postgres.Refuse(false)
}

// goBack makes what is known of the rows what the database has now: those that it
// lacks were lost, unless retention had dropped them. What is not published in its
// account may be published again.
func (a *accounting) goBack(was past) {
	rows, err := a.pool.Query(a.t.Context(), `SELECT o.namespace || ':' || o.id, o.aggregate_type, o.aggregate_id, o.seq,
		COALESCE((SELECT min(c.state) FROM onceward.account(o.id, o.tx_id, o.seq) c WHERE c.slot = $1), '') FROM onceward.outbox o`, a.slot())
	require.NoError(a.t, err)
	there := map[string]bool{}
	var row accountRow
	var state string
	_, err = pgx.ForEachRow(rows, []any{&row.Key, &row.Kind, &row.Aggregate, &row.Seq, &state}, func() error {
		there[row.Key] = true
		delete(a.lost, row.Key) // a snapshot may be of before the history that lacked it
		delete(a.ghosts, row.Key)
		delete(a.fates, row.Key)
		a.rows[row.Key], a.dropped[row.Key], a.read.lastStates[row.Key] = row, false, state
		if state != "published" {
			a.loose[row.Key] = true
		}
		return nil
	})
	require.NoError(a.t, err)
	for key := range maps.Clone(a.rows) {
		switch {
		case there[key]:
		case was.rows[key]:
			a.dropped[key] = true
		default:
			a.lost[key] = len(a.over) - 1
			delete(a.rows, key)
			delete(a.dropped, key)
			delete(a.loose, key)
			delete(a.again, key)
			delete(a.fates, key)
			delete(a.read.lastStates, key)
		}
	}
}

// forgetSecond retires the second relay that a copy of the database knows, and that
// has no process any more.
func (a *accounting) forgetSecond() bool {
	name := a.name + "_second"
	if a.seconds > 0 { // whoever ends it does this too
		return true
	}
	if a.holds(`SELECT NOT EXISTS (SELECT FROM onceward.relay_state WHERE relay = $1) AND NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'onceward_' || $1)
		AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'onceward_' || $1)`, name) {
		return true
	}
	return a.retireSecond(name)
}

// ends returns the ends of the topics, by name and life; false: the broker is not there.
func (a *accounting) ends() (ends map[string]map[int32]int64, ok bool) {
	ends = map[string]map[int32]int64{}
	for _, kind := range slices.Concat(kindsThere, kindsLate) {
		if kind != "order" && !a.made[kind] {
			continue
		}
		wide := cmp.Or(map[string]int32{"order": a.partitions, "wide": a.wide}[kind], a.widths[kind])
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = a.topicOf(kind)
		for p := range wide {
			partition := kmsg.NewListOffsetsRequestTopicPartition()
			partition.Partition, partition.Timestamp = p, -1
			topic.Partitions = append(topic.Partitions, partition)
		}
		request := kmsg.NewPtrListOffsetsRequest()
		request.Topics = append(request.Topics, topic)
		of := map[int32]int64{}
		err := a.asks(request, func(r kmsg.Response) (code int16) {
			for _, t := range r.(*kmsg.ListOffsetsResponse).Topics {
				for _, p := range t.Partitions {
					of[p.Partition], code = p.Offset, max(code, p.ErrorCode)
				}
			}
			return code
		})
		if err != nil {
			return nil, false
		}
		ends[a.lifeOf(topic.Topic)] = of
	}
	return ends, true
}

// lifeOf is the name of a topic with how often it was removed.
func (a *accounting) lifeOf(topic string) string {
	return fmt.Sprintf("%s#%d", topic, a.read.lives[topic])
}

// after says how many histories were over when the record at this place was written.
func (a *accounting) after(life string, partition int32, offset int64) (n int) {
	for _, o := range a.over {
		if ends, there := o.ends[life]; there && offset < ends[partition] {
			return n
		}
		n++
	}
	return n
}

// ghost judges a record of a row that no table has: it was committed in a history that
// is over, and whoever publishes what is of the next one has fenced whoever read it. How
// many histories were over for the newest row in front of it is newest.
func (a *accounting) ghost(key string, newest int) (why string) {
	number, known := a.lost[key]
	if !known {
		return "belongs to no committed row"
	}
	a.ghosts[key] = true
	if a.over[number].exact && newest > number {
		return "was published behind rows of a later history, its own was abandoned"
	}
	return ""
}

// readGaps returns the causes of the gaps, by id.
func (a *accounting) readGaps() map[string]string {
	rows, err := a.pool.Query(a.t.Context(), `SELECT gap_id::text, cause FROM onceward.gaps WHERE slot = $1`, a.slot())
	require.NoError(a.t, err)
	found := map[string]string{}
	var id, cause string
	_, err = pgx.ForEachRow(rows, []any{&id, &cause}, func() error { found[id] = cause; return nil })
	require.NoError(a.t, err)
	maps.Copy(a.causes, found)
	return found
}

// heard demands of relays in exactly-once mode that they have said by name that the
// database went back, if Kafka has something that it lacks: their checkpoint there
// does not fit it.
func (a *accounting) heard(report func(string, ...any)) {
	gaps := a.readGaps()
	if !a.unheard {
		return
	}
	a.unheard = false
	last := len(a.over) - 1
	published := 0
	for key := range a.ghosts {
		if a.lost[key] == last {
			published++
		}
	}
	o, said := a.over[last], []string{}
	for id, cause := range gaps {
		if !o.before[id] {
			said = append(said, cause)
		}
	}
	a.t.Logf("quiet moment %d: %s (relays killed: %t, the checkpoint in Kafka counts: %t); %d events that are gone are in the topics; gaps since: %v", a.quiet, o.by, o.by.up, o.noted, published, said)
	if o.noted && published > 0 && len(said) == 0 {
		report("history: %d events of the history that ended with %s are in the topics, and no relay has written down a gap since", published, o.by)
	}
}

// printed says whether a relay has told the operator how to decide about a gap.
func (a *accounting) printed(gap string) bool {
	return slices.ContainsFunc(a.relays, func(r *relayProcess) bool {
		return strings.Contains(r.log(), "outboxctl gap repair "+gap) && strings.Contains(r.log(), "outboxctl gap accept "+gap)
	})
}

// tally says what was lost with histories, what of it is in Kafka, and what the relays
// said of gaps.
func (a *accounting) tally() string {
	causes := map[string]int{}
	for _, cause := range a.causes {
		causes[cause]++
	}
	return fmt.Sprintf("%d histories abandoned with %d rows, of which %d are in the topics; causes of gaps %v", len(a.over), len(a.lost), len(a.ghosts), causes)
}
