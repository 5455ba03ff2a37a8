package cdc

import (
	"bytes"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// A slot that was made without failover is altered before it streams, where the
// configuration wants it and the server knows of it. One that may not be altered streams
// all the same, and the log says so.
func TestASlotWithoutFailoverIsAltered(t *testing.T) {
	const (
		looks  = "SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = 'onceward_shop' AND NOT failover AND NOT active"
		alters = "ALTER_REPLICATION_SLOT onceward_shop (FAILOVER true)"
	)
	for name, tc := range map[string]struct {
		version        string
		wanted, lacks  bool
		refused, asked []string
		says           string
	}{
		"made without":         {version: "17.5", wanted: true, lacks: true, asked: []string{looks, alters}, says: "level=INFO msg=\"the slot was made without failover; from now on standbys may synchronise it"},
		"as it should be":      {version: "18.3 (Debian 18.3-1)", wanted: true, asked: []string{looks}},
		"not wanted":           {version: "18.3", lacks: true},
		"an older server":      {version: "16.9", wanted: true, lacks: true},
		"it may not be":        {version: "18.3", wanted: true, lacks: true, refused: []string{"42501", "permission denied"}, asked: []string{looks, alters}, says: "level=WARN msg=\"the slot is not synchronised to standbys"},
		"a server that is odd": {wanted: true, lacks: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWalsender(t)
				w.version, w.lacks = tc.version, tc.lacks
				if tc.refused != nil {
					w.unheard = &pgproto3.ErrorResponse{Severity: "ERROR", Code: tc.refused[0], Message: tc.refused[1]}
				}
				var log bytes.Buffer
				r := startOn(t, w, func(c *Config) {
					c.FailoverSlot, c.Logger = tc.wanted, slog.New(slog.NewTextHandler(&log, nil))
				})
				require.Equal(t, tc.asked, w.asked)
				r.stop(t)
				if tc.says == "" {
					require.Empty(t, log.String())
				}
				require.Contains(t, log.String(), tc.says)
				for _, word := range tc.refused {
					require.Contains(t, log.String(), word)
				}
			})
		})
	}
}
