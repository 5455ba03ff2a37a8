package statement

import (
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Readable refuses a pool over which text is not what was written, and one whose mode has results come as text, with
// bytea in a form that pgx does not read.
func Readable(db *pgxpool.Pool, found consumerdb.ConsumerTablesRow) error {
	conn := db.Config().ConnConfig
	text := conn.DefaultQueryExecMode == pgx.QueryExecModeExec ||
		conn.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
	alter := fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET",
		pgx.Identifier{conn.User}.Sanitize(), pgx.Identifier{found.Database}.Sanitize())
	switch {
	case found.ClientEncoding != "UTF8" && found.ClientEncoding != "UNICODE": // SQL_ASCII would do, but pgx's simple protocol takes no other
		return fmt.Errorf("config: DB has client_encoding = %s, and pgx writes UTF8: text would become another: "+
			"`%s client_encoding = 'UTF8'` and connect anew, or client_encoding=UTF8 in the DSN", found.ClientEncoding, alter)
	case text && found.ByteaOutput != "hex":
		return fmt.Errorf("config: DB has bytea_output = %s, which pgx cannot read in the mode %s: "+
			"`%s bytea_output = hex` and connect anew, or another default_query_exec_mode",
			found.ByteaOutput, conn.DefaultQueryExecMode, alter)
	}
	return nil
}
