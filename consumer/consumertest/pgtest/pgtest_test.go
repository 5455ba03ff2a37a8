package pgtest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/consumertest/pgtest"
)

// teller is a test that keeps what ends it.
type teller struct {
	testing.TB
	fatal string
}

func (r *teller) Fatalf(format string, args ...any) { r.fatal = fmt.Sprintf(format, args...) }

// TestWhatIsRefusedNamesItsVariable: a version that there is not ends the test.
func TestWhatIsRefusedNamesItsVariable(t *testing.T) {
	for _, version := range []string{"14", "new", "99"} {
		t.Setenv(pgtest.Version, version)
		r := &teller{TB: t}
		require.Empty(t, pgtest.Start(r))
		require.Contains(t, r.fatal, fmt.Sprintf(`pgtest: TESTSERVER_POSTGRES is %q: `, version))
	}
}
