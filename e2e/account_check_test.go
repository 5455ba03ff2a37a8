//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// The statement that TestAccount is about.
const accountTrue = "account"

// accountRow is a row of the outbox, as it was committed.
type accountRow struct {
	Key, Kind, Aggregate string
	Seq                  int64
}

// archived is a record that was in a topic once: topics are removed and made anew.
type archived struct {
	topic     string // with the number of its life, and of the history in which it was written
	history   int
	partition int32
	offset    int64
	aggregate string
	replayed  bool
	repaired  bool // of a gap: what a tick brought before the gap was noticed stands before it
}

// archive is everything that was read from the topics, by key.
type archive struct {
	lives      map[string]int // how often a topic was removed
	byTopic    map[string]map[string][]archived
	lastStates map[string]string // by key
	total      int
}

func newArchive() *archive {
	return &archive{lives: map[string]int{}, byTopic: map[string]map[string][]archived{}, lastStates: map[string]string{}}
}

// of returns the records of an event that are no replays.
func (r *archive) of(key string) (found []archived) {
	for _, records := range r.byTopic {
		for _, m := range records[key] {
			if !m.replayed {
				found = append(found, m)
			}
		}
	}
	return found
}

// since returns how many records an event has of the history of a number, replays aside.
func (r *archive) since(key string, history int) (n int) {
	for _, m := range r.of(key) {
		if m.history >= history {
			n++
		}
	}
	return n
}

// look is a quiet moment: the account of every row is compared with the topics.
func (a *accounting) look() {
	a.t.Helper()
	a.quiet++
	a.readRows()
	a.readTopics()
	states := a.states()
	report := func(format string, args ...any) {
		a.found = append(a.found, violation{accountTrue, fmt.Sprintf("quiet moment %d: ", a.quiet) + fmt.Sprintf(format, args...)})
	}
	for key, row := range a.rows {
		in, published := states[key], len(a.read.of(key))
		if slices.Equal(in, []string{"before"}) { // an adoption of a history that is over may have published it
			published = a.read.since(key, len(a.over))
		}
		switch {
		case a.dropped[key]:
			if published > 0 {
				continue
			}
			if last, may := a.mayHaveGone(key); !may {
				report("%s (%s %s) was dropped by retention and is in no topic; it was last seen %q", key, row.Kind, row.Aggregate, last)
			}
			continue
		case len(in) != 1:
			report("%s (%s %s) is in the states %v, want exactly one", key, row.Kind, row.Aggregate, in)
			continue
		}
		if why := contradiction(in[0], published, a.loose[key]); why != "" {
			detail := ""
			if len(a.found) == 0 {
				detail = a.why(key)
			}
			report("%s (%s %s, seq %d) is %s, and %s; it was last seen %q %s", key, row.Kind, row.Aggregate, row.Seq, in[0], why, a.read.lastStates[key], detail)
		}
		a.read.lastStates[key] = in[0]
		delete(a.fates, key)
	}
	for key := range states {
		if _, ok := a.rows[key]; !ok {
			report("%s has the states %v and is no row", key, states[key])
		}
	}
	for key, said := range a.said {
		if row, there := a.rows[key]; there && len(a.read.of(key)) == 0 { // a row that is not is one of a history that is over
			report("a command said of %s (%s %s, seq %d) that it is published, and it is in no topic; it is %v now: %s %s", key, row.Kind, row.Aggregate, row.Seq, states[key], a.why(key), said)
		}
	}
	clear(a.said)
	a.ordered(report)
	a.heard(report)
	a.profiled()
	a.found = append(a.found, a.nemesis.found...)
	a.nemesis.found = nil
}

// why is what the account of a row stands on.
func (a *accounting) why(key string) string {
	return scalar[string](a.environment, `SELECT pg_catalog.format('transaction %s, letters %s, gaps %s, snapshot %s', o.tx_id,
		(SELECT pg_catalog.jsonb_agg(pg_catalog.to_jsonb(d) - 'payload' - 'headers') FROM onceward.dead_letters d WHERE d.letter_id = o.id AND d.slot = $2),
		(SELECT pg_catalog.jsonb_agg(g ORDER BY g.gap_id) FROM onceward.gaps g WHERE g.slot = $2),
		(SELECT p.snapshot FROM onceward.published_snapshots p WHERE p.slot = $2))
		FROM onceward.outbox o WHERE o.namespace || ':' || o.id = $1`, key, a.slot())
}

// contradiction says how a state and the number of an event's records contradict
// one another; empty when they do not.
func contradiction(state string, records int, copies bool) string {
	exactly := !copies
	switch {
	case state == "pending":
		return "nothing should be at a quiet moment"
	case state == "published" && records == 0:
		return "is in no topic"
	case state == "published" && records > 1 && exactly:
		return fmt.Sprintf("is %d times in the topics", records)
	case state == "before" && records > 0:
		return "is in a topic"
	case (state == "waiting" || state == "parked" || state == "discarded") && records > 0 && exactly:
		return "is in a topic"
	}
	return "" // of a gap nothing is proven
}

