package report_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/bench/internal/report"
)

// drained is a run of a second.
func drained(workload, side string, round, events int) report.Run {
	return report.Run{Workload: workload, Side: side, Round: round, Events: events, Seconds: 1,
		CPU: map[string]float64{"side": 10, "backend": 12, "broker": 3}, Batch: new(200.0), Memory: new(70 + float64(round))}
}

// full are results with every figure of the last line.
func full() *report.Results {
	r := &report.Results{Began: time.Unix(0, 0), Took: time.Minute, Machine: report.Machine{System: "linux", Cores: 2}, Judged: true,
		Setup: []report.Fact{{"PostgreSQL", "15"}}, Notes: []string{"a | bar"}}
	for round := range 3 {
		f := round + 1 // the machine is faster from round to round
		r.Runs = append(r.Runs,
			drained(report.Single, report.Ceiling, round, 1000*f), drained(report.Single, report.Idempotent, round, 1200*f),
			drained(report.Single, report.ExactlyOnce, round, 1080*f), drained(report.Single, report.DebeziumTuned, round, 100*f),
			drained(report.Bulk, report.Ceiling, round, 2000*f), drained(report.Bulk, report.Idempotent, round, 1000*f))
	}
	hogs, lean := drained(report.Hogs, report.Idempotent, 0, 1000), new(60.0)
	r.Runs = append(r.Runs, hogs, drained(report.Mixed, report.Idempotent, 0, 1000), drained(report.Large, report.Idempotent, 0, 50),
		report.Run{Workload: report.Trickle, Side: report.Idempotent, Events: 500, Seconds: 10, Memory: lean, Latency: &report.Latency{P50: 1.9, P99: 5.1, Max: 7, CommitP50: 1, CommitP99: 2}},
		report.Run{Workload: report.Steady, Side: report.Idempotent, Events: 20_000, Seconds: 10, Memory: lean, Latency: &report.Latency{P50: 4, P99: 21, Max: 30},
			CPU: map[string]float64{"side": 100, "broker": 50}})
	return r
}

func TestTheLastLine(t *testing.T) {
	require.Equal(t, "bench: relay/ceiling=1.20 bulk/ceiling=0.50 relay/debezium=12.0 eo/idempotent=0.90 "+
		"p50_ms=1.90 p99_ms=5.10 p99_2000_ms=21.0 cpu_us=10.0 rss_mib=72.0", full().Line())
	require.Equal(t, "bench: relay/ceiling=- bulk/ceiling=- relay/debezium=- eo/idempotent=- "+
		"p50_ms=- p99_ms=- p99_2000_ms=- cpu_us=- rss_mib=-", new(report.Results).Line(), "what was not measured is not made up")
}

func TestRoundsAreCompared(t *testing.T) {
	r := full()
	ratio, ok := r.Ratio(report.Single, report.Idempotent, report.Ceiling, report.Rate)
	require.True(t, ok)
	require.Len(t, ratio.Pairs, 3)
	require.InDelta(t, 1.2, ratio.Low, 1e-9)
	require.InDelta(t, 1.2, ratio.High, 1e-9)
	// A round in which one side failed is left out, and does not shift the others.
	var kept []report.Run
	for _, run := range r.Runs {
		if run.Side != report.Ceiling || run.Round != 1 {
			kept = append(kept, run)
		}
	}
	r.Runs = kept
	ratio, ok = r.Ratio(report.Single, report.Idempotent, report.Ceiling, report.Rate)
	require.True(t, ok)
	require.Len(t, ratio.Pairs, 2)
	require.InDelta(t, 1.2, ratio.High, 1e-9)
}

