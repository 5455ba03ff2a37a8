package relay

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A round of maintenance that fails is waited for, by the key that is wrong, over the ends
// of sessions; once one succeeds, or where the relay stops, it is not.
func TestMaintenanceThatFailsIsWaitedFor(t *testing.T) {
	cfg := Default()
	cfg.Name, cfg.Postgres.Insecure = "orders", true
	cfg.Postgres.MaintenanceDSNFile = filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(cfg.Postgres.MaintenanceDSNFile, []byte("host="+t.TempDir()+" user=u dbname=d"), 0o600))
	v := newVitals("orders", noon)
	v.enter(StateStreaming, nil, noon)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		maintain(ctx, &cfg, newCounts("orders"), v.report, slog.New(slog.DiscardHandler))
	}()
	require.Eventually(t, func() bool { return len(v.health(time.Now()).Waiting) == 1 }, 30*time.Second, 10*time.Millisecond)
	v.over()
	w := only(t, v.health(time.Now()))
	require.Equal(t, WaitMaintenance, w.For)
	require.Contains(t, w.Detail, "partitions are neither made nor dropped: ")
	require.NotEmpty(t, waitWords[WaitMaintenance])
	cancel()
	<-done
	require.ErrorContains(t, CheckMaintenance(t.Context(), &cfg), "login of postgres.maintenance_dsn_file: ")
}
