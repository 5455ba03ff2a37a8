package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/onceward/onceward/bench/internal/numbers"
)

// page is a Markdown text that is being written.
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(&p.Builder, format+"\n", args...) }

// row writes a row of a table. A bar in a cell would end it.
func (p *page) row(cells ...string) {
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	p.line("| %s |", strings.Join(cells, " | "))
}

// head writes the head of a table.
func (p *page) head(cells ...string) {
	p.row(cells...)
	p.line("|%s", strings.Repeat(" --- |", len(cells)))
}

// titles are the headings of the workloads.
var titles = map[string]string{
	Single: "Drain a backlog, one event a transaction", Bulk: "Drain a backlog, hundreds of events a transaction",
	Mixed: "Drain a backlog, 1 to 50 events a transaction, a fifth of them rolled back at first", Large: "Drain a backlog of payloads of 64 KiB",
	Hogs: "Drain a backlog beside eight programs that want the CPU", Trickle: "One event each 20 ms",
	Steady: "2,000 events a second", Enqueue: "The producer's side", Consume: "The consumer's side",
	GrowthBacklog: "Growth of a backlog", GrowthClaims: "Growth of the table of claims", GrowthPartitions: "Growth in partitions",
	GrowthTopics: "Growth in topics", GrowthAggregates: "Growth in aggregates", GrowthTransaction: "Growth of a transaction",
	GrowthDistance: "Growth of the way to the broker",
}

// Markdown is the results as a page; charts are the files beside it.
func (r *Results) Markdown(charts []string) string {
	p := new(page)
	p.line("# Benchmark of %s\n", r.Began.UTC().Format("2006-01-02 15:04"))
	busy := "otherwise idle"
	if r.Machine.Busy {
		busy = "busy with other work: read what an event costs and how many share a batch, not rates and times"
		if r.Machine.Used > 0 {
			busy += fmt.Sprintf(" (%.1f cores before anything was started)", r.Machine.Used)
		}
	}
	p.line("%s, %d cores, %s. It took %s.\n", r.Machine.System, r.Machine.Cores, busy, r.Took.Round(1e9))
	for _, f := range r.Setup {
		p.line("- %s: %s", f.Name, f.Value)
	}
	for _, note := range r.Notes {
		p.line("- **%s**", note)
	}
	if len(r.Ahead) > 0 {
		p.line("- **Still to come when this was written: %s**", strings.Join(r.Ahead, ", "))
	}
	for _, workload := range r.Workloads() {
		p.line("\n## %s\n", titles[workload])
		switch {
		case workload == Trickle || workload == Steady:
			r.latencies(p, workload)
		case workload == Enqueue || workload == Consume:
			r.calls(p, workload)
		case Grows(workload):
			curve{r, workload}.table(p)
		default:
			r.drains(p, workload)
			r.ratios(p, workload)
		}
	}
	r.bars(p)
	if len(charts) > 0 {
		p.line("")
	}
	for _, chart := range charts {
		p.line("![%s](%s)", strings.TrimSuffix(chart, ".svg"), chart)
	}
	return p.String()
}

// drains is the table of a backlog.
func (r *Results) drains(p *page, workload string) {
	p.head("side", "events/s, each round", "/ ceiling", "own CPU, µs an event", "backend", "broker", "records/batch", "memory, MiB")
	for _, side := range r.Sides(workload) {
		ratio, ok := r.Ratio(workload, side, Ceiling, Rate)
		p.row(side, list(r.Values(workload, side, Rate)), interval(ratio, ok), short(r.Median(workload, side, Own)),
			short(r.cpu(workload, side, "backend")), short(r.cpu(workload, side, "broker")),
			short(r.Median(workload, side, Batch)), short(r.Median(workload, side, Memory)))
	}
}

// compared are the ratios of rates that stand below the table of a backlog.
var compared = [][2]string{
	{Again, Idempotent}, {ExactlyOnce, Idempotent}, {Idempotent, Reader}, {Idempotent, Polling},
	{Idempotent, DebeziumTuned},
}

func (r *Results) ratios(p *page, workload string) {
	p.line("")
	for _, c := range compared {
		ratio, ok := r.Ratio(workload, c[0], c[1], Rate)
		if !ok {
			continue
		}
		what := ""
		switch {
		case c[0] == Again && r.Another != "":
			what = ", again was " + r.Another
		case c[0] == Again:
			what = ", the control: what differs less is noise"
		}
		p.line("- %s / %s: %s%s", c[0], c[1], interval(ratio, ok), what)
	}
}

func (r *Results) cpu(workload, side, process string) float64 {
	return r.Median(workload, side, func(run Run) float64 { return run.cpu(process) })
}

// latencies is the table of events that come at a pace.
func (r *Results) latencies(p *page, workload string) {
	p.head("side", "p50, ms", "p99, ms", "greatest", "the commit's own p50, p99", "events/s", "cores: side", "backend", "broker", "all that ran, stolen", "records/batch")
	for _, side := range r.Sides(workload) {
		figure := func(of func(Latency) float64) string {
			return short(r.Median(workload, side, func(run Run) float64 { return of(latency(run)) }))
		}
		cores := func(process string) string {
			return short(r.Median(workload, side, func(run Run) float64 { return run.Cores(process) }))
		}
		p.row(side, figure(func(l Latency) float64 { return l.P50 }), figure(func(l Latency) float64 { return l.P99 }),
			figure(func(l Latency) float64 { return l.Max }),
			figure(func(l Latency) float64 { return l.CommitP50 })+", "+figure(func(l Latency) float64 { return l.CommitP99 }),
			short(r.Median(workload, side, Rate)), cores("side"), cores("backend"), cores("broker"),
			cores("machine")+", "+cores("stolen"), short(r.Median(workload, side, Batch)))
	}
}

// calls is the table of what a service calls.
func (r *Results) calls(p *page, workload string) {
	p.head("side", "events/s, each round", "/ bare SQL", "CPU of the program, µs an event")
	bare := map[string]string{EnqueueOne: Insert, EnqueueMany: Insert, Tx: SQL, BatchOf: SQLBatch}
	for _, side := range r.Sides(workload) {
		ratio, ok := r.Ratio(workload, side, bare[side], Rate)
		p.row(side, list(r.Values(workload, side, Rate)), interval(ratio, ok), short(r.Median(workload, side, Own)))
	}
}

// bars is the table of what was to be reached, where that was judged.
func (r *Results) bars(p *page) {
	if !r.Judged {
		return
	}
	p.line("\n## Bars\n")
	p.head("what", "bar", "measured", "interval", "")
	for _, b := range Bars() {
		median, low, high := b.Measure(r)
		p.row(b.What, b.String(), short(median), short(low)+" to "+short(high), string(b.Judge(r)))
	}
}

// list writes the figures of all rounds, in thousands where they are.
func list(values []float64) string {
	if len(values) == 0 {
		return "-"
	}
	unit, suffix := 1.0, ""
	if slices.Min(values) >= 10_000 {
		unit, suffix = 1000, " k"
	}
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = short(v / unit)
	}
	return strings.Join(words, ", ") + suffix
}

// interval writes a ratio with how sure it is.
func interval(ratio numbers.Ratio, ok bool) string {
	switch {
	case !ok || math.IsNaN(ratio.Median):
		return "-"
	case len(ratio.Pairs) < 3:
		return short(ratio.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", short(ratio.Median), short(ratio.Low), short(ratio.High))
}
