//go:build e2e

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/gaps"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/outbox"
)

// obey plays the relay: it waits for the next word that has no result, and runs
// the statement, whose $1 is the word's id, together with the result. The
// function returned waits for it.
func (d *installation) obey(sql, note string) (wait func()) {
	ctx, ended := d.t.Context(), make(chan error, 1)
	go func() {
		for {
			var id uuid.UUID
			err := d.pool.QueryRow(ctx, `SELECT control_id FROM onceward.controls c
				WHERE NOT EXISTS (SELECT FROM onceward.control_results r WHERE r.control_id = c.control_id) ORDER BY seq LIMIT 1`).Scan(&id)
			if err == nil {
				err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
					if sql != "" {
						if _, err := tx.Exec(ctx, sql, id); err != nil {
							return err
						}
					}
					_, err := tx.Exec(ctx, "INSERT INTO onceward.control_results (slot, control_id, position, action, letters, note) VALUES ('onceward_ctl', $1, '0/20', 'x', 1, $2)", id, note)
					return err
				})
			}
			if !errors.Is(err, pgx.ErrNoRows) {
				ended <- err
				return
			}
		}
	}()
	return func() { require.NoError(d.t, <-ended) }
}

const (
	publish = `UPDATE onceward.dead_letters SET state = 'replayed', control_id = $1 WHERE state = 'open'`
	refuse  = `UPDATE onceward.dead_letters SET control_id = $1, attempts = attempts + (seq = (SELECT min(seq) FROM onceward.dead_letters))::int, error = 'still 2 MB' WHERE state = 'open'`
)

func TestDeadListAndShow(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		require.Equal(t, "none\n", fine(t, "dead", "list"))
		first, second, third := d.event("A", "OrderPaid", `{"total": 12}`), d.event("A", "OrderSent", "2"), d.event("B", "OrderPaid", "3")
		d.letter(first, "open")
		d.letter(second, "retrying")
		d.letter(third, "discarded")
		listed := func(args ...string) (keys []string) {
			for _, l := range decode[letters.List](t, fine(t, append([]string{"dead", "list", "-o", "json"}, args...)...)).Letters {
				keys = append(keys, l.Key)
			}
			return keys
		}
		require.Equal(t, texts(first, second), listed(), "what waits, oldest first")
		require.Equal(t, texts(first, second, third), listed("--state", "all"))
		require.Equal(t, texts(third), listed("--state", "discarded"))
		require.Equal(t, texts(first, third), listed("--state", "open", "--state", "discarded"))
		require.Equal(t, texts(second), listed("--type", "OrderSent"))
		for _, none := range [][]string{
			{"--aggregate", "C"}, {"--namespace", "x"}, {"--aggregate-type", "x"}, {"--class", "x"}, {"--slot", "x"}, {"--to", "2026-01-01"}, {"--from", "2050-01-01"},
		} {
			require.Empty(t, listed(none...), none)
		}
		require.Equal(t, texts(first, second), listed("--class", "record", "--slot", "onceward_ctl", "--from", "2026-01-01", "--to", "2050-01-01", "--limit", "2"))
		out := fine(t, "dead", "list", "--limit", "1")
		require.Contains(t, out, "record: 2 MB is more than 1 MB")
		require.Contains(t, out, "there are more; raise --limit")

		out = fine(t, "dead", "show", first.String())
		require.Contains(t, out, `13 B: {"total": 12}`)
		require.Contains(t, out, "later events of the aggregate wait behind it")
		exec(t, d.pool, `INSERT INTO onceward.controls (control_id, action, namespace, aggregate_type, aggregate_id, reason) VALUES (gen_random_uuid(), 'retry', 'orders', 'order', 'A', 'limit raised')`)
		shown := decode[letters.Shown](t, fine(t, "dead", "show", first.String(), "--payload", "-o", "json"))
		require.Equal(t, `{"total": 12}`, string(shown.Letters[0].Payload))
		require.True(t, shown.Letters[0].Holds)
		require.Equal(t, "limit raised", shown.Commands[0].Reason)
		require.True(t, shown.Commands[0].Aggregate)
		require.Contains(t, fine(t, "dead", "show", first.String()), "retry aggregate")
		require.Contains(t, wrong(t, "dead", "show", someKey), "no dead letter has the key "+someKey)
		require.Contains(t, wrong(t, "dead", "show", "billing:"+first.UUID().String()), "no dead letter")

		_, stdout, _ := call(t, "status")
		require.Regexp(t, `orders order A +onceward_ctl +2 +\S+ \S+ +`+first.String()+` +record: 2 MB`, stdout)
		require.NotContains(t, stdout, "orders order B")
		exec(t, d.pool, "UPDATE onceward.dead_letters SET holds = false WHERE letter_id = $1", second.UUID())
		_, stdout, _ = call(t, "status")
		require.Regexp(t, `orders order A +onceward_ctl +1 `, stdout, "a letter that holds nothing parks nothing")
	})
}

