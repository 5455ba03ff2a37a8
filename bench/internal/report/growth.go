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

// curve is one of them in the results.
type curve struct {
	results  *Results
	workload string
}

// points lists those that were measured, the least first.
func (c curve) points() (points []int) {
	for _, run := range c.results.Runs {
		if run.Workload == c.workload {
			points = append(points, run.Point)
		}
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// sides lists those that were measured.
func (c curve) sides() []string { return c.results.Sides(c.workload) }

// median is a figure of a side at a point.
func (c curve) median(side string, point int, figure Figure) float64 {
	return c.results.Median(c.workload, side, at(point, figure))
}

// table is the curve in figures, and how much its ends differ.
func (c curve) table(p *page) {
	points := c.points()
	p.head(axes[c.workload], "side", "events/s, each round", "own CPU, µs an event", "backend", "broker", "records/batch", "memory, MiB")
	for _, side := range c.sides() {
		for _, point := range points {
			median := func(figure Figure) string { return short(c.median(side, point, figure)) }
			p.row(amount(point), side, list(c.results.Values(c.workload, side, at(point, Rate))), median(Own),
				median(func(run Run) float64 { return run.cpu("backend") }), median(func(run Run) float64 { return run.cpu("broker") }),
				median(Batch), median(Memory))
		}
	}
	p.line("")
	first, last := points[0], points[len(points)-1]
	for _, side := range c.sides() {
		times := func(figure Figure) string {
			return short(c.median(side, last, figure) / c.median(side, first, figure))
		}
		p.line("- %s, at %s over at %s: own CPU an event %s, events/s %s", side, amount(last), amount(first), times(Own), times(Rate))
	}
}

// plots draws it, by the names of the files: what an event costs, and how many come.
func (c curve) plots() map[string]string {
	cost := Plot{Title: titles[c.workload], Unit: "CPU in µs an event", Axis: axes[c.workload], Points: c.points()}
	rate := cost
	rate.Unit, rate.Lines = "events/s", c.lines("", Rate)
	cost.Lines = c.lines("", Own)
	if c.workload != GrowthClaims { // whose program is all that is watched
		cost.Lines = append(cost.Lines, c.lines(" + backend + broker", Total)...)
	}
	return map[string]string{c.workload + "-cpu.svg": cost.SVG(), c.workload + "-rate.svg": rate.SVG()}
}

// lines are a figure of each side.
func (c curve) lines(suffix string, figure Figure) (rows []Row) {
	for _, side := range c.sides() {
		row := Row{Label: side + suffix}
		for _, point := range c.points() {
			row.Values = append(row.Values, c.median(side, point, figure))
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