func TestBarsAreMetWhenTheMedianReachesThem(t *testing.T) {
	r := full()
	verdicts := func() map[string]report.Verdict {
		all := make(map[string]report.Verdict)
		for _, b := range report.Bars() {
			all[b.What] = b.Judge(r)
		}
		return all
	}
	v := verdicts()
	require.Equal(t, report.Met, v["drain, single: relay / ceiling"])
	require.Equal(t, report.Missed, v["drain, bulk: relay / ceiling"])
	require.Equal(t, report.Missed, v["relay CPU, single, µs an event"])
	require.Equal(t, report.Met, v["relay memory, MiB"])
	require.Equal(t, report.Met, v["2,000/s, idempotent: CPU of relay and broker, cores"])
	require.Equal(t, report.Missed, v["2,000/s, idempotent: p99, ms"])
	require.Equal(t, report.Unmeasured, v["consumer, Batch of 100 / bare SQL"])
	require.Equal(t, report.Met, v["beside eight hogs: CPU of relay, backend and broker, µs an event"])
	r.Machine.Busy = true
	v = verdicts()
	require.Equal(t, report.Unjudged, v["drain, bulk: relay / ceiling"])
	require.Equal(t, report.Missed, v["relay CPU, single, µs an event"], "what an event costs is judged on a busy machine, too")
}

// The median of a noisy ratio lies below the bar, and its interval reaches it.
func TestNoiseIsNoVerdict(t *testing.T) {
	r := new(report.Results)
	for round, events := range []int{1000, 1000, 1000, 1050, 1050, 1200, 1200, 1200, 1200} {
		r.Runs = append(r.Runs, drained(report.Single, report.Ceiling, round, 1000), drained(report.Single, report.Idempotent, round, events))
	}
	bar := report.Bars()[0]
	require.Equal(t, "drain, single: relay / ceiling", bar.What)
	median, _, high := bar.Measure(r)
	require.InDelta(t, 1.05, median, 1e-9)
	require.InDelta(t, 1.2, high, 1e-9)
	require.Equal(t, report.Undecided, bar.Judge(r))
	r.Runs = r.Runs[:16]
	require.Equal(t, report.Missed, bar.Judge(r), "of fewer rounds it is the median that counts")
}

// A curve is judged by its ends, round by round.
func TestClaimsOfBeforeAreJudged(t *testing.T) {
	r := new(report.Results)
	at := slices.IndexFunc(report.Bars(), func(b report.Bar) bool {
		return b.What == "consumer, one by one: beside most claims / beside fewest"
	})
	for round := range 9 {
		for point, events := range map[int]int{10: 1000, 50: 100, 200: 850} {
			run := drained(report.GrowthClaims, report.Tx, round, events*(round+1))
			run.Point = point
			r.Runs = append(r.Runs, run)
		}
	}
	median, _, _ := report.Bars()[at].Measure(r)
	require.InDelta(t, 0.85, median, 1e-9)
	require.Equal(t, report.Missed, report.Bars()[at].Judge(r))
	r.Runs = slices.DeleteFunc(r.Runs, func(run report.Run) bool { return run.Point == 200 && run.Round == 4 })
	median, _, _ = report.Bars()[at].Measure(r)
	require.InDelta(t, 0.85, median, 1e-9, "a round without one of the points shifts no other")
	r.Runs = slices.DeleteFunc(r.Runs, func(run report.Run) bool { return run.Point != 10 })
	require.Equal(t, report.Unmeasured, report.Bars()[at].Judge(r), "one point is no curve")
}

