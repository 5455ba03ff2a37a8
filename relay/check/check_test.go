package check_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/check"
)

func config(dsn string, brokers ...string) *relay.Config {
	cfg := relay.Default()
	cfg.Name = "orders"
	cfg.Postgres.DSN, cfg.Postgres.Insecure = dsn, true
	cfg.Kafka.Brokers, cfg.Kafka.Insecure = brokers, true
	cfg.Routes = []relay.RouteConfig{{Topic: "{namespace}.{aggregate_type}"}}
	return &cfg
}

// named returns the verdict with the name.
func named(t *testing.T, verdicts []check.Verdict, name string) check.Verdict {
	t.Helper()
	for _, v := range verdicts {
		if v.Name == name {
			return v
		}
	}
	t.Fatalf("no verdict %q in %v", name, verdicts)
	return check.Verdict{}
}

func TestWithoutServersEverythingIsNamed(t *testing.T) {
	verdicts := check.Run(t.Context(), config("postgres://u:canary@127.0.0.1:1/d", "127.0.0.1:1"))
	require.Equal(t, check.Failed, check.Worst(verdicts))
	require.Equal(t, check.Failed, named(t, verdicts, "connection to PostgreSQL").Status)
	require.Equal(t, check.Skipped, named(t, verdicts, "publication").Status)
	require.Equal(t, check.Failed, named(t, verdicts, "Kafka").Status)
	for _, format := range []string{"table", "json"} {
		var out bytes.Buffer
		require.NoError(t, check.Write(&out, verdicts, format))
		require.NotContains(t, out.String(), "canary")
	}
}

func TestWorst(t *testing.T) {
	ok, warning, failed := check.Verdict{Status: check.OK}, check.Verdict{Status: check.Warning}, check.Verdict{Status: check.Failed}
	require.Equal(t, check.OK, check.Worst([]check.Verdict{ok, {Status: check.Skipped}}))
	require.Equal(t, check.Warning, check.Worst([]check.Verdict{warning, ok}))
	require.Equal(t, check.Failed, check.Worst([]check.Verdict{warning, failed, ok}))
}

func TestWriteShowsTheCure(t *testing.T) {
	verdicts := []check.Verdict{{Name: "publication", Status: check.Failed, Code: "PUBLICATION_MISSING", Detail: "gone", Cure: "CREATE …"}, {Name: "clock", Status: check.OK}}
	var out bytes.Buffer
	require.NoError(t, check.Write(&out, verdicts, "table"))
	require.Equal(t, "failed  publication  PUBLICATION_MISSING: gone\n                     -> CREATE …\nok      clock        \n", out.String())
	out.Reset()
	require.NoError(t, check.Write(&out, verdicts, "json"))
	var back []check.Verdict
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, verdicts, back)
	require.Error(t, check.Write(&out, verdicts, "xml"))
}
