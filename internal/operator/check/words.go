package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/relay"
)

// words says what rests because an operator said so: nobody should look for
// another reason.
func words(ctx context.Context, conn *pgx.Conn, cfg *relay.Config) Verdict {
	v := Verdict{Name: "operator's words", Status: OK}
	var paused bool
	var routes []string
	err := conn.QueryRow(ctx, `SELECT paused, paused_routes FROM onceward.relay_state WHERE slot = $1`, cfg.SlotName()).Scan(&paused, &routes)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		v.Detail = "none: the relay has not run yet"
	case err != nil:
		return failure(v.Name, err)
	case paused:
		v.Status, v.Code, v.Detail = Warning, codePaused, "the relay is paused: it publishes nothing, and the server keeps the log for it"
		v.Cure = "outboxctl resume --relay " + cfg.Name
	case len(routes) > 0:
		v.Status, v.Code, v.Detail = Warning, codePaused, fmt.Sprintf("routes are paused: %s", strings.Join(routes, ", "))
		v.Cure = "outboxctl resume --relay " + cfg.Name + " --route " + strings.Join(routes, " --route ")
	}
	return v
}
