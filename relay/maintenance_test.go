package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/internal/scripted"
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
	err := maintainOnce(t.Context(), &cfg, new(place), newCounts("orders"), slog.New(slog.DiscardHandler))
	require.Equal(t, maintenanceRetry, untilNextRound(err, cfg.Outbox.Partitions.Every), "no connection was had: it is tried again soon")
	require.Equal(t, cfg.Outbox.Partitions.Every, untilNextRound(errors.New("a table is locked"), cfg.Outbox.Partitions.Every))
	require.NotEmpty(t, waitWords[WaitMaintenance])
	cancel()
	<-done
	require.ErrorContains(t, CheckMaintenance(t.Context(), nil, &cfg), "login of postgres.maintenance_dsn_file: ")
}

// What is maintained is the relay's own outbox. A login that leads to another database, or
// to another server, is named, and changes nothing there.
func TestMaintenanceIsInTheRelaysDatabase(t *testing.T) {
	type identity struct{ Database, System string }
	relays, maintainers := scripted.New(t), scripted.New(t)
	relays.Returns("pg_control_system", identity{"shop", "7000"})
	cfg := Default()
	cfg.Name, cfg.Postgres.Insecure, cfg.Postgres.DSN = "orders", true, relays.DSN()
	cfg.Postgres.MaintenanceDSNFile = filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(cfg.Postgres.MaintenanceDSNFile, []byte(maintainers.DSN()), 0o600))
	var home place
	turn := func() error {
		return maintainOnce(t.Context(), &cfg, &home, newCounts("orders"), slog.New(slog.DiscardHandler))
	}
	for _, there := range []identity{{"billing", "7000"}, {"shop", "7001"}} {
		maintainers.Returns("pg_control_system", there)
		for _, err := range []error{turn(), CheckMaintenance(t.Context(), relays.Connect(), &cfg)} {
			var start *cdc.StartError
			require.ErrorAs(t, err, &start)
			require.Equal(t, CodeMaintenanceElsewhere, start.Code)
			require.Contains(t, start.What, fmt.Sprintf("connected to database %q of system %s, and the relay to \"shop\" of system 7000", there.Database, there.System))
			require.Contains(t, start.Cure, "dbname=shop into the file of postgres.maintenance_dsn_file")
			require.Contains(t, publicMaintenance(err), "connected to database")
		}
	}
	for _, asked := range maintainers.Log() {
		require.Contains(t, asked, "pg_control_system", "nothing else is done there")
	}

	// One that leads home goes on, also while the relay itself cannot log in.
	maintainers.Returns("pg_control_system", identity{"shop", "7000"})
	elsewhere := func(err error) bool {
		var start *cdc.StartError
		return errors.As(err, &start) && start.Code == CodeMaintenanceElsewhere
	}
	require.False(t, elsewhere(turn()))
	asked := len(maintainers.Log())
	require.Greater(t, asked, 5, "it is maintained")
	cfg.Postgres.DSN = "host=" + t.TempDir() + " user=u dbname=shop"
	require.False(t, elsewhere(turn()))
	require.Greater(t, len(maintainers.Log()), asked+1)
	home = place{}
	require.ErrorContains(t, turn(), "look which database is the relay's own: ")
}