// What was not seen, or was easier than it ought to be, meets no bar.
func TestWhatMeetsNoBar(t *testing.T) {
	for what, spoil := range map[string]func(*report.Run){
		"beside eight hogs: CPU of relay, backend and broker, µs an event": func(r *report.Run) { delete(r.CPU, "backend") },
		"2,000/s, idempotent: CPU of relay and broker, cores":              func(r *report.Run) { r.Seconds *= 2 },
		"2,000/s, idempotent: p50, ms":                                     func(r *report.Run) { r.Seconds *= 2 },
		"trickle: p50, ms":                                                 func(r *report.Run) { r.Events /= 2 },
		"relay memory, MiB":                                                func(r *report.Run) { r.Memory = nil },
	} {
		at := slices.IndexFunc(report.Bars(), func(b report.Bar) bool { return b.What == what })
		r := full()
		require.Equal(t, report.Met, report.Bars()[at].Judge(r), what)
		for i := range r.Runs {
			spoil(&r.Runs[i])
		}
		require.Equal(t, report.Unmeasured, report.Bars()[at].Judge(r), what)
	}
	r := full()
	r.Runs = slices.DeleteFunc(r.Runs, func(run report.Run) bool { return run.Workload == report.Hogs })
	at := slices.IndexFunc(report.Bars(), func(b report.Bar) bool { return b.What == "relay memory, MiB" })
	require.Equal(t, report.Unmeasured, report.Bars()[at].Judge(r), "of every workload")
	grown := drained(report.GrowthTopics, report.ExactlyOnce, 0, 1000)
	grown.Point, grown.Memory = 1, new(87.0)
	r.Runs = append(r.Runs, grown)
	require.Equal(t, report.Missed, report.Bars()[at].Judge(r), "and of curves")
	require.Contains(t, r.Line(), "rss_mib=87.0")
}

// What another build has is no figure of this one.
func TestAnotherBuild(t *testing.T) {
	r := full()
	again := drained(report.Single, report.Again, 0, 1000)
	again.Memory = new(200.0)
	r.Runs = append(r.Runs, again)
	require.Contains(t, r.Line(), "rss_mib=200")
	require.Contains(t, r.Markdown(nil), "the control")
	r.Another = "old/relay"
	require.NotContains(t, r.Line(), "rss_mib=200")
	require.Contains(t, r.Markdown(nil), "again was old/relay")
}

// One good round is luck.
func TestOneGoodRoundMeetsNoBar(t *testing.T) {
	r := new(report.Results)
	for round := range 9 {
		run := drained(report.Single, report.Idempotent, round, 1000)
		run.CPU["side"] = 12
		if round == 4 {
			run.CPU["side"] = 8
		}
		r.Runs = append(r.Runs, run)
	}
	at := slices.IndexFunc(report.Bars(), func(b report.Bar) bool { return b.What == "relay CPU, single, µs an event" })
	require.Equal(t, report.Missed, report.Bars()[at].Judge(r))
}

func TestThePage(t *testing.T) {
	page := full().Markdown([]string{"single-rate.svg"})
	for _, want := range []string{
		"## Drain a backlog, one event a transaction\n",
		"| idempotent | 1200, 2400, 3600 | 1.20 (1.20 to 1.20) | 10.0 | 12.0 | 3.00 | 200 | 71.0 |\n",
		"| idempotent | 1.90 | 5.10 | 7.00 | 1.00, 2.00 | 50.0 | - | - | - | -, - | - |\n",
		"| idempotent | 4.00 | 21.0 | 30.0 | 0.00, 0.00 | 2000 | 0.20 | - | 0.10 | -, - | - |\n",
		"| drain, bulk: relay / ceiling | ≥ 0.8 | 0.50 | 0.50 to 0.50 | missed |\n",
		"- exactly-once / idempotent: 0.90 (0.90 to 0.90)\n",
		"![single-rate](single-rate.svg)\n",
		"otherwise idle",
	} {
		require.Contains(t, page, want)
	}
	r := full()
	r.Judged, r.Machine.Busy, r.Machine.Used = false, true, 1.5
	page = r.Markdown(nil)
	require.NotContains(t, page, "## Bars")
	require.Contains(t, page, "busy with other work")
	r.Ahead = []string{"steady", "hogs"}
	require.Contains(t, r.Markdown(nil), "Still to come when this was written: steady, hogs")
}

