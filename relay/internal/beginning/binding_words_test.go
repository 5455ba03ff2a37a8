package beginning

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The detail of a gap names its cause, and not the publication where that was not
// touched.
func TestChangedWords(t *testing.T) {
	require.Contains(t, changedWords("p", "publication 1 1", "publication 2 2"), "publication p was made anew")
	for known, want := range map[string]string{knownFilled: "held rows when it was attached", knownUnlogged: "was not logged"} {
		words := changedWords("p", known, "publication 1 1")
		require.Contains(t, words, want)
		require.NotContains(t, words, "publication")
	}
}
