package cdc

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Marker finds the way from the log back to a snapshot that this process keeps
// in memory: the snapshot was taken, then the marker written, so when the marker
// is read, everything that is visible in the snapshot was read before it.
//
// It holds no more than the run's nonce and a number, because anybody may write
// messages into the log; one with another nonce is not ours.
type Marker struct {
	Nonce uint64 // of the run that wrote it
	ID    uint64 // grows within the run, from 1
}

// Prefixes of the messages in the log.
const (
	markerPrefix = "onceward.marker"
	// AskPrefix is that of a message, transactional or not, by which retention
	// asks every relay of the database for a published snapshot.
	AskPrefix = "onceward.ask"
)

// EmitMarker writes a marker into the log, non-transactionally: it is there at
// once, before the end of any open transaction. It reaches the reader with the
// next flush of the log, at the latest with the next commit.
func EmitMarker(ctx context.Context, conn *pgx.Conn, m Marker) error {
	content := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, m.Nonce), m.ID)
	if _, err := conn.Exec(ctx, `SELECT pg_catalog.pg_logical_emit_message(false, $1::text, $2::bytea)`, markerPrefix, content); err != nil {
		return fmt.Errorf("emit marker: %w", err)
	}
	return nil
}

// decodeMarker returns the item of a logical message; ok is false for messages
// of others.
func decodeMarker(m logical) (it Item, ok bool) {
	switch {
	case m.prefix == AskPrefix:
		return Item{Kind: KindAsk}, true
	case m.prefix == markerPrefix && !m.transactional && len(m.content) == 16:
		return Item{Kind: KindMarker, Marker: Marker{
			Nonce: binary.BigEndian.Uint64(m.content), ID: binary.BigEndian.Uint64(m.content[8:]),
		}}, true
	}
	return Item{}, false
}