func TestChartsAreXML(t *testing.T) {
	charts := report.Charts(full())
	require.Contains(t, charts, "single-rate.svg")
	require.Contains(t, charts, "trickle-latency.svg")
	require.NotContains(t, charts, "trickle-cpu.svg")
	c := report.Chart{Title: `<"a" & b>`, Unit: "µs", Parts: []string{"one", "two"}, Log: true,
		Rows: []report.Row{{"none", []float64{math.NaN(), 0}}, {"some", []float64{1, 1000}}}}
	charts["odd"] = c.SVG()
	c.Stacked, c.Log = true, false
	charts["stacked"] = c.SVG()
	charts["empty"] = report.Chart{}.SVG()
	charts["no line"] = report.Plot{Title: "<&>"}.SVG()
	charts["one point"] = report.Plot{Axis: "<&>", Points: []int{7}, Lines: []report.Row{{"<&>", []float64{math.NaN()}}}}.SVG()
	for name, chart := range charts {
		decoder := xml.NewDecoder(strings.NewReader(chart))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
		}
		require.NotContains(t, chart, "NaN", name)
		require.NotContains(t, chart, "Inf", name)
	}
}

// grown are a curve of three points, of which the last costs more.
func grown() *report.Results {
	r := new(report.Results)
	for round := range 3 {
		for i, point := range []int{300, 8, 50} {
			run := drained(report.GrowthPartitions, report.Idempotent, round, 1000+round)
			run.Point = point
			run.CPU["side"] = []float64{15, 10, 10}[i]
			r.Runs = append(r.Runs, run)
		}
	}
	return r
}

func TestACurve(t *testing.T) {
	r := grown()
	page := r.Markdown(nil)
	for _, want := range []string{
		"## Growth in partitions\n\n| partitions | side |",
		"| 8 | idempotent | 1000, 1001, 1002 | 10.0 | 12.0 | 3.00 | 200 | 71.0 |\n| 50 |",
		"| 300 | idempotent | 1000, 1001, 1002 | 15.0 |",
		"- idempotent, at 300 over at 8: own CPU an event 1.50, events/s 1.00\n",
	} {
		require.Contains(t, page, want)
	}
	charts := report.Charts(r)
	require.Contains(t, charts, "growth-partitions-cpu.svg")
	require.Contains(t, charts, "growth-partitions-rate.svg")
	require.NotContains(t, charts, "growth-topics-cpu.svg")
	require.Contains(t, charts["growth-partitions-cpu.svg"], ">idempotent + backend + broker<")
	require.Contains(t, charts["growth-partitions-cpu.svg"], ">300<")
}

// Equal factors are equal distances, and twice the value is twice as high.
func TestAPlotHasALogarithmicAxis(t *testing.T) {
	chart := report.Plot{Points: []int{10, 100, 1000, 2_000_000}, Lines: []report.Row{{"a", []float64{100, 50, math.NaN(), 0}}}}.SVG()
	var at [][2]float64
	for _, found := range regexp.MustCompile(`<circle cx="([0-9.]+)" cy="([0-9.]+)"`).FindAllStringSubmatch(chart, -1) {
		x, err := strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)
		y, err := strconv.ParseFloat(found[2], 64)
		require.NoError(t, err)
		at = append(at, [2]float64{x, y})
	}
	require.Len(t, at, 3, "what is no number is not drawn")
	bottom := at[2][1]
	require.InDelta(t, 2*(bottom-at[1][1]), bottom-at[0][1], 0.2)
	require.InDelta(t, (at[2][0]-at[0][0])/math.Log10(200_000), at[1][0]-at[0][0], 0.2)
	require.Contains(t, chart, ">1 k<")
	require.Contains(t, chart, ">2 M<")
	require.NotContains(t, chart, "NaN")
}

func TestABarIsAsLongAsItsValue(t *testing.T) {
	chart := report.Chart{Parts: []string{"rate"}, Rows: []report.Row{{"half", []float64{50}}, {"whole", []float64{100}}}}.SVG()
	require.Contains(t, chart, `width="520.0"`)
	require.Contains(t, chart, `width="260.0"`)
}

func TestWhatIsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	require.NoError(t, full().Write(dir))
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	require.NoError(t, err)
	var again report.Results
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, full().Line(), again.Line(), "the JSON holds all that the line is made of")
	require.FileExists(t, filepath.Join(dir, "results.md"))
	require.FileExists(t, filepath.Join(dir, "single-cpu.svg"))
}
