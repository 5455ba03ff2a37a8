package statement

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/pooler"
)

// Usable refuses a database that cannot hold each text, a pool over which text is not what was written, one whose
// mode has results come as text, with bytea or times in a form that pgx does not read, and one whose mode does not
// go well with the pooler it leads through.
func Usable(ctx context.Context, db *pgxpool.Pool, found consumerdb.ConsumerTablesRow) error {
	conn := db.Config().ConnConfig
	text := conn.DefaultQueryExecMode == pgx.QueryExecModeExec ||
		conn.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
	alter := fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET",
		pgx.Identifier{conn.User}.Sanitize(), pgx.Identifier{found.Database}.Sanitize())
	switch {
	case found.ServerEncoding != "UTF8":
		return fmt.Errorf("config: DB is the database %s, which is encoded in %s and cannot hold every text: an event, or why it failed, could neither be "+
			"applied nor become a dead letter; take a database with ENCODING 'UTF8'", found.Database, found.ServerEncoding)
	case conn.RuntimeParams["client_encoding"] != "" && found.ClientEncoding != "UTF8":
		return fmt.Errorf("config: DB's DSN has client_encoding=%s, and pgx writes UTF8: text would become another: put client_encoding=UTF8 there",
			found.ClientEncoding)
	case found.ClientEncoding != "UTF8": // SQL_ASCII and UNICODE would do, but pgx's simple protocol takes no other
		return fmt.Errorf("config: DB has client_encoding = %s, and pgx writes UTF8: text would become another: "+
			"`%s client_encoding = 'UTF8'` and connect anew, or client_encoding=UTF8 in the DSN", found.ClientEncoding, alter)
	case text && found.ByteaOutput != "hex":
		return fmt.Errorf("config: DB has bytea_output = %s, which pgx cannot read in the mode %s: "+
			"`%s bytea_output = hex` and connect anew, or another default_query_exec_mode",
			found.ByteaOutput, conn.DefaultQueryExecMode, alter)
	case text && !strings.HasPrefix(found.DateStyle, "ISO"):
		return fmt.Errorf("config: DB has DateStyle = %s, which pgx cannot read in the mode %s: "+
			"`%s DateStyle = ISO` and connect anew, or another default_query_exec_mode",
			found.DateStyle, conn.DefaultQueryExecMode, alter)
	}
	return pooler.Check(ctx, db)
}
