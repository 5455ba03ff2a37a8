//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAnotherSlotIsNoBeginning: a relay that has run does not begin anew because its
// slot has another name in the configuration, whatever outbox.start says; and one that
// keeps its slot may have another name.
func TestAnotherSlotIsNoBeginning(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	r := startRelay(t, w, "outbox: {start: all}")
	writeOne(t, w)
	caughtUp(t, w, r)
	r.stop()
	again := w.newRelay(w.config("outbox: {start: all}"), "")
	again.env = append(again.env, "ONCEWARD_POSTGRES_SLOT_NAME=onceward_another")
	again.start()
	log := again.wait(30 * time.Second)
	require.Contains(t, log, "relay "+w.name+" runs with slot "+w.slot()+", or did")
	require.Zero(t, scalar[int](w, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'onceward_another'`))
	out, code := relayCheck(t, again.config)
	require.Zero(t, code, out)

	// The name alone would make another relay, which asks, and tells the two apart.
	publication := scalar[string](w, `SELECT publication FROM onceward.relay_state`)
	alone := w.newRelay(w.config(), "")
	alone.env = append(alone.env, "ONCEWARD_NAME=renamed", "ONCEWARD_POSTGRES_PUBLICATION="+publication)
	alone.start()
	require.Contains(t, alone.wait(30*time.Second),
		"relay "+w.name+" publishes this outbox too, or did: if this is that one with a new name, put postgres.slot.name: "+w.slot()+" and postgres.publication: "+publication)

	renamed := w.newRelay(w.config("outbox: {start: all}"), "")
	renamed.env = append(renamed.env, "ONCEWARD_NAME=renamed", "ONCEWARD_POSTGRES_SLOT_NAME="+w.slot(), "ONCEWARD_POSTGRES_PUBLICATION="+publication)
	renamed.start()
	writeOne(t, w)
	caughtUp(t, w, renamed)
	require.Equal(t, "renamed", scalar[string](w, `SELECT relay FROM onceward.relay_state`))
	renamed.stop()
	_, copies := requireTrue(t, w)
	require.Zero(t, copies)
}