// Who interrupts a command that has given its order is told that it stands.
func TestAnInterruptedOrderStands(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		key := d.event("A", "OrderPaid", "1")
		k, err := operator.ParseKey(key.String())
		require.NoError(t, err)
		d.letter(k, "open")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ordered := make(chan struct{})
		go func() {
			defer close(ordered)
			defer cancel()
			for n := 0; n == 0 && ctx.Err() == nil; {
				_ = d.pool.QueryRow(ctx, "SELECT count(*) FROM onceward.controls").Scan(&n)
			}
		}()
		var out, errs bytes.Buffer
		require.Equal(t, exitFailed, run(ctx, []string{"outboxctl", "dead", "retry", key.String(), "--reason", "r", "--yes", "--wait", "1m"}, strings.NewReader(""), &out, &errs))
		<-ordered
		require.Contains(t, errs.String(), "interrupted: the order is given, and will be carried out")
	})
}

func TestDeadRetry(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		first, second, third := d.event("A", "OrderPaid", "1"), d.event("A", "OrderSent", "2"), d.event("B", "OrderPaid", "3")
		for _, key := range []string{first.String(), second.String(), third.String()} {
			k, err := operator.ParseKey(key)
			require.NoError(t, err)
			d.letter(k, "open")
		}
		words := func() []string {
			return column[string](d, "SELECT concat_ws(' ', action, namespace, aggregate_type, aggregate_id, letter_id, reason, requested_by) FROM onceward.controls ORDER BY seq")
		}
		require.Contains(t, wrong(t, "dead", "retry", someKey, first.String(), "--reason", "r", "--yes"), someKey+" is no dead letter; `outboxctl show "+someKey+"` tells where the event is")
		exec(t, d.pool, `INSERT INTO onceward.relay_health (slot, process, relay, state, since, code, detail, waits) VALUES ('onceward_ctl', 'h/1/ctl', 'ctl', 'halted', now(), 'HALTED', 'event `+someKey+` is too large', '[]')`)
		require.Contains(t, wrong(t, "dead", "retry", someKey, "--reason", "r", "--yes"), "relay ctl halts at "+someKey+": `outboxctl skip "+someKey+" --relay ctl --reason \"…\"` leaves it out")
		exec(t, d.pool, "DELETE FROM onceward.relay_health")
		require.Contains(t, fine(t, "dead", "retry", "--type", "Other", "--reason", "r", "--yes"), "no letter waits that is meant")
		code, _, stderr := call(t, "dead", "retry", second.String(), "--reason", "r")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "this would publish 2 dead letters, all that wait of 1 aggregate; standard input is no terminal")
		require.Empty(t, words())

		got := decode[letters.Became](t, fine(t, "dead", "retry", second.String(), "--reason", "limit raised", "--yes", "--wait", "0", "-o", "json"))
		require.Len(t, got.Letters, 2, "a KEY picks its aggregate")
		require.Equal(t, letters.Outcome{Key: first.String(), Slot: "onceward_ctl", Outcome: states.OutcomePending, Detail: "not read yet"}, got.Letters[0])
		require.Len(t, got.Relays, 1)
		require.Equal(t, "relay ctl is not connected; it reads the order when it is back", got.Relays[0].What)
		require.Equal(t, []string{"retry orders order A limit raised " + d.operator}, words())
		out := wrong(t, "dead", "retry", "--all", "--reason", "r", "--yes", "--wait", "300ms")
		require.Contains(t, out, "retry of 3 letters: 0 done, 3 pending, 0 failed")
		require.Len(t, words(), 3)

		exec(t, d.pool, "INSERT INTO onceward.control_results SELECT 'onceward_ctl', control_id, '0/20', action, 0, 'played' FROM onceward.controls")
		wait := d.obey(refuse, "")
		out = wrong(t, "dead", "retry", "--aggregate", "A", "--reason", "r", "--yes")
		wait()
		require.Contains(t, out, "refused again: still 2 MB")
		require.Contains(t, out, "waits on, behind a letter that was refused again")
		code, _, stderr = call(t, "dead", "retry", second.String(), "--only", "--reason", "r", "--yes")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "there is no --only any more")
		require.Len(t, words(), 4, "nothing was ordered")
		exec(t, d.pool, "UPDATE onceward.dead_letters SET holds = false WHERE letter_id = $1", second.UUID())
		wait = d.obey("", "the letter is discarded")
		out = wrong(t, "dead", "retry", second.String(), "--reason", "r", "--yes")
		wait()
		require.Contains(t, out, "the relay did nothing: the letter is discarded")
		require.Equal(t, "retry orders "+second.UUID().String()+" r "+d.operator, words()[4], "only this letter, which holds nothing")
		exec(t, d.pool, "UPDATE onceward.dead_letters SET holds = true WHERE letter_id = $1", second.UUID())
		exec(t, d.pool, "UPDATE onceward.dead_letters SET holds = false WHERE letter_id = $1", second.UUID())
		_, _, stderr = call(t, "dead", "retry", "--aggregate", "A", "--reason", "r")
		require.Contains(t, stderr, "publish 2 dead letters, all that wait of 1 aggregate", "one that holds nothing goes with its aggregate, and is counted once")
		exec(t, d.pool, "UPDATE onceward.dead_letters SET holds = true WHERE letter_id = $1", second.UUID())
		wait = d.obey(publish, "")
		require.Contains(t, fine(t, "dead", "retry", "--class", "record", "--reason", "r", "--yes"), "retry of 3 letters: 3 done, 0 pending, 0 failed")
		wait()
	})
}

