package beginning

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay/internal/scripted"
	"github.com/onceward/onceward/relay/internal/state"
)

// Who is waited for is named as long as there is somebody: what goes on behind the wait
// itself, as leading a slot does, is not said to wait for a standby that has come back.
func TestWhoIsWaitedForIsNamedUntilNobodyIs(t *testing.T) {
	db := scripted.New(t)
	synctest.Test(t, func(t *testing.T) {
		var told []string
		s := New(Config{Slot: "onceward_orders", Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, db.DSN()) }},
			slog.New(slog.DiscardHandler), nil, Told{Names: func(what string) { told = append(told, what) }})
		who := []string{"pid 7", "", "pid 8"}
		stop := s.naming(t.Context(), "it waits", func(context.Context, *state.State) (string, error) {
			now := who[0]
			who = who[1:]
			return now, nil
		})
		time.Sleep(barrierTell + 80*time.Second) // of fake time: three times are told
		stop()
		require.Equal(t, []string{"it waits: pid 7", "it waits", "it waits: pid 8"}, told)
	})
}
