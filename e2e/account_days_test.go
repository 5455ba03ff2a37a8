//go:build e2e

package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// Old days of TestAccount: partitions that retention may close and drop while the load
// writes to them.

// openDays are the days before today that the load writes to.
type openDays struct {
	mu   sync.Mutex
	days []time.Time
}

func (d *openDays) add(day time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.days = append(d.days, day)
}

// some returns one of them; zero: there is none.
func (d *openDays) some(random *rand.Rand) (day time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.days) == 0 {
		return day
	}
	return d.days[random.IntN(len(d.days))]
}

// closed forgets a day that takes no events any more.
func (d *openDays) closed(day time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.days = slices.DeleteFunc(d.days, day.Equal)
}

// idOf is a random id of a day.
func idOf(day time.Time, random *rand.Rand) uuid.UUID {
	return idWith(outbox.FirstID(day.Add(time.Duration(random.Int64N(int64(24*time.Hour))))), 7, random)
}

// idWith gives an id of a time its version and what is random in it.
func idWith(id uuid.UUID, version byte, random *rand.Rand) uuid.UUID {
	for i := 6; i < len(id); i++ {
		id[i] = byte(random.UintN(256))
	}
	id[6], id[8] = version<<4|id[6]&0x0f, 0x80|id[8]&0x3f
	return id
}

// oldestOpened is how many days ago the first day is that a move opens; each is one
// earlier than the last, because a day that was dropped does not come back.
const oldestOpened = 40

// openDay makes the partition of an old day and lets the load write there.
func (a *accounting) openDay(step) bool {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, a.dsn(maintainerLogin))
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(ctx))
	day := partition.Day(time.Now()).AddDate(0, 0, -oldestOpened-a.opened)
	a.opened++
	made, err := partition.Ensure(ctx, conn, "onceward.outbox", "id", partition.Span{First: day, Last: day, Reopen: true})
	if err != nil || len(made) != 1 {
		return false
	}
	a.madeDays[made[0]] = true
	a.load.old.add(day)
	return true
}

// filledDay is what a relay prints for a day that it takes for one that held rows.
var filledDay = regexp.MustCompile(`outboxctl partitions adopt (outbox_\d{8})`)

// adoptFilled does what a relay that halts asks for about a day that was opened: a transaction that
// began before wrote there in a savepoint (one that was rolled back to goes on), and nothing tells
// its rows from those of one that attached a partition with rows in a savepoint.
func (a *accounting) adoptFilled() {
	detail := scalar[string](a.environment, `SELECT COALESCE(string_agg(detail, ' '), '') FROM onceward.relay_health WHERE slot = $1 AND code = 'PARTITION_FILLED'`, a.slot())
	for _, m := range filledDay.FindAllStringSubmatch(detail, -1) {
		if !a.madeDays[m[1]] || !a.adoptLeaf(m[1]) {
			continue
		}
		a.nothingProved()
		a.nemesis.note(step{at: time.Since(a.nemesis.began), pack: filledAdopted})
	}
}

// fateDropped is the last word about rows of the state before that an operator has dropped.
const fateDropped = "dropped by order"

// maintain lets retention do one round, which keeps some days. What it drops a round before had
// closed, whatever that kept, so that every such row is seen here.
func (a *accounting) maintain(keep int, byOrder bool) bool {
	rows, err := a.pool.Query(a.t.Context(), `SELECT o.namespace || ':' || o.id, o.aggregate_type, o.aggregate_id, o.seq,
		COALESCE((SELECT min(c.state) FROM onceward.account(o.id, o.tx_id, o.seq) c WHERE c.slot = $1), '') FROM onceward.outbox o WHERE o.id < $2`,
		a.slot(), outbox.FirstID(partition.Day(time.Now()).AddDate(0, 0, -1)))
	if err != nil {
		return false
	}
	var row accountRow
	var state string
	_, err = pgx.ForEachRow(rows, []any{&row.Key, &row.Kind, &row.Aggregate, &row.Seq, &state}, func() error {
		if byOrder && state == "before" {
			state = fateDropped
		}
		a.rows[row.Key], a.fates[row.Key] = row, state
		return nil
	})
	if err != nil {
		return false
	}
	args := []string{"partitions", "maintain", "--keep", strconv.Itoa(keep)}
	if byOrder {
		args = append(args, "--drop-before", "--yes", "--reason", "move")
	}
	_, code := a.ctlAs(a.dsn(maintainerLogin), args...)
	return code == 0 || code == 3 // something waits for an operator
}

