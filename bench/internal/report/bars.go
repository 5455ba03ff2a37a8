package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/onceward/onceward/bench/internal/numbers"
)

// Bar is what a figure has to reach.
type Bar struct {
	What    string
	Measure func(*Results) (median, low, high float64) // not numbers: not measured
	Most    float64                                    // 0: no upper bound
	Least   float64                                    // 0: no lower bound
	// Steady bars hold on a busy machine, too: what an event costs, and how many records share
	// a batch. Rates and times say nothing there.
	Steady bool
}

// Verdict says whether a bar is met.
type Verdict string

// The verdicts.
const (
	Met        Verdict = "met"        // the median reaches it
	Undecided  Verdict = "undecided"  // the median does not, its interval does: so many rounds cannot tell
	Missed     Verdict = "missed"     // neither does
	Unmeasured Verdict = "unmeasured" // there is no figure
	Unjudged   Verdict = "unjudged"   // the machine was busy, and the figure hangs on that
)

// Bars are all of them.
func Bars() []Bar {
	return []Bar{
		{What: "drain, single: relay / ceiling", Measure: ratioOf(Single, Idempotent, Ceiling), Least: 1.1},
		{What: "drain, bulk: relay / ceiling", Measure: ratioOf(Bulk, Idempotent, Ceiling), Least: 0.8},
		{What: "drain, single: relay / Debezium tuned", Measure: ratioOf(Single, Idempotent, DebeziumTuned), Least: 5},
		{What: "drain, single: exactly-once / idempotent", Measure: ratioOf(Single, ExactlyOnce, Idempotent), Least: 0.9},
		{What: "drain, bulk: exactly-once / idempotent", Measure: ratioOf(Bulk, ExactlyOnce, Idempotent), Least: 0.9},
		{What: "relay CPU, single, µs an event", Measure: figureOf(Single, Idempotent, Own), Most: 9, Steady: true},
		{What: "relay CPU, bulk, µs an event", Measure: figureOf(Bulk, Idempotent, Own), Most: 7, Steady: true},
		{What: "relay CPU, single: relay / reader", Measure: ratioIn(Single, Idempotent, Reader, Own), Most: 2.5, Steady: true},
		{What: "relay CPU, bulk: relay / reader", Measure: ratioIn(Bulk, Idempotent, Reader, Own), Most: 2.5, Steady: true},
		{What: "beside eight hogs: records a batch", Measure: figureOf(Hogs, Idempotent, Batch), Least: 100, Steady: true},
		{What: "beside eight hogs: CPU of relay, backend and broker, µs an event", Measure: figureOf(Hogs, Idempotent, Total), Most: 40, Steady: true},
		{What: "trickle: p50, ms", Measure: figureOf(Trickle, Idempotent, P50), Most: 2.5},
		{What: "trickle: p99, ms", Measure: figureOf(Trickle, Idempotent, P99), Most: 6},
		{What: "trickle: p99 / Debezium tuned", Measure: ratioIn(Trickle, Idempotent, DebeziumTuned, P99), Most: 0.2},
		{What: "trickle: p99 / Debezium default", Measure: ratioIn(Trickle, Idempotent, DebeziumDefault, P99), Most: 0.02},
		{What: "2,000/s, idempotent: p50, ms", Measure: figureOf(Steady, Idempotent, P50), Most: 5},
		{What: "2,000/s, idempotent: p99, ms", Measure: figureOf(Steady, Idempotent, P99), Most: 20},
		{What: "2,000/s, idempotent: CPU of relay and broker, cores", Measure: figureOf(Steady, Idempotent, RelayAndBroker), Most: 0.35, Steady: true},
		{What: "2,000/s, exactly-once: p50, ms", Measure: figureOf(Steady, ExactlyOnce, P50), Most: 100},
		{What: "2,000/s, exactly-once: p99, ms", Measure: figureOf(Steady, ExactlyOnce, P99), Most: 120},
		{What: "relay memory, MiB", Measure: memory, Most: 80, Steady: true},
		{What: "Enqueue: time / bare INSERT", Measure: ratioOf(Enqueue, Insert, EnqueueOne), Most: 1.1},
		{What: "EnqueueMany of 100: events/s / Enqueue", Measure: ratioOf(Enqueue, EnqueueMany, EnqueueOne), Least: 10},
		{What: "consumer, one by one / bare SQL", Measure: ratioOf(Consume, Tx, SQL), Least: 0.8},
		{What: "consumer, Batch of 100 / one by one", Measure: ratioOf(Consume, BatchOf, Tx), Least: 8},
		{What: "consumer, Batch of 100 / bare SQL", Measure: ratioOf(Consume, BatchOf, SQLBatch), Least: 0.9},
		{What: "consumer, one by one: beside most claims / beside fewest", Measure: grown(GrowthClaims, Tx), Least: 0.9},
		{What: "consumer, Batch of 100: beside most claims / beside fewest", Measure: grown(GrowthClaims, BatchOf), Least: 0.9},
	}
}