func TestDeadEditAndDiscard(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		first, second := d.event("A", "OrderPaid", "1"), d.event("A", "OrderSent", "2")
		d.letter(first, "open")
		d.letter(second, "open")
		file := func(text string) string {
			path := filepath.Join(t.TempDir(), "content")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			return path
		}
		edit := func(args ...string) string {
			t.Helper()
			wait := d.obey(`UPDATE onceward.dead_letters SET control_id = $1 WHERE letter_id = (SELECT letter_id FROM onceward.controls WHERE control_id = $1)`, "")
			defer wait()
			return fine(t, append([]string{"dead", "edit", first.String(), "--reason", "r", "--yes"}, args...)...)
		}
		require.Contains(t, edit("--payload-file", file("small"), "--headers-file", file(`{"tenant": "t2"}`)), "edit of 1 letter: 1 done")
		edit("--payload-file", file(""))
		edit("--null-payload", "--headers-file", file("{}"))
		require.Equal(t, []string{`edit small f {"tenant": "t2"}`, `edit  f -`, `edit - t {}`}, column[string](d,
			"SELECT concat_ws(' ', action, COALESCE(convert_from(payload, 'UTF8'), '-'), payload_null, COALESCE(headers::text, '-')) FROM onceward.controls ORDER BY seq"))

		wait := d.obey(`UPDATE onceward.dead_letters SET state = 'discarded', control_id = $1 WHERE letter_id = (SELECT letter_id FROM onceward.controls WHERE control_id = $1)`, "")
		out := fine(t, "dead", "discard", second.String(), "--reason", "test data", "--yes")
		require.Contains(t, out, "discard of 1 letter: 1 done")
		require.Contains(t, out, "\n1 letter of the aggregate order A still waits: `outboxctl dead retry "+first.String()+" --reason \"…\"` publishes it")
		wait()
		require.Equal(t, []string{"discard " + second.UUID().String() + " test data"}, column[string](d, "SELECT concat_ws(' ', action, letter_id, reason) FROM onceward.controls ORDER BY seq OFFSET 3"))
		require.Contains(t, wrong(t, "dead", "discard", second.String(), "--reason", "r", "--yes"), "is no dead letter that waits; `outboxctl dead show "+second.String()+"` tells what became of it")
		require.True(t, strings.HasPrefix(fine(t, "show", second.String()), "key"))
	})
}

