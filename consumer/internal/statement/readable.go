package statement

import (
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Readable refuses a pool whose mode has results come as text, with bytea in a form that pgx does not read.
func Readable(db *pgxpool.Pool, found consumerdb.ConsumerTablesRow) error {
	conn := db.Config().ConnConfig
	text := conn.DefaultQueryExecMode == pgx.QueryExecModeExec ||
		conn.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
	if !text || found.ByteaOutput == "hex" {
		return nil
	}
	login, database := pgx.Identifier{conn.User}.Sanitize(), pgx.Identifier{found.Database}.Sanitize()
	return fmt.Errorf("config: DB has bytea_output = %s, which pgx cannot read in the mode %s: "+
		"`ALTER ROLE %s IN DATABASE %s SET bytea_output = hex` and connect anew, or another default_query_exec_mode",
		found.ByteaOutput, conn.DefaultQueryExecMode, login, database)
}
