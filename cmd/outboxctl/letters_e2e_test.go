//go:build e2e

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// onConsumerInstallations runs a test as an operator of a consumer's database, on the
// oldest and the newest PostgreSQL.
func onConsumerInstallations(t *testing.T, test func(d *installation)) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			pool := testdb.New(t, version)
			dsn := pool.Config().ConnString()
			t.Setenv(dsnVariable, dsn)
			t.Setenv(insecureVariable, "true")
			prefix := "ctl-" + pool.Config().ConnConfig.Database
			fine(t, "migrate", "up", "--side", "consumer")
			fine(t, "migrate", "roles", "--side", "consumer", "--prefix", prefix, "--apply")
			loginAs(t, pool, dsn, prefix+"_"+string(migrations.RoleOperator))
			test(&installation{t: t, pool: pool, operator: "login-" + prefix + "_" + string(migrations.RoleOperator)})
		})
	}
}

// keep makes a letter of a group, at the next offset of its topic.
func (d *installation) keep(group, topic, cause string, key *outbox.Key) letters.Place {
	d.t.Helper()
	var id, namespace, eventType any
	if key != nil {
		id, namespace, eventType = key.UUID(), key.Namespace(), "OrderPaid"
	}
	var offset int64
	require.NoError(d.t, d.pool.QueryRow(d.t.Context(), `INSERT INTO onceward.consumer_dead_letters AS l
		(consumer_group, topic, kafka_partition, kafka_offset, event_id, namespace, event_type, record_key, record_value, record_headers, reason, error, attempts)
		SELECT $1, $2, 0, count(*), $4, $5, $6, 'A', '{"total": 12}', '[["idempotency-key", "eA=="]]', $3, 'no such account', 20
		FROM onceward.consumer_dead_letters WHERE topic = $2
		RETURNING kafka_offset`, group, topic, cause, id, namespace, eventType).Scan(&offset))
	return letters.Place{Topic: topic, Offset: offset}
}

// actions lists what is kept of decisions.
func (d *installation) actions() []string {
	d.t.Helper()
	return column[string](d, "SELECT concat_ws(' ', action, consumer_group, target, reason, by_role) FROM onceward.consumer_actions ORDER BY id")
}

// member plays a member of a group: it waits for a letter whose redrive was
// asked for, and settles it. The function returned waits for it.
func (d *installation) member(sql string) (wait func()) {
	ctx, ended := d.t.Context(), make(chan error, 1)
	go func() {
		for {
			tag, err := d.pool.Exec(ctx, sql+" WHERE state = 'requested'")
			if err != nil || tag.RowsAffected() > 0 {
				ended <- err
				return
			}
		}
	}()
	return func() { require.NoError(d.t, <-ended) }
}

func newKey(t *testing.T, namespace string) outbox.Key {
	t.Helper()
	key, err := outbox.NewKey(namespace)
	require.NoError(t, err)
	return key
}

// TestLettersOfAGroupThatIsNotThere: a name with a typo, or the wrong database, has no letters, and
// that is no good news.
func TestLettersOfAGroupThatIsNotThere(t *testing.T) {
	newDatabase(t)
	fine(t, "migrate", "up", "--side", "consumer")
	for _, args := range [][]string{
		{"dead", "list", "--side", "consumer", "--group", "ledgr"},
		{"dead", "redrive", "--group", "ledgr", "--cause", "handler", "--yes", "--reason", "x"},
	} {
		require.Contains(t, wrong(t, args...), "nothing is known of group ledgr in this database", args)
	}
}

