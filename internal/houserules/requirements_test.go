package houserules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// published are the folders of the modules that others can require.
var published = []string{".", "outbox", "outbox/outboxotel", "consumer/consumertest/pgtest"}

// TestEveryDependencyHasAReason: the table of ADR 25 names what our modules require
// directly and is not ours, all of it and nothing else.
func TestEveryDependencyHasAReason(t *testing.T) {
	var required []string
	for _, dir := range published {
		mod, err := os.ReadFile(filepath.Join(root, dir, "go.mod"))
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
			if !strings.HasPrefix(m[1], ours) && !slices.Contains(required, m[1]) {
				required = append(required, m[1])
			}
		}
	}
	require.Greater(t, len(required), 20, "they are found")
	adr, err := os.ReadFile(filepath.Join(root, "docs", "adr", "0025-dependencies.md"))
	require.NoError(t, err)
	var named []string
	for line := range strings.Lines(string(adr)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.Contains(cells[1], "`") {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				named = append(named, m[1])
			}
		}
	}
	require.ElementsMatch(t, required, named)
}