// detachDay detaches a partition that retention has closed, as somebody may who takes
// it for done, and attaches it again, as retention says.
func (a *accounting) detachDay(s step) bool {
	var leaf, bounds string
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	err := a.pool.QueryRow(ctx, `SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'onceward_closed'
		WHERE i.inhparent = 'onceward.outbox'::regclass AND NOT i.inhdetachpending ORDER BY hashtextextended(c.relname, $1) LIMIT 1`, int64(s.target>>1)).Scan(&leaf, &bounds)
	if err != nil || !a.nemesis.sql("ALTER TABLE onceward.outbox DETACH PARTITION onceward."+leaf) {
		return false
	}
	a.nothingProved() // adopted, all of it is published again
	a.undoes(s.lasting, func() bool {
		attached := `SELECT to_regclass('onceward.' || $1) IS NULL OR EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass('onceward.' || $1))`
		if !a.holds(attached, leaf) && !a.nemesis.sql(sameColumns(leaf)+"; ALTER TABLE onceward.outbox ATTACH PARTITION onceward."+leaf+" "+bounds) {
			return false
		}
		return a.adoptLeaf(leaf)
	})
	return true
}

// sameColumns gives a detached partition the columns that the outbox has got or lost
// meanwhile: without them it cannot be attached.
func sameColumns(leaf string) string {
	return strings.ReplaceAll(`DO $$ DECLARE change text; BEGIN
		FOR change IN SELECT pg_catalog.format(CASE WHEN l.attname IS NULL THEN 'ADD COLUMN %I text' ELSE 'DROP COLUMN %I' END, COALESCE(o.attname, l.attname))
			FROM (SELECT attname FROM pg_attribute WHERE attrelid = 'onceward.outbox'::regclass AND attnum > 0 AND NOT attisdropped) o
			FULL JOIN (SELECT attname FROM pg_attribute WHERE attrelid = 'onceward.leaf'::regclass AND attnum > 0 AND NOT attisdropped) l USING (attname)
			WHERE o.attname IS NULL OR l.attname IS NULL
		LOOP EXECUTE 'ALTER TABLE onceward.leaf ' || change; END LOOP; END $$`, "onceward.leaf", "onceward."+leaf)
}

// mayHaveGone says whether retention may have taken a row that is in no topic: somebody
// has decided about it.
func (a *accounting) mayHaveGone(key string) (last string, may bool) {
	last = a.read.lastStates[key]
	if fate := a.fates[key]; fate != "" {
		last = fate
	}
	if slices.Contains([]string{"discarded", "given-up", fateDropped}, last) {
		return last, true
	}
	// An order to discard it may have been carried out behind the last look.
	return last, scalar[bool](a.environment, `SELECT EXISTS (SELECT FROM onceward.dead_letters
		WHERE slot = $1 AND namespace || ':' || letter_id = $2 AND replay_of IS NULL AND state = 'discarded')`, a.slot(), key)
}

// commitLate leaves a transaction with events open and commits it, while newer ones have
// been published already.
func (a *accounting) commitLate(s step) bool {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	tx, err := a.app.Begin(ctx)
	if err != nil {
		return false
	}
	for range s.times + 1 {
		key, err := outbox.NewKey(a.name)
		require.NoError(a.t, err)
		if day := a.load.old.some(a.random); s.up && !day.IsZero() {
			key, err = outbox.ParseKey(a.name + ":" + idOf(day, a.random).String())
			require.NoError(a.t, err)
		}
		ev := outbox.Event{Key: key, AggregateType: a.kind(s), AggregateID: key.String(), Type: "Moved", Payload: []byte(`{"late": true}`)}
		if _, err := outbox.Enqueue(ctx, tx, ev); err != nil {
			_ = tx.Rollback(context.WithoutCancel(ctx))
			return false
		}
	}
	a.nemesis.later(s.lasting, func() {
		ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
		defer cancel()
		_ = errors.Join(tx.Commit(ctx), tx.Rollback(ctx)) // a server that was restarted has lost it
	})
	return true
}

// commitLarge commits more events at once than a relay has in flight.
func (a *accounting) commitLarge(s step) bool {
	ctx, cancel := context.WithTimeout(a.t.Context(), 10*time.Second)
	defer cancel()
	_, err := a.app.Exec(ctx, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
		SELECT id, $1, $2, id, 'Moved', '{"large": true}' FROM (SELECT (substr($3::uuid::text, 1, 24) || lpad(to_hex(i), 12, '0'))::uuid AS id FROM generate_series(1, 2000) i) e`,
		a.name, a.kind(s), idWith(outbox.FirstID(time.Now()), 7, a.random))
	return err == nil
}