func TestPauseAndResume(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		state := func() string {
			return column[string](d, "SELECT concat_ws(' ', paused, paused_routes) FROM onceward.relay_state WHERE slot = 'onceward_ctl'")[0]
		}
		require.Contains(t, fine(t, "pause", "--reason", "the broker moves"), "relay ctl is paused; `outboxctl resume --relay ctl`")
		require.Equal(t, "t {}", state())
		require.Regexp(t, "! relay ctl is paused by \\S+ since \\S+ \\S+ \\(the broker moves\\); `outboxctl resume --relay ctl`", wrong(t, "status"))
		require.Contains(t, fine(t, "resume"), "relay ctl is not paused")
		require.Equal(t, "f {}", state())
		_, status, _ := call(t, "status")
		require.NotContains(t, status, "the broker moves")
		require.Equal(t, []string{"pause  the broker moves", "resume  "},
			column[string](d, "SELECT concat_ws(' ', action, target, reason) FROM onceward.relay_actions ORDER BY action_id"))

		fine(t, "pause", "--route", "orders.b", "--route", "orders.a")
		got := decode[relays.Resting](t, fine(t, "pause", "--route", "orders.a", "-o", "json"))
		require.Equal(t, relays.Resting{Relay: "ctl", Slot: "onceward_ctl", PausedRoutes: []string{"orders.a", "orders.b"}, NotKnown: []string{"orders.a"}}, got)
		require.Contains(t, wrong(t, "status"), "! relay ctl: route orders.b is paused by ")
		require.Contains(t, fine(t, "resume"), "route orders.a is paused", "routes stay as they are")
		resumed := fine(t, "resume", "--route", "orders.a")
		require.Contains(t, resumed, "route orders.a goes on\n")
		require.Contains(t, resumed, "route orders.b is paused")
		require.Contains(t, wrong(t, "resume", "--route", "orders.a"), "! route orders.a was not paused")
		require.Equal(t, "f {orders.b}", state())

		require.Contains(t, fine(t, "pause", "--route", "nosuch"), "! topic nosuch is not known: relay ctl has written to no topic yet")
		exec(t, d.pool, "INSERT INTO onceward.kafka_topics (slot, topic, topic_id, records, seen_at) VALUES ('onceward_ctl', 'orders.order', 'x', 1, now())")
		require.Contains(t, fine(t, "pause", "--route", "nosuch"), "! topic nosuch is not known: relay ctl has written to orders.order; the pause stands")
		require.NotContains(t, fine(t, "pause", "--route", "orders.order"), "topic orders.order is not known")
		fine(t, "resume", "--route", "nosuch", "--route", "orders.order")

		config := configFile(t, strings.Replace(relayYAML, "name: orders", "name: ctl", 1))
		refused, _, said := call(t, "pause", "--config", config, "--route", "orders.ordr")
		require.Equal(t, exitUsage, refused)
		require.Contains(t, said, "knows topic orders.ordr; did you mean orders.order? --force")
		require.Equal(t, "f {orders.b}", state(), "nothing is paused")
		require.NotContains(t, fine(t, "pause", "--config", config, "--route", "orders.order"), "is not known")
		require.Contains(t, fine(t, "pause", "--config", config, "--route", "orders.ordr", "--force"), "! topic orders.ordr is not known")
		fine(t, "resume", "--route", "orders.ordr", "--route", "orders.order")
		_, _, said = call(t, "pause", "--config", config, "--relay", "two")
		require.Contains(t, said, "--config is of relay ctl")

		exec(t, d.pool, strings.Replace(insertState, "'ctl'", "'two'", 1), "onceward_two")
		code, _, stderr := call(t, "pause")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "which relay? there are ctl (slot onceward_ctl), two (slot onceward_two); give --relay or --slot")
		code, _, stderr = call(t, "pause", "--relay", "three")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "no relay three here; there are ctl")
		fine(t, "pause", "--slot", "onceward_two")
		require.Equal(t, "f {orders.b}", state())
		require.Equal(t, []string{"onceward_two"}, column[string](d, "SELECT slot FROM onceward.relay_state WHERE paused"))
	})
}

