package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/retention"
)

// maintenanceRetry is after how long a round is tried again that did not get to the tables:
// whoever has mended a login should not be told of it for long.
const maintenanceRetry = 10 * time.Second

// maintain keeps the partitions of the outbox while the relay runs, over a
// connection of its own with the maintainer's role. What fails is logged and
// tried again at the next turn, or soon where no connection was had: a relay that
// publishes is worth more than one that stopped because a partition could not be
// dropped. It returns when ctx ends.
func maintain(ctx context.Context, cfg *Config, counts *counts, report func(string, ...Wait), log *slog.Logger) {
	var home place
	var failed struct {
		since, said time.Time
		text        string
	}
	for {
		began, every := time.Now(), cfg.Outbox.Partitions.Every
		err := maintainOnce(ctx, cfg, &home, counts, log)
		pause := untilNextRound(err, every)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if failed.since.IsZero() {
				failed.since = began
			}
			if text := err.Error(); text != failed.text || began.Sub(failed.said) >= every {
				failed.text, failed.said = text, began
				log.ErrorContext(ctx, "partitions could not be maintained; it is tried again", "error", err, "in", pause)
			}
			report(WaitMaintenance, Wait{What: "partitions", Since: failed.since, Detail: publicMaintenance(err)})
		default:
			failed.since, failed.text = time.Time{}, ""
			report(WaitMaintenance)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

func untilNextRound(err error, every time.Duration) time.Duration {
	if errors.Is(err, errNotReached) {
		return min(every, maintenanceRetry)
	}
	return every
}

// errNotReached is matched by the error of a round that did not get to the tables.
var errNotReached = errors.New("the database was not reached")

// notReachedError has an error match [errNotReached], in its own words.
type notReachedError struct{ error }

func (e notReachedError) Unwrap() error   { return e.error }
func (notReachedError) Is(err error) bool { return err == errNotReached }

// publicMaintenance is why partitions cannot be maintained, in words of ours.
func publicMaintenance(err error) string {
	code, text := reason(StateBackoff, err)
	if code == codeSession {
		text = "the log has the reason"
	}
	return "partitions are neither made nor dropped: " + text
}

// connectMaintainer connects with the maintainer's role. Its errors name the key of that
// DSN, and not of the relay's own.
func connectMaintainer(ctx context.Context, cfg *Config) (*pgx.Conn, error) {
	const key = "postgres.maintenance_dsn_file"
	dsn, err := cfg.maintenanceDSN()
	if err != nil {
		return nil, err
	}
	conn, err := Connect(ctx, dsn, cfg.SlotName())
	if err != nil {
		return nil, fmt.Errorf("login of %s: %w", key, cdc.DSNAt(err, "the file of "+key+" (read at every round)"))
	}
	return conn, nil
}

// place is a database: its name, and the system identifier of its server, which a copy
// of the whole server shares.
type place struct{ database, system string }

func placeOf(ctx context.Context, conn *pgx.Conn) (p place, err error) {
	err = conn.QueryRow(ctx, `SELECT pg_catalog.current_database()::text, system_identifier::text FROM pg_catalog.pg_control_system()`).Scan(&p.database, &p.system)
	if err != nil {
		return place{}, fmt.Errorf("look which database this is: %w", err)
	}
	return p, nil
}

// elsewhere says that the maintenance's login does not lead home, to the database of the
// relay; nil: it does.
func (home place) elsewhere(ctx context.Context, maintainers *pgx.Conn) error {
	there, err := placeOf(ctx, maintainers)
	if err != nil {
		return fmt.Errorf("login of postgres.maintenance_dsn_file: %w", err)
	}
	if there == home {
		return nil
	}
	return &cdc.StartError{Code: CodeMaintenanceElsewhere,
		What: fmt.Sprintf("the maintenance login is connected to database %q of system %s, and the relay to %q of system %s: partitions would be made and dropped there, and none here",
			there.database, there.system, home.database, home.system),
		Cure: fmt.Sprintf("write a DSN of the relay's server with dbname=%s into the file of postgres.maintenance_dsn_file, which is read at every round", home.database)}
}

// findHome connects as the relay does, which alone says which database is its own. Once
// that is known, partitions are made also while the relay cannot log in.
func (home *place) findHome(ctx context.Context, cfg *Config) error {
	dsn, err := cfg.DSN()
	var conn *pgx.Conn
	if err == nil {
		conn, err = Connect(ctx, dsn, cfg.SlotName())
	}
	var now place
	if err == nil {
		defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written
		now, err = placeOf(ctx, conn)
	}
	switch {
	case err == nil:
		*home = now
	case *home == place{}:
		return fmt.Errorf("look which database is the relay's own: %w", err)
	}
	return nil
}

// CheckMaintenance connects as the maintenance of partitions does, and says whether it is
// in the database of the relay's connection, and has the rights to make partitions.
func CheckMaintenance(ctx context.Context, relays *pgx.Conn, cfg *Config) error {
	conn, err := connectMaintainer(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written
	home, err := placeOf(ctx, relays)
	if err != nil {
		return err
	}
	if err := home.elsewhere(ctx, conn); err != nil {
		return err
	}
	var role, owner string
	var may bool
	err = conn.QueryRow(ctx, `SELECT CURRENT_USER::text, pg_catalog.pg_get_userbyid(c.relowner)::text, pg_catalog.pg_has_role(c.relowner, 'USAGE')
		AND pg_catalog.has_schema_privilege(c.relowner, c.relnamespace, 'CREATE')
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'onceward' AND c.relname = 'outbox'`).Scan(&role, &owner, &may)
	if err != nil {
		return fmt.Errorf("look what the login of postgres.maintenance_dsn_file may do: %w", err)
	}
	if !may {
		maintainer := owner
		if prefix, ours := strings.CutSuffix(owner, "_owner"); ours {
			maintainer = prefix + "_maintainer"
		}
		return &cdc.StartError{Code: CodeMaintenance, What: fmt.Sprintf("role %q of postgres.maintenance_dsn_file is no member of %q, which owns onceward.outbox: it can make no partitions and drop none", role, owner),
			Cure: fmt.Sprintf("name a login there that is a member of the maintainer's role: GRANT %q TO %q; (outboxctl migrate roles --side outbox --print has the roles, with --prefix where they are others)",
				maintainer, role)}
	}
	return nil
}

func maintainOnce(ctx context.Context, cfg *Config, home *place, counts *counts, log *slog.Logger) error {
	conn, err := connectMaintainer(ctx, cfg)
	if err != nil {
		return notReachedError{err}
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the work is committed or reported
	if err := home.findHome(ctx, cfg); err != nil {
		return notReachedError{err}
	}
	if err := home.elsewhere(ctx, conn); err != nil {
		return notReachedError{err}
	}
	report, err := retention.Maintain(ctx, conn, cfg.retention())
	if errors.Is(err, retention.ErrMaintained) {
		return nil // a standby, or cron, is at it
	}
	err = cdc.ExplainRefused(err)
	counts.partitions(report)
	for _, name := range report.Made {
		log.InfoContext(ctx, "partition made", "partition", name)
	}
	for _, l := range report.Leaves {
		switch {
		case l.Wrong:
			log.WarnContext(ctx, "partition needs an operator", "partition", l.Name, "state", string(l.State), "why", l.Why)
		case l.State == retention.LeafDropped && l.Why != "":
			log.InfoContext(ctx, "partition dropped", "partition", l.Name, "rows", l.Why)
		case l.State == retention.LeafDropped:
			log.InfoContext(ctx, "partition dropped: every row of it was published", "partition", l.Name)
		}
	}
	return err
}
