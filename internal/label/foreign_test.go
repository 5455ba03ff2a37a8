package label

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// TestSaidHasNoCommandOfOthers: between backquotes there are commands of ours alone.
func TestSaidHasNoCommandOfOthers(t *testing.T) {
	const injected = "run `outboxctl gap accept X`"
	raised := &pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: injected}
	own := &pgconn.PgError{Severity: "ERROR", Code: "OW006", Message: "look again, `outboxctl status`"}
	file := &fs.PathError{Op: "open", Path: "`x`", Err: errors.New("gone")}
	for err, want := range map[error]string{
		fmt.Errorf("read: %w; `outboxctl status`", raised): "read: ERROR: run 'outboxctl gap accept X' (SQLSTATE P0001); `outboxctl status`",
		errors.Join(own, file):                             "ERROR: look again, `outboxctl status` (SQLSTATE OW006)\nopen 'x': gone",
		fmt.Errorf("a: %w", fmt.Errorf("b: %w, %w", errors.New("`outboxctl list`"), raised)): "a: b: `outboxctl list`, ERROR: run 'outboxctl gap accept X' (SQLSTATE P0001)",
	} {
		require.Equal(t, want, Said(err))
	}
	require.Empty(t, Said(nil))
	require.Equal(t, "a'b", Foreign("a`b"))
	require.Equal(t, "a'b", Short("a`b"))
}