func TestGroupLettersAreListedAndShown(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		require.Equal(t, "none\n", fine(t, "dead", "list", "--side", "consumer"))
		key := newKey(t, "orders")
		first, second := d.keep("billing", "orders.order", "handler", &key), d.keep("billing", "orders.order", "malformed", nil)
		third := d.keep("mail", "orders.order", "replay", &key)
		listed := func(args ...string) (places []string) {
			for _, l := range decode[letters.GroupList](t, fine(t, append([]string{"dead", "list", "--side", "consumer", "-o", "json"}, args...)...)).Letters {
				places = append(places, l.Place)
			}
			return places
		}
		all := []string{first.String(), second.String(), third.String()}
		require.Equal(t, all, listed(), "oldest first")
		require.Equal(t, all[:2], listed("--group", "billing"))
		require.Equal(t, all[1:2], listed("--cause", "malformed"))
		require.Equal(t, []string{all[0], all[2]}, listed("--type", "OrderPaid", "--namespace", "orders", "--aggregate", "A", "--topic", "orders.order", "--from", "2026-01-01", "--to", "2050-01-01"))
		for _, none := range [][]string{
			{"--type", "x"}, {"--namespace", "x"}, {"--aggregate", "B"}, {"--topic", "x"}, {"--older", "1h"}, {"--to", "2026-01-01"}, {"--from", "2050-01-01"}, {"--state", "redriven"},
		} {
			require.Empty(t, listed(none...), none)
		}
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET created_at = created_at - interval '2 hours', state = 'discarded' WHERE consumer_group = 'mail'")
		require.Equal(t, all[2:], listed("--older", "1h", "--state", "all"))
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET created_at = created_at - interval '36 hours' WHERE consumer_group = 'mail'")
		require.Equal(t, all[2:], listed("--older", "1d12h", "--state", "all"))
		require.Empty(t, listed("--older", "2d", "--state", "all"))
		out := fine(t, "dead", "list", "--side", "consumer", "--limit", "1")
		require.Contains(t, out, "handler: no such account")
		require.Contains(t, out, "there are more; raise --limit")

		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET topic_id = '0a1b2c3d-0000-4000-8000-000000000000' WHERE consumer_group = 'billing'")
		out = fine(t, "dead", "show", "--side", "consumer", first.String(), "--payload")
		require.Regexp(t, `topic id +0a1b2c3d-0000-4000-8000-000000000000`, out)
		require.Regexp(t, `key +`+key.String(), out)
		require.Regexp(t, `record headers +idempotency-key=x`, out)
		require.Contains(t, out, "payload (billing, orders.order/0@0):\n{\"total\": 12}")
		shown := decode[letters.GroupShown](t, fine(t, "dead", "show", "--side", "consumer", key.String(), "-o", "json"))
		require.Len(t, shown.Letters, 2, "a KEY finds the letters of all groups")
		require.Equal(t, append(shown.Letters[0].Next(), shown.Letters[1].Next()...), shown.Next, "one of them is discarded")
		require.Len(t, shown.Next, 2)
		require.Contains(t, out, "\nnext: `outboxctl dead redrive "+first.String()+" --group billing --reason \"…\"`\nor:   `outboxctl dead discard --side consumer "+first.String()+" --group billing --reason \"…\"`\n")
		require.Equal(t, "A", string(shown.Letters[0].RecordKey))
		require.Len(t, decode[letters.GroupShown](t, fine(t, "dead", "show", "--side", "consumer", key.String(), "--group", "mail", "-o", "json")).Letters, 1)
		require.Contains(t, wrong(t, "dead", "show", "--side", "consumer", "orders.order/7@7"), "no group has a dead letter of orders.order/7@7")
		require.Contains(t, wrong(t, "dead", "show", "--side", "consumer", "billing:"+key.UUID().String()), "no group has a dead letter")
	})
}

// A range that no member could read is discarded, and never handled again.
func TestUnreadableLettersAreNotRedriven(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		at := d.keep("billing", "orders.order", "unreadable", nil)
		d.keep("billing", "orders.order", "malformed", nil)
		said := wrong(t, "dead", "redrive", "--group", "billing", "--reason", "r", "--yes")
		require.Contains(t, said, at.String()+" stands for messages that no member could read, and holds nothing to handle")
		require.Contains(t, said, "nothing was decided")
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer", "--cause", "unreadable"), at.String())
		fine(t, "dead", "discard", at.String(), "--side", "consumer", "--reason", "r", "--yes")
		require.Equal(t, []string{"0 discarded", "1 open"}, column[string](d, "SELECT concat_ws(' ', kafka_offset, state) FROM onceward.consumer_dead_letters ORDER BY kafka_offset"))
	})
}

// What is parked behind a letter is listed when it is asked for, follows that one,
// and can be given up.
// A topic's letters are those, too, that are kept aside; also by a pooler's connection
// string, of whatever mode.
func TestLettersAside(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "orders")
		aside, other := d.keep("billing", "orders.order~2", "handler", &key), d.keep("billing", "orders.orders", "handler", nil)
		dsn := os.Getenv(dsnVariable)
		for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
			t.Setenv(dsnVariable, dsn+"&default_query_exec_mode="+mode)
			out := fine(t, "dead", "list", "--side", "consumer", "--topic", "orders.order")
			require.Contains(t, out, aside.String())
			require.NotContains(t, out, other.String())
			require.Contains(t, fine(t, "dead", "show", "--side", "consumer", key.String()), aside.String())
		}
		fine(t, "dead", "discard", "--side", "consumer", "--topic", "orders.order", "--reason", "r", "--yes")
		require.Equal(t, []string{"discarded", "open"}, column[string](d, "SELECT state FROM onceward.consumer_dead_letters ORDER BY topic <> 'orders.order~2'"))
	})
}

