// Package numbers has what a benchmark says of a series of figures: medians, quantiles, and
// how sure a ratio is. Everything is pure.
package numbers

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Quantile returns the value below which the share q (0 to 1) of the values lies, between two
// neighbours in proportion. No value at all is NaN.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := min(max(q, 0), 1) * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

// Median is the quantile of one half.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Ratio is how many times as large one side's figure is as another's, over rounds in which both
// were measured one after the other.
type Ratio struct {
	Pairs  []float64 `json:"pairs"`  // one a round
	Median float64   `json:"median"` // of the pairs
	// Low and High bound the median in 95 of 100 draws of as many pairs (bootstrap). With fewer
	// than nine pairs they are the median itself.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// draws is how many times the bootstrap draws.
const draws = 2000

// Pair compares two series of one length, round by round. A round in which the second is zero,
// or either is not a number, is left out; without any other there is no ratio.
func Pair(over, under []float64) (Ratio, bool) {
	var r Ratio
	for i := range min(len(over), len(under)) {
		if p := over[i] / under[i]; !math.IsNaN(p) && !math.IsInf(p, 0) {
			r.Pairs = append(r.Pairs, p)
		}
	}
	if len(r.Pairs) == 0 {
		return Ratio{}, false
	}
	r.Median = Median(r.Pairs)
	r.Low, r.High = Interval(r.Pairs)
	return r, true
}

// enough is of how many values on an interval says something: of three, the luckiest alone would bound it.
const enough = 9

// Interval bounds the median in 95 of 100 draws of as many values. It draws with a seed of its
// own, so that the same values give the same interval. Of fewer than nine it is the median itself, of none not
// a number.
func Interval(values []float64) (low, high float64) {
	if len(values) < enough {
		median := Median(values)
		return median, median
	}
	dice := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // G404: a draw of figures needs no secrecy
	medians, draw := make([]float64, draws), make([]float64, len(values))
	for i := range medians {
		for j := range draw {
			draw[j] = values[dice.IntN(len(values))]
		}
		medians[i] = Median(draw)
	}
	return Quantile(medians, 0.025), Quantile(medians, 0.975)
}
