package report

import (
	"fmt"
	"math"
	"slices"
)

// Growth is the name of all curves together.
const Growth = "growth"

// The curves are workloads, in each of which one thing grows.
const (
	GrowthBacklog     = "growth-backlog"     // drain more and more events
	GrowthClaims      = "growth-claims"      // apply events beside more and more claims
	GrowthPartitions  = "growth-partitions"  // drain into a topic with more and more partitions
	GrowthTopics      = "growth-topics"      // drain into more and more topics of one partition
	GrowthAggregates  = "growth-aggregates"  // drain the events of more and more aggregates
	GrowthTransaction = "growth-transaction" // drain larger and larger transactions
	GrowthDistance    = "growth-distance"    // drain to a broker that is further and further away
)

// Curves are all of them, in their order.
var Curves = []string{
	GrowthBacklog, GrowthClaims, GrowthPartitions, GrowthTopics, GrowthAggregates, GrowthTransaction, GrowthDistance,
}

// Grows reports whether a workload is a curve.
func Grows(workload string) bool { return slices.Contains(Curves, workload) }

// axes are what grows.
var axes = map[string]string{
	GrowthBacklog: "events in the backlog", GrowthClaims: "claims of before", GrowthPartitions: "partitions", GrowthTopics: "topics",
	GrowthAggregates: "aggregates", GrowthTransaction: "events in a transaction", GrowthDistance: "ms to the broker and back",
}

// at is a figure of the runs at one point of a curve.
func at(point int, figure Figure) Figure {
	return func(run Run) float64 {
		if run.Point != point {
			return math.NaN()
		}
		return figure(run)
	}
}

// points lists those of a curve, the least first.
func (r *Results) points(workload string) (points []int) {
	for _, run := range r.Runs {
		if run.Workload == workload {
			points = append(points, run.Point)
		}
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// growth is the table of a curve, and how much its ends differ.
func (r *Results) growth(p *page, workload string) {
	points := r.points(workload)
	p.head(axes[workload], "side", "events/s, each round", "own CPU, µs an event", "backend", "broker", "records/batch", "memory, MiB")
	for _, side := range r.Sides(workload) {
		for _, point := range points {
			median := func(figure Figure) string { return short(r.Median(workload, side, at(point, figure))) }
			p.row(amount(point), side, list(r.Values(workload, side, at(point, Rate))), median(Own),
				median(func(run Run) float64 { return run.cpu("backend") }), median(func(run Run) float64 { return run.cpu("broker") }),
				median(Batch), median(Memory))
		}
	}
	p.line("")
	first, last := points[0], points[len(points)-1]
	for _, side := range r.Sides(workload) {
		times := func(figure Figure) string {
			return short(r.Median(workload, side, at(last, figure)) / r.Median(workload, side, at(first, figure)))
		}
		p.line("- %s, at %s over at %s: own CPU an event %s, events/s %s", side, amount(last), amount(first), times(Own), times(Rate))
	}
}

// plots draws a curve, by the names of the files: what an event costs, and how many come.
func (r *Results) plots(workload string) map[string]string {
	cost := Plot{Title: titles[workload], Unit: "CPU in µs an event", Axis: axes[workload], Points: r.points(workload)}
	rate := cost
	rate.Unit, rate.Lines = "events/s", r.lines(workload, "", Rate)
	cost.Lines = r.lines(workload, "", Own)
	if workload != GrowthClaims { // whose program is all that is watched
		cost.Lines = append(cost.Lines, r.lines(workload, " + backend + broker", Total)...)
	}
	return map[string]string{workload + "-cpu.svg": cost.SVG(), workload + "-rate.svg": rate.SVG()}
}

// lines are a figure of a curve, a line for each side.
func (r *Results) lines(workload, suffix string, figure Figure) (rows []Row) {
	for _, side := range r.Sides(workload) {
		row := Row{Label: side + suffix}
		for _, point := range r.points(workload) {
			row.Values = append(row.Values, r.Median(workload, side, at(point, figure)))
		}
		rows = append(rows, row)
	}
	return rows
}

// amount writes a point in thousands or millions where it has some.
func amount(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return fmt.Sprintf("%g M", float64(n)/1e6)
	case n >= 1_000 && n%100 == 0:
		return fmt.Sprintf("%g k", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}
