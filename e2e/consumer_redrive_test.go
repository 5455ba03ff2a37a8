//go:build e2e

package e2e

import (
	"time"

	"github.com/stretchr/testify/require"
)

// mend lets some of the events that could not be applied be applicable from now
// on, and asks for the redrive of all open letters: those that are not mended come
// back open.
func (g *consumerGroup) mend() {
	g.t.Helper()
	g.w.execute(`INSERT INTO mended SELECT namespace || ':' || event_id FROM onceward.consumer_dead_letters
		WHERE state = 'open' AND reason = 'handler' AND hashtext(event_id::text) % 2 = 0 ON CONFLICT DO NOTHING`)
	g.redrive("handler")
}

// redrive asks for the open letters of a reason, as outboxctl does for an operator.
func (g *consumerGroup) redrive(reason string) {
	g.t.Helper()
	tag, err := g.operator.Exec(g.t.Context(), `WITH asked AS (
		UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1, decided_at = clock_timestamp(), decided_by = session_user, decided_why = 'test'
		WHERE consumer_group = $1 AND reason = $2 AND state = 'open' RETURNING *)
		INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason)
		SELECT 'dead redrive', consumer_group, topic || '/' || kafka_partition || '@' || kafka_offset, 'test' FROM asked`, g.group, reason)
	require.NoError(g.t, err)
	g.redrives += int(tag.RowsAffected())
}

// finishRedrives asks again for what was mended, until all of it is redriven: an
// attempt may have failed for other reasons.
func (g *consumerGroup) finishRedrives() {
	g.t.Helper()
	const mended = `SELECT count(*) FROM onceward.consumer_dead_letters JOIN mended ON key = namespace || ':' || event_id WHERE reason = 'handler'`
	g.mended = scalar[int](g.w, mended)
	if g.mended == 0 {
		return
	}
	eventually(g.t, "what was mended is redriven", time.Minute, func() bool {
		if scalar[int](g.w, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'requested'`) > 0 {
			return false
		}
		if scalar[int](g.w, mended+` AND state = 'redriven'`) == g.mended {
			return true
		}
		g.redrive("handler")
		return false
	})
}
