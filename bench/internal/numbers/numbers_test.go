package numbers_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/bench/internal/numbers"
)

func TestQuantile(t *testing.T) {
	require.True(t, math.IsNaN(numbers.Median(nil)))
	require.InDelta(t, 3, numbers.Median([]float64{3}), 0)
	require.InDelta(t, 2.5, numbers.Median([]float64{4, 1, 3, 2}), 1e-9)
	require.InDelta(t, 99, numbers.Quantile(upTo(101), 0.99), 1e-9)
	values := []float64{2, 1}
	numbers.Median(values)
	require.Equal(t, []float64{2, 1}, values, "what was given is left in its order")
}

// upTo is 0, 1, … n-1.
func upTo(n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = float64(i)
	}
	return values
}

// A quantile lies between the least and the greatest, and does not fall with its share.
func TestQuantilesAreOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 50).Draw(t, "values")
		a, b := rapid.Float64Range(0, 1).Draw(t, "a"), rapid.Float64Range(0, 1).Draw(t, "b")
		low, high := numbers.Quantile(values, min(a, b)), numbers.Quantile(values, max(a, b))
		if low > high || low < numbers.Quantile(values, 0) || high > numbers.Quantile(values, 1) {
			t.Fatalf("quantiles %g and %g of %v are %g and %g", a, b, values, low, high)
		}
	})
}

func TestPairComparesRoundByRound(t *testing.T) {
	// The machine was three times as fast in the second round, for both.
	r, ok := numbers.Pair([]float64{10, 30, 11}, []float64{20, 60, 20})
	require.True(t, ok)
	require.Equal(t, []float64{0.5, 0.5, 0.55}, r.Pairs)
	require.InDelta(t, 0.5, r.Median, 1e-9)
	require.GreaterOrEqual(t, r.Low, 0.5)
	require.LessOrEqual(t, r.High, 0.55)
	again, _ := numbers.Pair([]float64{10, 30, 11}, []float64{20, 60, 20})
	require.Equal(t, r, again, "the same figures give the same interval")
}

func TestPairLeavesOutWhatWasNotMeasured(t *testing.T) {
	r, ok := numbers.Pair([]float64{1, math.NaN(), 3}, []float64{0, 1, 2})
	require.True(t, ok)
	require.Equal(t, []float64{1.5}, r.Pairs)
	_, ok = numbers.Pair(nil, []float64{1})
	require.False(t, ok)
}
