package terminal

import (
	"slices"
	"strings"

	"github.com/xrash/smetrics"
)

// Nearest returns the name with the smallest edit distance, for a question after what
// was meant; empty where there is none. It is never one that switches security off:
// nobody should do so because a program proposed it.
func Nearest(given string, names []string) string {
	best, least := "", 1<<30
	for _, name := range slices.Sorted(slices.Values(names)) {
		if strings.Contains(strings.ToLower(name), "insecure") {
			continue
		}
		if d := distance(given, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// Resembles reports whether a name may be a mistyped other one, and not another word.
func Resembles(given, meant string) bool {
	return meant != "" && distance(given, meant) <= max(2, len(given)/2)
}

func distance(a, b string) int { return smetrics.WagnerFischer(a, b, 1, 1, 1) }