func TestSkip(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		published := d.event("A", "OrderPaid", "0")
		d.published()
		first, second := d.event("A", "OrderPaid", "1"), d.event("A", "OrderPaid", "2")
		for key, want := range map[string]string{published.String(): "was published", "billing:" + first.UUID().String(): "belongs to namespace orders"} {
			code, _, stderr := call(t, "skip", key, "--reason", "r", "--yes")
			require.Equal(t, exitFailed, code)
			require.Contains(t, stderr, want)
		}
		code, _, stderr := call(t, "skip", first.String(), "--reason", "r")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "this would leave out the event "+first.String()+" for good, at relay ctl")
		require.Contains(t, fine(t, "skip", first.String(), "--reason", "2 MB of logs", "--yes"), "relay ctl leaves out "+first.String())
		require.Equal(t, []string{"discard " + first.UUID().String() + " 2 MB of logs " + d.operator},
			column[string](d, "SELECT concat_ws(' ', action, letter_id, reason, requested_by) FROM onceward.controls"), "who and why are kept")
		require.Contains(t, wrong(t, "status"), "told to skip the event "+first.UUID().String())
		d.letter(first, "discarded")
		got := decode[relays.Skipped](t, fine(t, "skip", second.String(), "--reason", "r", "--yes", "-o", "json"))
		require.Equal(t, []uuid.UUID{second.UUID()}, got.Skip, "what has come about is forgotten")
		d.letter(second, "open")
		code, _, stderr = call(t, "skip", second.String(), "--reason", "r", "--yes")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "`outboxctl dead discard "+second.String())
		exec(t, d.pool, "UPDATE onceward.dead_letters SET state = 'retrying' WHERE letter_id = $1", second.UUID())
		fine(t, "skip", second.String(), "--reason", "its topic is gone", "--yes")
		third := d.event("A", "OrderPaid", "3")
		told := func() []string {
			return column[string](d, "SELECT k::text FROM onceward.relay_state, unnest(skip) k ORDER BY 1")
		}
		fine(t, "skip", third.String(), "--reason", "this one too", "--yes")
		require.ElementsMatch(t, []string{second.UUID().String(), third.UUID().String()}, told(), "what is retried has not ended")
		exec(t, d.pool, "UPDATE onceward.dead_letters SET state = 'replayed' WHERE letter_id = $1", second.UUID())
		fine(t, "skip", third.String(), "--reason", "again", "--yes")
		require.Equal(t, []string{third.UUID().String()}, told())
	})
}

// TestAReplayThatWaitsIsGivenUp: show and status print how, of one to a topic that will never be, and
// what they print does it.
func TestAReplayThatWaitsIsGivenUp(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		row := d.event("A", "OrderPaid", `{"a": 1}`)
		waits, out, slot := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7()), column[string](d, "SELECT slot FROM onceward.relay_state")[0]
		for _, id := range []uuid.UUID{waits, out} {
			exec(t, d.pool, `INSERT INTO onceward.replays (replay_id, id, namespace, aggregate_type, aggregate_id, event_type, payload, created_at, topic, reason)
				SELECT $1, id, namespace, aggregate_type, aggregate_id, event_type, payload, created_at, 'orders.repiar', 'typed' FROM onceward.outbox WHERE id = $2`, id, row.UUID())
		}
		require.NotContains(t, fine(t, "show", row.String()), "to give it up")
		exec(t, d.pool, `INSERT INTO onceward.lanes (id, slot, namespace, aggregate_type, topic) OVERRIDING SYSTEM VALUE SELECT 7, slot, '', '', 'orders.repiar' FROM onceward.relay_state`)
		exec(t, d.pool, `INSERT INTO onceward.waiting (lane, position, ordinal, tx_id, id) VALUES (7, '0/9', 0, '9', $1)`, waits)

		command := "outboxctl skip orders:" + waits.String() + " --slot " + slot + ` --reason "…"`
		require.Contains(t, fine(t, "show", row.String()), "\nreplay "+waits.String()+" waits for its route, topic orders.repiar; to give it up: `"+command+"`")
		require.Equal(t, []string{command}, decode[events.Life](t, fine(t, "show", row.String(), "-o", "json")).Replays[0].GiveUp)
		require.Contains(t, wrong(t, "status"), "where topic orders.repiar of replays is not to be made, `"+command+"` gives up the first of 1; many are given up at once by making the topic")
		fine(t, append(strings.Fields(strings.Replace(command, `"…"`, "mistyped", 1))[1:], "--yes")...)
		require.Equal(t, []string{waits.String()}, column[string](d, "SELECT k::text FROM onceward.relay_state, unnest(skip) k"))
	})
}

