package consumer_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

func TestClassesAreChecked(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "host=127.0.0.1 port=1") // is not asked
	require.NoError(t, err)
	defer pool.Close()
	for want, c := range map[string][]consumer.Class{
		`Pattern ""`:                     {{Window: time.Hour}},
		`Pattern "a*b"`:                  {{Pattern: "a*b", Window: time.Hour}},
		`Window 0s of "a"`:               {{Pattern: "a"}},
		`Window 1m0.0000005s`:            {{Pattern: "a", Window: time.Minute + 500}},
		`is shorter than its Bucket`:     {{Pattern: "a", Window: time.Hour, Bucket: 2 * time.Hour}},
		`Late "never" of "a"`:            {{Pattern: "a", Window: time.Hour, Late: "never"}},
		`Replay "never" of "a"`:          {{Pattern: "a", Window: time.Hour, Replay: "never"}},
		`Keyed "never" of "a"`:           {{Pattern: "a", Window: time.Hour, Keyed: "never"}},
		`want Keyed: consumer.ByArrival`: {{Pattern: "a", Window: time.Hour, Content: true}},
		`at most 744h0m0s of a class`:    {{Pattern: "a", Window: 31*24*time.Hour + time.Millisecond, Keyed: consumer.ByArrival}},
		`Classes[1]: Pattern "a" is th`:  {{Pattern: "a", Window: time.Hour}, {Pattern: "a", Window: time.Minute}},
	} {
		_, err := consumer.New(t.Context(), consumer.Config{Group: "g", DB: pool, Classes: c})
		require.ErrorContains(t, err, want)
	}
}
