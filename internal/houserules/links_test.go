package houserules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	codeBlock  = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
)

// TestLinksLeadSomewhere: every link of a page to a file of ours is to one that is
// there, and to a heading of it where it names one.
func TestLinksLeadSomewhere(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		pages = append(pages, found...)
	}
	links := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, found := range linkTarget.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(text), ""), -1) {
			target := found[1]
			if strings.Contains(target, "://") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(target, "#")
			file := page
			if path != "" {
				file = filepath.Join(filepath.Dir(page), filepath.FromSlash(path))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which is not there", page, target)
				continue
			}
			if anchor != "" && !hasAnchor(t, file, anchor) {
				t.Errorf("%s links to %s, and no heading of it is called so", page, target)
			}
		}
	}
	require.Greater(t, links, 50)
}

// hasAnchor looks for the heading of an anchor, by the rule of the forges.
func hasAnchor(t *testing.T, file, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, found := range heading.FindAllStringSubmatch(string(text), -1) {
		if anchorOf(found[1]) == anchor {
			return true
		}
	}
	return false
}

var noAnchor = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)

func anchorOf(heading string) string {
	return strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