// Letters of events that came from no topic have places too.
func TestLettersFromNoTopic(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "stripe")
		at := d.keep("hooks", "from:stripe", "handler", &key)
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer", "--topic", "from:stripe"), "from:stripe/0@0")
		require.Contains(t, fine(t, "dead", "show", "--side", "consumer", at.String()), key.String())
		fine(t, "dead", "redrive", at.String(), "--reason", "r", "--yes", "--wait", "0s")
		require.Equal(t, []string{"requested"}, column[string](d, "SELECT state FROM onceward.consumer_dead_letters"))
		fine(t, "dead", "discard", "--side", "consumer", at.String(), "--reason", "r", "--yes")
		require.Equal(t, []string{"discarded"}, column[string](d, "SELECT state FROM onceward.consumer_dead_letters"))
	})
}

func TestParkedLettersFollow(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		first, behind := d.keep("billing", "orders.order", "handler", nil), d.keep("billing", "orders.order", "parked", nil)
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET state = 'parked' WHERE reason = 'parked'")
		require.NotContains(t, fine(t, "dead", "list", "--side", "consumer"), behind.String())
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer", "--state", "parked"), behind.String())
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer", "--cause", "parked", "--state", "all"), behind.String())
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer", "--cause", "parked"), behind.String())
		require.NotContains(t, fine(t, "dead", "list", "--side", "consumer", "--cause", "parked", "--state", "open"), behind.String())
		require.Regexp(t, `state +parked\n(.*\n)*\nnext: .outboxctl dead show --side consumer `+regexp.QuoteMeta(first.String())+" --group billing.\n", fine(t, "dead", "show", "--side", "consumer", behind.String()))
		require.Regexp(t, `state +open, 1 letter waits behind it\n`, fine(t, "dead", "show", "--side", "consumer", first.String()))
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer"), "\nletters wait behind what is listed: `outboxctl dead list --side consumer --state parked` has them\n")
		before := " is parked: what is parked is not redriven; a member of group billing handles it, in order, as soon as " + first.String() + " is settled, the first letter of its key: " +
			"see `outboxctl dead show --side consumer " + first.String() + " --group billing`, and redrive or discard that one"
		for _, meant := range [][]string{{behind.String()}, {"--cause", "parked"}} {
			out := wrong(t, append([]string{"dead", "redrive", "--reason", "r", "--yes"}, meant...)...)
			require.Equal(t, "! "+behind.String()+before+"\nnothing was decided\n", out)
		}
		both := wrong(t, "dead", "redrive", first.String(), behind.String(), "--reason", "r", "--yes")
		require.Equal(t, "! "+behind.String()+before+"\nnothing was decided\n", both, "also beside one that could be")
		fine(t, "dead", "show", "--side", "consumer", first.String(), "--group", "billing")
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET reason = 'late' WHERE state = 'parked'")
		require.Equal(t, "! "+behind.String()+before+"\nnothing was decided\n", wrong(t, "dead", "redrive", "--cause", "late", "--reason", "r", "--yes"), "nothing else is meant")
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET reason = 'parked' WHERE state = 'parked'")
		fine(t, "dead", "redrive", "--group", "billing", "--reason", "r", "--yes", "--wait", "0", "-o", "json")
		require.Equal(t, []string{"0 requested", "1 parked"}, column[string](d, "SELECT concat_ws(' ', kafka_offset, state) FROM onceward.consumer_dead_letters ORDER BY kafka_offset"))
		asked := wrong(t, "dead", "redrive", "--cause", "parked", "--reason", "r", "--yes")
		require.Equal(t, "! "+behind.String()+" is parked: what is parked is not redriven; a member of group billing handles it, in order, as soon as "+first.String()+" is settled, the first letter of its key: "+
			"its redrive is asked for, and a member does it when one runs; to give it up instead, `outboxctl dead discard --side consumer "+first.String()+" --group billing --reason \"…\"`\nnothing was decided\n", asked)
		for _, meant := range [][]string{{"--group", "billing"}, {"--all"}} {
			require.Equal(t, asked, wrong(t, append([]string{"dead", "redrive", "--reason", "r", "--yes"}, meant...)...))
		}
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer"), "\nletters wait behind what is listed", "also while its redrive is asked for")
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET state = 'redriven' WHERE state = 'requested'")
		require.Contains(t, wrong(t, "dead", "redrive", "--cause", "parked", "--reason", "r", "--yes"), behind.String()+" is parked, and no letter is before it: a member of group billing handles")
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET state = 'requested' WHERE state = 'redriven'")
		fine(t, "dead", "discard", behind.String(), "--side", "consumer", "--reason", "r", "--yes")
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer", "--state", "discarded"), behind.String())
		require.Contains(t, fine(t, "dead", "list", "--side", "consumer"), first.String())
		fine(t, strings.Fields(strings.ReplaceAll(regexp.MustCompile("`outboxctl (dead discard [^`]*)`").FindStringSubmatch(asked)[1], "…", "r")+" --yes")...)
	})
}

