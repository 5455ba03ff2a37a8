package pgserver

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// TestRootThatMayNotBecomeNobody: where a container took that right away, the error says what
// to do; other failures, and other users, are told nothing of it.
func TestRootThatMayNotBecomeNobody(t *testing.T) {
	root, other := folder{user: &process.User{Name: "nobody"}}, folder{}
	denied := fmt.Errorf("fork/exec initdb: %w", syscall.EPERM)
	require.ErrorContains(t, root.refused(denied), "run this as an ordinary user")
	require.NoError(t, root.refused(errors.New("no space left")))
	require.NoError(t, other.refused(denied))
}
