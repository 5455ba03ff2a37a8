package produce

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever did not answer, or was of no use, is asked behind the others, and in turn.
func TestAddressesInTheOrderInWhichTheyAreAsked(t *testing.T) {
	a := Any{Seeds: []string{"a", "b"}, Learned: []string{"b", "c", "a"}}
	require.Equal(t, []string{"a", "b", "c"}, a.addresses())
	for _, want := range [][]string{{"b", "c", "a"}, {"c", "a", "b"}, {"a", "b", "c"}, {"b", "c", "a"}} {
		a.Address = a.addresses()[0]
		a.Elsewhere()
		require.Equal(t, want, a.addresses())
	}
}