// TestSkipOfNothing: a word that nothing would ever carry out is refused, unless the
// relay knows the event all the same.
func TestSkipOfNothing(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		missing, err := outbox.NewKey("orders")
		require.NoError(t, err)
		id := missing.UUID().String()
		refused := func(key, want string) {
			t.Helper()
			code, _, stderr := call(t, "skip", key, "--reason", "r", "--yes")
			require.Equal(t, exitFailed, code)
			require.Contains(t, stderr, want)
		}
		refused(missing.String(), "no relay halts at it: nothing was ordered")
		refused(id, "no relay halts at it: nothing was ordered")
		require.Empty(t, column[string](d, "SELECT k::text FROM onceward.relay_state, unnest(skip) k"))
		require.Empty(t, column[string](d, "SELECT action FROM onceward.controls"))

		// A replay that is on its way; one that is out.
		exec(t, d.pool, `INSERT INTO onceward.waiting (lane, position, ordinal, tx_id, id) VALUES (7, '0/9', 0, '9', $1)`, id)
		refused(missing.String(), "nothing was ordered")
		exec(t, d.pool, `INSERT INTO onceward.lanes (id, slot, namespace, aggregate_type, topic) OVERRIDING SYSTEM VALUE SELECT 7, slot, 'orders', 'A', '' FROM onceward.relay_state`)
		fine(t, "skip", missing.String(), "--reason", "its row was deleted", "--yes")
		require.Contains(t, wrong(t, "status"), "`outboxctl skip "+id+" --undo --relay ctl` takes the word back")

		require.Contains(t, fine(t, "skip", id, "--undo"), "relay ctl does not leave out "+id+" any more")
		require.Empty(t, column[string](d, "SELECT k::text FROM onceward.relay_state, unnest(skip) k"))
		require.Contains(t, wrong(t, "skip", missing.String(), "--undo"), "relay ctl was not told to skip "+missing.String())
		code, _, stderr := call(t, "skip", id, "--undo", "--reason", "r")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "--undo goes without --reason")

		event := d.event("A", "OrderPaid", "1")
		fine(t, "skip", event.String(), "--reason", "r", "--yes")
		d.letter(event, "discarded")
		exec(t, d.pool, "UPDATE onceward.relay_state SET skip = '{}'")
		require.Contains(t, wrong(t, "skip", event.String(), "--undo"), "was given up already: `outboxctl dead show "+event.String()+"`")

		replayed := d.event("B", "OrderPaid", "1")
		d.published()
		fine(t, "replay", replayed.String(), "--unchecked", "--reason", "r", "--yes")
		replay := column[string](d, "SELECT namespace || ':' || replay_id FROM onceward.replays")[0]
		fine(t, "skip", replay, "--reason", "not after all", "--yes")
		got := decode[relays.Undone](t, fine(t, "skip", replay, "--undo", "-o", "json"))
		require.True(t, got.TakenBack)
		require.Empty(t, got.Skip)
		refused("billing:"+replay[len("orders:"):], "belongs to namespace orders")
		d.published()
		refused(replay, "was published; no relay halts at it")
	})
}

