package houserules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryDependencyHasAReason: the table of ADR 25 names the direct requirements of
// go.mod, all of them and no others.
func TestEveryDependencyHasAReason(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	var required []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
		required = append(required, m[1])
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