func ratioOf(workload, over, under string) func(*Results) (float64, float64, float64) {
	return ratioIn(workload, over, under, Rate)
}

func ratioIn(workload, over, under string, figure Figure) func(*Results) (float64, float64, float64) {
	return func(r *Results) (float64, float64, float64) {
		return ends(r.Ratio(workload, over, under, func(run Run) float64 { return run.inTime(figure(run)) }))
	}
}

// ends are the median of a ratio and its interval; not numbers where there is none.
func ends(found numbers.Ratio, ok bool) (median, low, high float64) {
	if !ok {
		return math.NaN(), math.NaN(), math.NaN()
	}
	return found.Median, found.Low, found.High
}

// figureOf is the median of a figure, with the interval of it.
func figureOf(workload, side string, figure Figure) func(*Results) (float64, float64, float64) {
	return func(r *Results) (float64, float64, float64) {
		values := r.Values(workload, side, func(run Run) float64 { return run.inTime(figure(run)) })
		low, high := numbers.Interval(values)
		return numbers.Median(values), low, high
	}
}

// grown compares the rates of a side at the ends of a curve, round by round.
func grown(workload, side string) func(*Results) (float64, float64, float64) {
	return func(r *Results) (float64, float64, float64) {
		points := curve{r, workload}.points()
		if len(points) < 2 {
			return math.NaN(), math.NaN(), math.NaN()
		}
		end := func(point int) Figure { return of(workload, side, at(point, Rate)) }
		return ends(r.pair(end(points[len(points)-1]), end(points[0])))
	}
}

// memory is the peak, once there is a run of each workload, or a curve.
func memory(r *Results) (float64, float64, float64) {
	most, seen := peak(r), r.Workloads()
	missing := func(workload string) bool { return !slices.Contains(seen, workload) }
	partial := slices.ContainsFunc([]string{Single, Bulk, Mixed, Large, Hogs, Trickle, Steady}, missing)
	if partial && !slices.ContainsFunc(seen, Grows) {
		most = math.NaN()
	}
	return most, most, most
}

// peak is the greatest of all rounds: memory has no luck.
func peak(r *Results) float64 {
	var all []float64
	for _, workload := range r.Workloads() {
		for _, side := range []string{Idempotent, Again, ExactlyOnce} {
			if side == Again && r.Another != "" {
				continue
			}
			all = append(all, r.Values(workload, side, Memory)...)
		}
	}
	return numbers.Quantile(all, 1)
}

// Judge says whether the bar is met.
func (b Bar) Judge(r *Results) Verdict {
	median, low, high := b.Measure(r)
	switch {
	case math.IsNaN(median):
		return Unmeasured
	case r.Machine.Busy && !b.Steady:
		return Unjudged
	case b.reached(median):
		return Met
	case b.reached(low), b.reached(high):
		return Undecided
	}
	return Missed
}

func (b Bar) reached(figure float64) bool {
	return (b.Least == 0 || figure >= b.Least) && (b.Most == 0 || figure <= b.Most)
}

// String is the bar as a reader sees it.
func (b Bar) String() string {
	if b.Least > 0 {
		return fmt.Sprintf("≥ %g", b.Least)
	}
	return fmt.Sprintf("≤ %g", b.Most)
}