// readRows adds what is in the table, and notes what is no longer.
func (a *accounting) readRows() {
	rows, err := a.pool.Query(a.t.Context(), `SELECT namespace || ':' || id, aggregate_type, aggregate_id, seq FROM onceward.outbox`)
	require.NoError(a.t, err)
	now, err := pgx.CollectRows(rows, pgx.RowToStructByPos[accountRow])
	require.NoError(a.t, err)
	there := make(map[string]bool, len(now))
	for _, row := range now {
		there[row.Key] = true
		a.rows[row.Key] = row
		if _, seen := a.born[row.Key]; !seen {
			a.born[row.Key] = len(a.over)
		}
	}
	for key := range a.rows {
		a.dropped[key] = !there[key]
		if a.all || a.copies && a.read.lastStates[key] != "published" {
			a.loose[key] = true
		}
		if a.all {
			a.again[key] = true
		}
	}
	a.copies, a.all = a.mode == "idempotent", false
}

// readTopics reads all topics of the load whole.
func (a *accounting) readTopics() {
	topics, err := a.admin.ListTopics()
	require.NoError(a.t, err)
	for _, kind := range slices.Concat(kindsThere, kindsLate) {
		name := a.topicOf(kind)
		if _, ok := topics[name]; !ok {
			continue
		}
		life := a.lifeOf(name)
		records := map[string][]archived{}
		newest := map[int32]int{} // by partition
		for _, m := range a.committed(name) {
			key := headerOf(m, outbox.HeaderKey)
			history := a.after(life, m.Partition, m.Offset)
			record := archived{
				fmt.Sprintf("%s.%d", life, history), history, m.Partition, m.Offset, string(m.Key), headerOf(m, record.HeaderReplayID) != "", headerOf(m, record.HeaderRepairID) != "",
			}
			records[key] = append(records[key], record)
			newest[m.Partition] = max(newest[m.Partition], a.born[key])
			if _, ok := a.rows[key]; ok {
				continue
			}
			if why := a.ghost(key, newest[m.Partition]); why != "" {
				a.found = append(a.found, violation{noInvention, fmt.Sprintf("%s at %s %d/%d %s", key, name, m.Partition, m.Offset, why)})
			}
		}
		a.read.byTopic[life] = records
	}
	a.read.total = 0
	for _, records := range a.read.byTopic {
		for _, found := range records {
			a.read.total += len(found)
		}
	}
}

// states asks for the account of each row, and outboxctl for the rows of each
// state: both say the same.
func (a *accounting) states() map[string][]string {
	rows, err := a.pool.Query(a.t.Context(), `SELECT o.namespace || ':' || o.id, array_agg(c.state) FROM onceward.outbox o
		CROSS JOIN LATERAL onceward.account(o.id, o.tx_id, o.seq) c WHERE c.slot = $1 GROUP BY 1`, a.slot())
	require.NoError(a.t, err)
	of, listed, said := map[string][]string{}, map[string]int{}, map[string]int{}
	var key string
	var in []string
	_, err = pgx.ForEachRow(rows, []any{&key, &in}, func() error {
		of[key] = slices.Clone(in)
		for _, state := range in {
			said[state]++
		}
		return nil
	})
	require.NoError(a.t, err)
	for _, state := range []string{"pending", "waiting", "published", "gap", "given-up", "before"} {
		keys, ok := a.keysIn(state)
		require.True(a.t, ok, "outboxctl list --state %s", state)
		for _, key := range keys {
			listed[state]++
			if !slices.Contains(of[key], state) {
				a.found = append(a.found, violation{accountTrue, fmt.Sprintf("outboxctl lists %s as %s, its account is %v", key, state, of[key])})
			}
		}
		if listed[state] != said[state] {
			a.found = append(a.found, violation{accountTrue, fmt.Sprintf("outboxctl lists %d events as %s, the account has %d", listed[state], state, said[state])})
		}
	}
	return of
}

// keysIn lists the rows in a state.
func (a *accounting) keysIn(state string) (keys []string, ok bool) {
	out, code := a.ctl("list", "--state", state, "--output", "json", "--limit", strconv.Itoa(mostListed))
	if code != 0 {
		return nil, false
	}
	var l listed
	require.NoError(a.t, json.Unmarshal([]byte(out), &l), out)
	for _, e := range l.Events {
		keys = append(keys, e.Key)
	}
	return keys, true
}

// ordered compares the first occurrences of an aggregate's events in each
// partition with the order in which they were committed. Of those that nothing
// proved any more some had never been published, and come behind newer ones: by a
// repair, and where that made letters of them, when these are retried.
func (a *accounting) ordered(report func(string, ...any)) {
	type place struct {
		topic           string
		partition       int32
		kind, aggregate string // a topic may have several kinds
	}
	type first struct {
		offset, seq int64
		key         string
	}
	byPlace := map[place][]first{}
	for _, records := range a.read.byTopic {
		for key, found := range records {
			if _, ok := a.rows[key]; !ok || a.again[key] {
				continue
			}
			seen := map[place]bool{}
			for _, m := range found { // in the order of offsets, within a partition
				at := place{m.topic, m.partition, a.rows[key].Kind, m.aggregate}
				if m.replayed || m.repaired || seen[at] {
					continue
				}
				seen[at] = true
				byPlace[at] = append(byPlace[at], first{m.offset, a.rows[key].Seq, key})
			}
		}
	}
	for _, at := range slices.Collect(maps.Keys(byPlace)) {
		all := byPlace[at]
		slices.SortFunc(all, func(x, y first) int { return int(x.offset - y.offset) })
		for i := 1; i < len(all); i++ {
			if all[i].seq < all[i-1].seq {
				report("order: in %s/%d aggregate %s, %s (seq %d) stands before %s (seq %d)",
					at.topic, at.partition, at.aggregate, all[i-1].key, all[i-1].seq, all[i].key, all[i].seq)
			}
		}
	}
}
