package houserules_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/houserules"
)

// root is the folder of the repository.
var root = filepath.Join("..", "..")

func TestTheHouseKeepsItsRules(t *testing.T) {
	violations, err := houserules.Check(root)
	require.NoError(t, err)
	for _, v := range violations {
		t.Error(v)
	}
}

// The tree in testdata breaks every rule, beside code that looks alike and is
// allowed.
func TestEveryRuleBites(t *testing.T) {
	violations, err := houserules.Check(filepath.Join("testdata", "broken"))
	require.NoError(t, err)
	var got [][2]string
	for _, v := range violations {
		got = append(got, [2]string{v.File, v.Rule})
	}
	require.Equal(t, [][2]string{
		{"cdc/reader.go", "rooms"},
		{"cdc/reader_test.go", "rooms"},
		{"cdc/reader_test.go", "sleep"},
		{"internal/consumerdb/claims.sql", "sql"},
		{"internal/consumerdb/claims.sql", "sql"},
		{"internal/consumerdb/claims.sql", "sql"},
		{"internal/consumerdb/claims.sql", "sql"},
		{"internal/hall", "size"},
		{"internal/helpers/strings.go", "names"},
		{"internal/outboxdb/letters.sql", "sql"},
		{"migrations/outbox/00001_one.sql", "sql"},
		{"migrations/up.go", "sql"},
		{"outbox/enqueue.go", "leaf"},
		{"outbox/enqueue_test.go", "leaf"},
		{"publisher/other.go", "sarama"},
		{"record/header.go", "leaf"},
		{"relay/embedded.go", "servers"},
		{"relay/embedded.go", "servers"},
		{"relay/literal.go", "sarama"},
		{"relay/long.go", "length"},
		{"relay/query.go", "sql"},
		{"relay/string_util.go", "names"},
	}, got)
	require.Equal(t, "cdc/reader.go: rooms: cdc imports publisher; declare what you need as an interface and let relay join them", violations[0].String())
}

// An exception that is none any more would let something grow again.
func TestEveryExceptionFromTheSizesIsNeeded(t *testing.T) {
	small, err := houserules.Small(root)
	require.NoError(t, err)
	require.Empty(t, small)
}

func TestAFileThatIsNotGoIsNamed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broken.go"), []byte("package"), 0o600))
	_, err := houserules.Check(dir)
	require.ErrorContains(t, err, "parse broken.go")
}

// A program that only enqueues pays for pgx and uuid, nothing of Kafka.
func TestOutboxPullsNothingOfKafka(t *testing.T) {
	of := func(pkg string) []string {
		paths, err := houserules.Dependencies(t.Context(), root, pkg)
		require.NoError(t, err)
		require.Contains(t, paths, "github.com/onceward/onceward/"+pkg)
		return houserules.OfKafka(paths)
	}
	require.Empty(t, of("outbox"))
	require.Empty(t, of("record"))
	require.Contains(t, of("publisher"), "github.com/IBM/sarama", "the check no longer finds what is there")
}

// A program that embeds a relay and fills its configuration itself pays for the two
// drivers and what they need: nothing reads YAML, and nothing is of Prometheus.
func TestAnEmbedderOfRelayPullsTheDriversAlone(t *testing.T) {
	modules, err := houserules.Modules(t.Context(), root, "relay")
	require.NoError(t, err)
	require.Equal(t, []string{
		"github.com/IBM/sarama",
		"github.com/davecgh/go-spew",
		"github.com/eapache/go-resiliency",
		"github.com/google/uuid",
		"github.com/hashicorp/go-uuid",
		"github.com/jackc/pgio",
		"github.com/jackc/pglogrepl",
		"github.com/jackc/pgpassfile",
		"github.com/jackc/pgservicefile",
		"github.com/jackc/pgx/v5",
		"github.com/jcmturner/aescts/v2",
		"github.com/jcmturner/dnsutils/v2",
		"github.com/jcmturner/gofork",
		"github.com/jcmturner/gokrb5/v8",
		"github.com/jcmturner/rpc/v2",
		"github.com/klauspost/compress",
		"github.com/pierrec/lz4/v4",
		"github.com/rcrowley/go-metrics",
		"github.com/xdg-go/scram",
		"github.com/xdg-go/stringprep",
		"golang.org/x/crypto",
		"golang.org/x/net",
		"golang.org/x/sync",
		"golang.org/x/sys",
		"golang.org/x/text",
	}, modules)
}

// Redis is linked by who imports consumer/redisfast, and by nobody else.
func TestConsumersDoNotLinkRedis(t *testing.T) {
	ofRedis := func(pkg string) (found []string) {
		modules, err := houserules.Modules(t.Context(), root, pkg)
		require.NoError(t, err)
		for _, m := range modules {
			if strings.Contains(m, "redis") || strings.Contains(m, "breaker") {
				found = append(found, m)
			}
		}
		return found
	}
	for _, pkg := range []string{"consumer", "consumer/saramagroup", "consumer/consumerprom", "consumer/retention", "relay", "cmd/relay", "cmd/outboxctl"} {
		require.Empty(t, ofRedis(pkg), pkg)
	}
	require.Equal(t, []string{"github.com/redis/go-redis/v9", "github.com/sony/gobreaker/v2"}, ofRedis("consumer/redisfast"))
}

func TestAPackageThatIsNotThereIsNamed(t *testing.T) {
	_, err := houserules.Dependencies(t.Context(), root, "nowhere")
	require.ErrorContains(t, err, "list what nowhere depends on")
}
