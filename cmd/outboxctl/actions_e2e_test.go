//go:build e2e

package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A decision and the word about it are one: where the word cannot be kept,
// nothing is changed.
func TestNothingIsDecidedWithoutItsReason(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		key, live := newKey(t, "orders"), newKey(t, "orders")
		at := d.keep("billing", "t", "handler", &key)
		d.claim(key.UUID(), "mail", "p")
		d.fence(key, "charge", "-1 minute", "1 day")
		d.fence(live, "charge", "1 hour", "1 day")
		exec(t, d.pool, insertWindow, "billing", "*", "7 days", daysAgo(7))
		exec(t, d.pool, "UPDATE onceward.dedup_windows SET bucket = time_window")
		d.mark("billing", "orders.old", 0, nil, "1 hour")
		everything := func() []string {
			return column[string](d, `SELECT l::text FROM onceward.consumer_dead_letters l UNION ALL SELECT f::text FROM onceward.fences f
				UNION ALL SELECT e::text FROM onceward.processed_events e UNION ALL SELECT w::text FROM onceward.dedup_windows w UNION ALL SELECT p::text FROM onceward.progress p`)
		}
		before := everything()
		exec(t, d.pool, "REVOKE INSERT (action) ON onceward.consumer_actions FROM "+pgx.Identifier{strings.TrimPrefix(d.operator, "login-")}.Sanitize())
		for _, args := range [][]string{
			{"dead", "redrive", at.String()}, {"dead", "discard", "--side", "consumer", at.String()},
			{"processed", "forget", key.String(), "--group", "mail"},
			{"fences", "reconcile", key.String(), "--made", "--type", "T"}, {"fences", "reconcile", key.String(), "--not-made"}, {"fences", "release", live.String()},
			{"windows", "set", "billing", "*", "--window", "1d"}, {"windows", "retire", "billing"}, {"windows", "retire", "billing", "--topic", "orders.old"},
		} {
			code, _, stderr := call(t, append(args, "--reason", "r", "--yes")...)
			require.Equal(t, exitFailed, code, args)
			require.Contains(t, stderr, "permission denied for table consumer_actions", args)
			require.Contains(t, stderr, "connect as a member of the role onceward_operator, unless --prefix says otherwise: `outboxctl migrate roles --side consumer --print`", args)
			require.Equal(t, before, everything(), args)
		}
	})
}
