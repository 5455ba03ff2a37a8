package report

import (
	"fmt"
	"math"
	"strings"
)

// The workloads.
const (
	Single  = "single"  // drain a backlog of transactions of one event
	Bulk    = "bulk"    // drain a backlog of transactions of hundreds
	Mixed   = "mixed"   // drain a backlog of transactions of 1 to 50 events, some rolled back
	Large   = "large"   // drain a backlog of payloads of 64 KiB
	Hogs    = "hogs"    // single, beside eight programs that want the CPU
	Trickle = "trickle" // one event each 20 ms
	Steady  = "steady"  // 2,000 events a second
	Enqueue = "enqueue" // the producer's side
	Consume = "consume" // the consumer's side
)

// The sides of the first seven.
const (
	Ceiling         = "ceiling"      // a walsender whose output is thrown away
	Reader          = "reader"       // ours, which publishes nothing
	Idempotent      = "idempotent"   // the relay
	Again           = "again"        // the relay in the same mode: the control
	ExactlyOnce     = "exactly-once" // the relay
	Polling         = "polling"      // a publisher that asks the table
	DebeziumTuned   = "debezium-tuned"
	DebeziumDefault = "debezium-default"
)

// The sides of Enqueue and Consume.
const (
	Insert      = "insert"  // bare SQL
	EnqueueOne  = "enqueue" // outbox.Enqueue
	EnqueueMany = "enqueue-many"
	SQL         = "sql"       // bare SQL of the shape of Tx
	SQLBatch    = "sql-batch" // bare SQL of the shape of Batch
	Tx          = "tx"
	BatchOf     = "batch"
)

// Line is the last line that a run prints. A figure that was not measured is a dash.
func (r *Results) Line() string {
	ratio := func(workload, over, under string) float64 {
		if found, ok := r.Ratio(workload, over, under, Rate); ok {
			return found.Median
		}
		return math.NaN()
	}
	figures := []struct {
		name string
		v    float64
	}{
		{"relay/ceiling", ratio(Single, Idempotent, Ceiling)},
		{"bulk/ceiling", ratio(Bulk, Idempotent, Ceiling)},
		{"relay/debezium", ratio(Single, Idempotent, DebeziumTuned)},
		{"eo/idempotent", ratio(Single, ExactlyOnce, Idempotent)},
		{"p50_ms", r.Median(Trickle, Idempotent, P50)},
		{"p99_ms", r.Median(Trickle, Idempotent, P99)},
		{"p99_2000_ms", r.Median(Steady, Idempotent, P99)},
		{"cpu_us", r.Median(Single, Idempotent, Own)},
		{"rss_mib", peak(r)},
	}
	words := []string{"bench:"}
	for _, f := range figures {
		words = append(words, f.name+"="+short(f.v))
	}
	return strings.Join(words, " ")
}

// short writes a figure with three digits that count, and what was not measured as a dash.
func short(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	case math.Abs(v) >= 0.1 || v == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