// TestReplayInGap: of a replay that a gap held nobody says that it was published, and
// the gap names it, whatever became of the gap.
func TestReplayInGap(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		event := d.event("A", "OrderPaid", "1")
		d.published()
		order := func() string {
			fine(t, "replay", event.String(), "--unchecked", "--reason", "r", "--yes")
			return column[string](d, "SELECT namespace || ':' || replay_id FROM onceward.replays ORDER BY seq DESC LIMIT 1")[0]
		}
		out := order()
		d.published()
		lost, letter := order(), order()
		exec(t, d.pool, `INSERT INTO onceward.dead_letters (slot, letter_id, replay_of, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position,
			error_class, error, state) SELECT 'onceward_ctl', replay_id, id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, '0/10', 'c', 'e', 'replayed'
			FROM onceward.replays WHERE namespace || ':' || replay_id = $1`, letter)
		exec(t, d.pool, `INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
			SELECT gen_random_uuid(), slot, 'SLOT_MISSING', '', snapshot, pg_current_snapshot(), 0, 'open' FROM onceward.published_snapshots`)
		d.published()
		gap := column[string](d, "SELECT gap_id::text FROM onceward.gaps")[0]
		skip := func(key string) string {
			t.Helper()
			code, _, stderr := call(t, "skip", key, "--reason", "r", "--yes")
			require.Equal(t, exitFailed, code)
			return stderr
		}
		for _, state := range []string{"open", "repairing", "repaired", "accepted"} {
			exec(t, d.pool, "UPDATE onceward.gaps SET state = $1", state)
			said := skip(lost)
			require.Contains(t, said, "lay in gap "+gap+": it is not proved to be published", state)
			require.Contains(t, said, "`outboxctl replay "+event.String()+" --config FILE")
			require.Contains(t, skip(out), "was published; no relay halts at it")
			require.Contains(t, skip(letter), "was published; no relay halts at it")
			shown := fine(t, "gap", "show", gap)
			require.Contains(t, shown, "replays that lay in it: 1, not proved to be published")
			require.Contains(t, shown, lost+"  "+event.String())
			_, listed, _ := call(t, "gap", "list", "--all", "-o", "json")
			require.Equal(t, int64(1), decode[gaps.Report](t, listed).Gaps[0].Replays)
		}
	})
}

// TestALetterWaitsForItsRoute: a retry that was ordered and cannot be carried out now is told.
func TestALetterWaitsForItsRoute(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		key, other := d.event("A", "OrderPaid", "1"), d.event("B", "OrderPaid", "1")
		d.letter(key, "open")
		d.letter(other, "open")
		require.NotContains(t, fine(t, "dead", "list"), "waits for its route")
		fine(t, "dead", "retry", key.String(), "--reason", "r", "--yes", "--wait", "0s")
		exec(t, d.pool, "UPDATE onceward.dead_letters SET control_id = (SELECT control_id FROM onceward.controls), retry_index = 0 WHERE letter_id = $1", key.UUID())
		exec(t, d.pool, "INSERT INTO onceward.lanes (id, slot, namespace, aggregate_type, topic) OVERRIDING SYSTEM VALUE SELECT 7, slot, 'orders', 'order', '' FROM onceward.relay_state")
		exec(t, d.pool, "INSERT INTO onceward.waiting (lane, position, ordinal, tx_id, id) SELECT 7, '0/20', 0, tx_id, control_id FROM onceward.controls")
		exec(t, d.pool, "INSERT INTO onceward.waiting_copies (lane, position, ordinal, kind, item) VALUES (7, '0/20', 0, 'control', '')")
		exec(t, d.pool, "INSERT INTO onceward.waiting (lane, position, ordinal, tx_id, id) VALUES (7, '0/21', 0, '9', gen_random_uuid()), (7, '0/22', 0, '9', gen_random_uuid())")
		_, status, _ := call(t, "status")
		require.Regexp(t, `orders order +2 +1 `, status, "two events, and an order")
		list := fine(t, "dead", "list")
		require.Regexp(t, key.String()+" +open, waits for its route ", list)
		require.NotRegexp(t, other.String()+".*waits", list)
		require.Contains(t, fine(t, "dead", "show", key.String()), "open, waits for its route: `outboxctl status` says why")
		require.NotContains(t, fine(t, "dead", "show", other.String()), "waits for its route")
	})
}