func TestGroupLettersAreRedriven(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "orders")
		first, second := d.keep("billing", "orders.order", "handler", &key), d.keep("billing", "orders.order", "late", nil)
		d.keep("mail", "orders.order", "handler", nil)
		standing := func() []string {
			return column[string](d, "SELECT concat_ws(' ', kafka_offset, state, generation, decided_by, decided_why) FROM onceward.consumer_dead_letters ORDER BY kafka_offset")
		}
		untouched := standing()
		require.Contains(t, wrong(t, "dead", "redrive", somePlace, first.String(), "--reason", "r", "--yes"), somePlace+" is no dead letter that can be decided")
		require.Contains(t, wrong(t, "dead", "redrive", "billing:"+key.UUID().String(), "--reason", "r", "--yes"), "nothing was decided")
		for _, order := range [][]string{{"redrive"}, {"discard", "--side", "consumer"}} {
			out := wrong(t, append(append([]string{"dead"}, order...), first.String(), "--group", "billng", "--reason", "r", "--yes")...)
			require.Contains(t, out, "nothing is known of group billng")
			require.NotContains(t, out, "is no dead letter", "there is one, of another group")
		}
		require.Contains(t, wrong(t, "dead", "show", "--side", "consumer", "--group", "billng", first.String()), "nothing is known of group billng")
		require.Contains(t, fine(t, "dead", "redrive", "--type", "Other", "--reason", "r", "--yes"), "no letter waits that is meant")
		code, _, stderr := call(t, "dead", "redrive", "--group", "billing", "--reason", "r")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "this would handle again 2 dead letters (1 handler of group billing, 1 late of group billing); standard input is no terminal")
		require.Equal(t, untouched, standing(), "nothing without --yes")
		require.Empty(t, d.actions())

		got := decode[letters.GroupBecame](t, fine(t, "dead", "redrive", key.String(), "--reason", "account made", "--yes", "--wait", "0", "-o", "json"))
		require.Equal(t, []letters.GroupOutcome{{Group: "billing", Place: first.String(), Key: key.String(), Outcome: states.OutcomePending, Detail: "no member of the group has handled it yet"}}, got.Letters)
		require.Equal(t, []string{"0 requested 1 " + d.operator + " account made", untouched[1], untouched[2]}, standing())
		require.Equal(t, []string{"dead redrive billing " + first.String() + " account made " + d.operator}, d.actions())
		already := "! the redrive of " + first.String() + " is asked for already: it waits for a member of group billing, which handles it as soon as one runs; " +
			"to give it up instead, `outboxctl dead discard --side consumer " + first.String() + " --group billing --reason \"…\"`\nnothing was decided\n"
		for _, meant := range [][]string{{first.String()}, {key.String(), "--group", "billing"}} {
			require.Equal(t, already, wrong(t, append([]string{"dead", "redrive", "--reason", "r", "--yes"}, meant...)...), "asked for once")
		}
		require.Contains(t, fine(t, "dead", "redrive", "--group", "billing", "--cause", "handler", "--reason", "r", "--yes"), "no letter waits that is meant", "filters mean what they match")
		shown := decode[letters.GroupShown](t, fine(t, "dead", "show", "--side", "consumer", first.String(), "-o", "json"))
		require.Equal(t, "account made", shown.Actions[0].Reason)

		wait := d.member("UPDATE onceward.consumer_dead_letters SET state = 'redriven'")
		wait()
		wait = d.member("UPDATE onceward.consumer_dead_letters SET state = 'open', attempts = attempts + 1, error = 'still no account'")
		out := wrong(t, "dead", "redrive", second.String(), "--group", "billing", "--reason", "r", "--yes")
		wait()
		require.Contains(t, out, "failed again: still no account")
		wait = d.member("UPDATE onceward.consumer_dead_letters SET state = 'redriven'")
		require.Contains(t, fine(t, "dead", "redrive", "--cause", "late", "--reason", "r", "--yes"), "redrive of 1 letter: 1 done, 0 pending, 0 failed")
		wait()
		require.Equal(t, "1 redriven 2 "+d.operator+" r", standing()[1])
		out = wrong(t, "dead", "redrive", "--all", "--reason", "r", "--yes", "--wait", "300ms")
		require.Contains(t, out, "redrive of 1 letter: 0 done, 1 pending, 0 failed")
		require.Contains(t, out, "the request stands")
	})
}

