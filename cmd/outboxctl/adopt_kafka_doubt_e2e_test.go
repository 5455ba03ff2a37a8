//go:build e2e

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
)

// What went to the old cluster is in doubt, whoever had written that down: letters of a
// retry that the checkpoint has passed and nobody settled, and a repair that begins
// anew, of which a checkpoint in the new cluster may tell by its name.
func TestAdoptAnotherKafkaOverlooksNothing(t *testing.T) {
	onInstallations(t, func(d *installation) {
		const adopt = "SELECT onceward.adopt_kafka('onceward_ctl', 'gap', NULL, 'other', 'moved')"
		out, late := d.event("A", "OrderPaid", "1"), d.event("B", "OrderPaid", "2")
		d.letter(out, "retrying")
		d.letter(late, "retrying")
		d.published()
		exec(d.t, d.pool, "UPDATE onceward.relay_state SET confirmed_lsn = '0/100'")
		exec(d.t, d.pool, "UPDATE onceward.dead_letters SET retry_index = 0, retry_position = CASE letter_id WHEN $1 THEN '0/99'::pg_lsn ELSE '0/100' END", out.UUID())
		exec(d.t, d.pool, `INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state, cursor)
			VALUES (gen_random_uuid(), 'onceward_ctl', 'SLOT_LOST', '', '1:1:', '3:3:', 1, 'repairing', 7)`)
		was := column[string](d, "SELECT gap_id::text FROM onceward.gaps")[0]

		old := time.Now().UTC().AddDate(0, 0, -3)
		leaf := partition.Sibling("onceward.outbox", "outbox_"+old.Format("20060102"))
		bounds := column[string](d, "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = $1::regclass", leaf)[0]
		exec(d.t, d.pool, "CREATE TRIGGER onceward_closed BEFORE INSERT ON "+leaf+" FOR EACH ROW EXECUTE FUNCTION onceward.refuse_insert()")
		exec(d.t, d.pool, "ALTER TABLE onceward.outbox DETACH PARTITION "+leaf)
		_, err := d.pool.Exec(d.t.Context(), adopt)
		require.ErrorContains(d.t, err, "is detached, and not dropped yet")
		exec(d.t, d.pool, "ALTER TABLE onceward.outbox ATTACH PARTITION "+leaf+" "+bounds)

		exec(d.t, d.pool, adopt)
		require.Equal(d.t, []string{"open", "retrying"}, column[string](d, "SELECT state FROM onceward.dead_letters ORDER BY letter_id"), "the second waits for its control, which is read again")
		require.Equal(d.t, []bool{true}, column[bool](d, "SELECT gap_id::text <> $1 AND cursor < 0 FROM onceward.gaps WHERE state = 'repairing'", was))
	})
}

// On another system, before anybody adopted it, nothing that the relay had published
// counts: what show calls pending, list shows.
func TestListOnAnotherSystem(t *testing.T) {
	onInstallations(t, func(d *installation) {
		key := d.event("A", "OrderPaid", "1")
		d.published()
		require.NotContains(d.t, fine(d.t, "list"), key.String())
		exec(d.t, d.pool, "UPDATE onceward.relay_state SET system_identifier = '1'")
		require.Contains(d.t, fine(d.t, "list"), key.String())
	})
}
