package check_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/check"
	"github.com/onceward/onceward/relay"
)

func config(dsn string, brokers ...string) *relay.Config {
	cfg := relay.Default()
	cfg.Name, cfg.Admin.Listen = "orders", "127.0.0.1:0"
	cfg.Postgres.DSN, cfg.Postgres.Insecure = dsn, true
	cfg.Kafka.Brokers, cfg.Kafka.Insecure = brokers, true
	cfg.Routes = []relay.RouteConfig{{Topic: "{namespace}.{aggregate_type}"}}
	return &cfg
}

// named returns the verdict with the name.
func named(t *testing.T, verdicts []check.Verdict, name string) check.Verdict {
	t.Helper()
	for _, v := range verdicts {
		require.Equal(t, v.Status != check.OK && v.Status != check.Skipped, v.Code != "", "a program that reads JSON goes by the code: %+v", v)
	}
	for _, v := range verdicts {
		if v.Name == name {
			return v
		}
	}
	t.Fatalf("no verdict %q in %v", name, verdicts)
	return check.Verdict{}
}

func TestWithoutServersEverythingIsNamed(t *testing.T) {
	verdicts := check.Run(t.Context(), config("postgres://u:canary@127.0.0.1:1/d", "127.0.0.1:1"), nil)
	require.Equal(t, check.Failed, check.Worst(verdicts))
	require.Equal(t, check.Failed, named(t, verdicts, "connection to PostgreSQL").Status)
	require.Equal(t, check.Skipped, named(t, verdicts, "publication").Status)
	require.Equal(t, check.Failed, named(t, verdicts, "Kafka").Status)
	for _, format := range []string{"table", "json"} {
		var out bytes.Buffer
		write(t, &out, verdicts, format)
		require.NotContains(t, out.String(), "canary")
	}
}

func write(t *testing.T, out *bytes.Buffer, verdicts []check.Verdict, format string) {
	t.Helper()
	p, err := check.NewPrinter(out, format)
	require.NoError(t, err)
	for _, v := range verdicts {
		p.Print(v)
	}
	require.NoError(t, p.End())
}

func TestWorst(t *testing.T) {
	ok, warning, failed := check.Verdict{Status: check.OK}, check.Verdict{Status: check.Warning}, check.Verdict{Status: check.Failed}
	require.Equal(t, check.OK, check.Worst([]check.Verdict{ok, {Status: check.Skipped}}))
	require.Equal(t, check.Warning, check.Worst([]check.Verdict{warning, ok}))
	require.Equal(t, check.Failed, check.Worst([]check.Verdict{warning, failed, ok}))
	held := check.Verdict{Status: check.Held}
	require.Equal(t, check.Held, check.Worst([]check.Verdict{warning, held, ok}))
	require.Equal(t, check.OK, check.Worst(nil))
}

func TestWriteShowsTheCure(t *testing.T) {
	verdicts := []check.Verdict{{Name: "publication", Status: check.Failed, Code: "PUBLICATION_MISSING", Detail: "gone", Cure: "CREATE …"}, {Name: "clock", Status: check.OK}}
	var out bytes.Buffer
	write(t, &out, verdicts, "table")
	const pad = "                                                     "
	require.Equal(t, "failed   publication"+pad[:33]+"PUBLICATION_MISSING: gone\n"+pad+"-> CREATE …\nok       clock"+pad[:37]+"\n", out.String())
	out.Reset()
	write(t, &out, verdicts, "json")
	var back []check.Verdict
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, verdicts, back)
	_, err := check.NewPrinter(&out, "xml")
	require.Error(t, err)
	out.Reset()
	write(t, &out, []check.Verdict{{Name: "topic \x1b[31m", Detail: "\u202e", Cure: "\r"}}, "table")
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), "\r")
	require.Contains(t, out.String(), `\u202e`)
}
