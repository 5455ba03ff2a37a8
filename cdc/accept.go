package cdc

import "fmt"

// AcceptGap returns the SQL by which an operator accepts that what the relay has
// not published by now may be missing in Kafka, and lets it go on from here. The
// slot passes the log without decoding it, so also log that the server refuses to
// decode; the checkpoint follows. The relay must not run meanwhile.
func AcceptGap(slot string) string {
	return fmt.Sprintf("SELECT pg_catalog.pg_replication_slot_advance('%s', pg_catalog.pg_current_wal_insert_lsn()); "+
		"UPDATE onceward.relay_state SET publication_catalog = NULL, "+
		"confirmed_lsn = (SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = '%s') WHERE slot = '%s';",
		slot, slot, slot)
}
