package relayprom

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay"
)

// description is how a Desc writes itself: it tells nobody its parts otherwise.
var description = regexp.MustCompile(`^Desc\{fqName: "([a-z_]+)", help: (".*"), constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// TestEveryMetricIsInTheDocument: docs/metrics.md has one line for each metric of
// the relay, with its labels and its help, and no other.
func TestEveryMetricIsInTheDocument(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	require.NoError(t, err)
	document := make(map[string]bool)
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "| `onceward_") && !strings.HasPrefix(line, "| `onceward_consumer_") {
			document[strings.TrimSpace(line)] = true
		}
	}
	descs := make(chan *prometheus.Desc, 200)
	collector(func() relay.Stats { return relay.Stats{Relay: "orders"} }).Describe(descs)
	close(descs)
	for d := range descs {
		parts := description.FindStringSubmatch(d.String())
		require.NotNil(t, parts, d.String())
		var help string
		_, err := fmt.Sscanf(parts[2], "%q", &help)
		require.NoError(t, err)
		labels := "relay"
		if parts[3] != "" {
			labels += ", " + parts[3]
		}
		line := fmt.Sprintf("| %#q | %s | %s |", parts[1], labels, help)
		if !document[line] {
			t.Errorf("docs/metrics.md lacks the line\n%s", line)
		}
		delete(document, line)
	}
	require.Empty(t, document, "lines of metrics that the relay does not have")
}
