package outbox_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that imports outbox compiles pgx, uuid, what these two stand on, and
// nothing else that is not of the standard library.
func TestWhatAProducerPaysFor(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	require.NoError(t, err)
	for imported := range strings.FieldsSeq(string(out)) {
		known := false
		for _, module := range []string{"github.com/onceward/onceward/outbox", "github.com/jackc/", "github.com/google/uuid", "golang.org/x/"} {
			known = known || strings.HasPrefix(imported, module)
		}
		require.True(t, known, "%s is new: a dependency of every producer needs its line in an ADR", imported)
	}
}