func TestGroupLettersAreDiscarded(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		first, second, third := d.keep("billing", "t", "handler", nil), d.keep("billing", "t", "handler", nil), d.keep("mail", "t", "handler", nil)
		fine(t, "dead", "redrive", second.String(), "--reason", "r", "--yes", "--wait", "0")
		out := fine(t, "dead", "discard", "--side", "consumer", first.String(), second.String(), "--reason", "test data", "--yes")
		require.Contains(t, out, "discard of 2 letters: 2 done, 0 pending, 0 failed", "also one that no member has taken up yet")
		require.Equal(t, []bool{true, true}, column[bool](d, "SELECT expires_at BETWEEN now() + interval '29 days' AND now() + interval '31 days' FROM onceward.consumer_dead_letters WHERE state = 'discarded'"))
		require.Equal(t, []string{"dead discard billing " + first.String() + " test data " + d.operator, "dead discard billing " + second.String() + " test data " + d.operator}, d.actions()[1:])
		require.Contains(t, wrong(t, "dead", "discard", "--side", "consumer", first.String(), "--reason", "r", "--yes"), "is no dead letter that can be decided")
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET state = 'redriven' WHERE consumer_group = 'mail'")
		require.Contains(t, wrong(t, "dead", "discard", "--side", "consumer", third.String(), "--reason", "r", "--yes"), "is no dead letter that can be decided")
	})
}

// Several groups read a topic, and each has its own letter at a place: a decision
// is about that of one.
func TestADecisionIsOfOneGroup(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key := newKey(t, "orders")
		at := d.keep("billing", "orders.order", "handler", &key)
		exec(t, d.pool, `INSERT INTO onceward.consumer_dead_letters SELECT (jsonb_populate_record(l, '{"consumer_group": "mail"}')).* FROM onceward.consumer_dead_letters l`)
		states := func() []string {
			return column[string](d, "SELECT concat_ws(' ', consumer_group, state) FROM onceward.consumer_dead_letters ORDER BY 1")
		}
		for _, what := range []string{at.String(), key.String()} {
			for _, verb := range []string{"redrive", "discard"} {
				code, _, stderr := call(t, "dead", verb, "--side", "consumer", what, "--reason", "r", "--yes")
				require.Equal(t, exitUsage, code)
				require.Contains(t, stderr, "whose letter? of "+what+" there are letters of the groups billing, mail; give --group")
			}
		}
		require.Equal(t, []string{"billing open", "mail open"}, states())
		fine(t, "dead", "redrive", at.String(), "--group", "mail", "--reason", "r", "--yes", "--wait", "0", "-o", "json")
		fine(t, "dead", "discard", "--side", "consumer", key.String(), "--group", "billing", "--reason", "r", "--yes")
		require.Equal(t, []string{"billing discarded", "mail requested"}, states())
	})
}

// A decision about letters that somebody else has decided about meanwhile
// leaves them as they are, and keeps no action of them.
func TestADecisionIsMadeOnce(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		at := d.keep("billing", "t", "handler", nil)
		db := &operator.Database{Pool: d.pool}
		for _, decision := range []letters.Decision{letters.Redrive, letters.Discard} {
			exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET generation = 0")
			order, nothing, err := letters.PlanDecision(t.Context(), db, decision, letters.GroupFilter{Places: []letters.Place{at}})
			require.NoError(t, err)
			require.Nil(t, nothing)
			exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET generation = 1")
			require.NoError(t, order.Give(t.Context(), db, "r", func(int) {}))
		}
		require.Equal(t, []string{"open 1"}, column[string](d, "SELECT state || ' ' || generation FROM onceward.consumer_dead_letters"))
		require.Empty(t, d.actions())
	})
}

// Many letters are decided in several transactions.
func TestManyLettersAreDiscarded(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		exec(t, d.pool, `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, reason, error)
			SELECT 'billing', 't', n % 3, n, 'malformed', 'x' FROM generate_series(1, 1234) n`)
		began := time.Now()
		require.Contains(t, fine(t, "dead", "discard", "--side", "consumer", "--all", "--reason", "r", "--yes"), "discard of 1234 letters: 1234 done")
		t.Logf("1234 letters in %s", time.Since(began))
		require.Len(t, d.actions(), 1234)
	})
}
