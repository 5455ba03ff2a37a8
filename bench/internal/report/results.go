package report

import (
	"math"
	"slices"
	"time"

	"github.com/onceward/onceward/bench/internal/numbers"
)

// Results are all of a run.
type Results struct {
	Began   time.Time     `json:"began"`
	Took    time.Duration `json:"took_ns"`
	Machine Machine       `json:"machine"`
	// Setup says what was measured, in the order in which a reader wants it: versions, sizes.
	Setup []Fact `json:"setup"`
	Runs  []Run  `json:"runs"`
	// Notes are what a reader has to know: what was left out and why.
	Notes []string `json:"notes,omitempty"`
	// Ahead are the workloads that were still to come when this was written.
	Ahead []string `json:"ahead,omitempty"`
	// Judged: this run was long enough to judge bars.
	Judged bool `json:"judged"`
	// Another is the program that the side again was, where that was another build.
	Another string `json:"another,omitempty"`
}

// Machine is where it ran.
type Machine struct {
	System string  `json:"system"`
	Cores  int     `json:"cores"`
	Busy   bool    `json:"busy"`       // with something else
	Used   float64 `json:"used_cores"` // by others, before anything was started
}

// Fact is a name with its value.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Run is one measurement of one side. What was not measured is nil.
type Run struct {
	Workload string `json:"workload"`
	Side     string `json:"side"`
	Round    int    `json:"round"` // from 0
	// Point is how far what a curve is about had grown; 0: no curve.
	Point   int     `json:"point,omitempty"`
	Events  int     `json:"events"`
	Seconds float64 `json:"seconds"` // from the first event to the last, at the sink
	// CPU is what an event cost each process, in microseconds, by its name: "side" is the side's
	// own, "backend" the process of PostgreSQL that serves it (a walsender, but for polling),
	// "broker" Kafka; "machine" is all that ran, and what other virtual machines took away, which is
	// "stolen".
	CPU map[string]float64 `json:"cpu_us,omitempty"`
	// Batch is how many records stood in a batch of the topic, on average.
	Batch *float64 `json:"records_per_batch,omitempty"`
	// Memory is the most that the side had resident, in MiB.
	Memory  *float64 `json:"rss_mib,omitempty"`
	Latency *Latency `json:"latency,omitempty"`
}

// Latency is in milliseconds.
type Latency struct {
	P50 float64 `json:"p50_ms"` // from the moment when the producer knew of its commit until a consumer had the event
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
	// Of the commit itself, which waits for the disk.
	CommitP50 float64 `json:"commit_p50_ms"`
	CommitP99 float64 `json:"commit_p99_ms"`
}

// Rate is in events per second; it is not a number where no time was measured.
func (r Run) Rate() float64 {
	if r.Seconds <= 0 {
		return math.NaN()
	}
	return float64(r.Events) / r.Seconds
}

// Cores is how many cores a process kept busy.
func (r Run) Cores(process string) float64 { return r.cpu(process) * r.Rate() / 1e6 }

func (r Run) cpu(process string) float64 {
	if us, ok := r.CPU[process]; ok {
		return us
	}
	return math.NaN()
}

// Total is what an event cost all three processes, in microseconds; not a number where one was not seen.
func (r Run) Total() float64 { return r.cpu("side") + r.cpu("backend") + r.cpu("broker") }

// Figure takes one figure out of a run; it is not a number where that was not measured.
type Figure func(Run) float64

// The figures of a run.
var (
	Rate   Figure = Run.Rate
	Total  Figure = Run.Total
	Own    Figure = func(r Run) float64 { return r.cpu("side") }
	Batch  Figure = func(r Run) float64 { return value(r.Batch) }
	Memory Figure = func(r Run) float64 { return value(r.Memory) }
	// RelayAndBroker are the cores that both kept busy.
	RelayAndBroker Figure = func(r Run) float64 { return r.Cores("side") + r.Cores("broker") }

	P50 Figure = func(r Run) float64 { return latency(r).P50 }
	P99 Figure = func(r Run) float64 { return latency(r).P99 }
)

// paces are how many events a second the workloads have that run at one.
var paces = map[string]float64{Trickle: 50, Steady: 2000}

// inTime is a figure of a run whose writers kept their pace; otherwise it is none: less is easier.
func (r Run) inTime(figure float64) float64 {
	if pace := paces[r.Workload]; pace > 0 && !(r.Rate() >= 0.97*pace) {
		return math.NaN()
	}
	return figure
}

func value(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

func latency(r Run) Latency {
	if r.Latency == nil {
		return Latency{math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	}
	return *r.Latency
}

// Workloads lists the workloads in the order in which they were measured.
func (r *Results) Workloads() (names []string) {
	for _, run := range r.Runs {
		if !slices.Contains(names, run.Workload) {
			names = append(names, run.Workload)
		}
	}
	return names
}

// Sides lists the sides of a workload in the order of its first round.
func (r *Results) Sides(workload string) (names []string) {
	for _, run := range r.Runs {
		if run.Workload == workload && !slices.Contains(names, run.Side) {
			names = append(names, run.Side)
		}
	}
	return names
}

// of is a figure of the runs of one side.
func of(workload, side string, figure Figure) Figure {
	return func(run Run) float64 {
		if run.Workload != workload || run.Side != side {
			return math.NaN()
		}
		return figure(run)
	}
}

// Values returns a figure of each round of a side that has it, in their order.
func (r *Results) Values(workload, side string, figure Figure) (values []float64) {
	figure = of(workload, side, figure)
	for _, run := range r.Runs {
		if v := figure(run); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return values
}

// Median is that of [Results.Values]; not a number when there is none.
func (r *Results) Median(workload, side string, figure Figure) float64 {
	return numbers.Median(r.Values(workload, side, figure))
}

// Ratio compares two sides of a workload in one figure, round by round.
func (r *Results) Ratio(workload, over, under string, figure Figure) (numbers.Ratio, bool) {
	return r.pair(of(workload, over, figure), of(workload, under, figure))
}

// pair compares two figures round by round. A round in which no run has one of them is left out.
func (r *Results) pair(over, under Figure) (numbers.Ratio, bool) {
	var overs, unders []float64
	for _, run := range r.Runs {
		for len(overs) <= run.Round {
			overs, unders = append(overs, math.NaN()), append(unders, math.NaN())
		}
		if v := over(run); !math.IsNaN(v) {
			overs[run.Round] = v
		}
		if v := under(run); !math.IsNaN(v) {
			unders[run.Round] = v
		}
	}
	return numbers.Pair(overs, unders)
}
