package stream

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoute(t *testing.T) {
	for name, tc := range map[string]struct {
		facts
		want verdict
	}{
		"nothing is known of it":                    {facts{}, publish},
		"it has a letter":                           {facts{ended: true}, leave},
		"it is of a gap":                            {facts{covered: true}, leave},
		"what has ended waits for nothing":          {facts{ended: true, held: true, skipped: true, parked: true, unfit: true}, leave},
		"its lane is held":                          {facts{held: true}, hold},
		"a lane keeps its order, whatever is known": {facts{held: true, skipped: true, parked: true, unfit: true, halts: true}, hold},
		"a control waits with its lane":             {facts{control: true, held: true}, hold},
		"a control":                                 {facts{control: true}, carryOut},
		"an operator gave it up":                    {facts{skipped: true}, skip},
		"what is given up follows nobody":           {facts{skipped: true, parked: true}, skip},
		"what is given up is no poison":             {facts{skipped: true, unfit: true, halts: true}, skip},
		"what is given up waits for no route":       {facts{skipped: true, paused: true}, skip},
		"its aggregate is parked":                   {facts{parked: true}, follow},
		"what follows is not judged by itself":      {facts{parked: true, unfit: true, halts: true}, follow},
		"what follows waits for no route":           {facts{parked: true, paused: true}, follow},
		"it is no record":                           {facts{unfit: true}, letter},
		"it is no record, of a route that halts":    {facts{unfit: true, halts: true}, halt},
		"a replay that is no record halts nobody":   {facts{unfit: true, halts: true, replay: true}, letter},
		"what is no record waits for no route":      {facts{unfit: true, paused: true}, letter},
		"its route is paused":                       {facts{paused: true}, hold},
		"a route that would halt, and a fit event":  {facts{halts: true}, publish},
		"a replay":                      {facts{replay: true}, publish},
		"a replay of what was given up": {facts{replay: true, skipped: true}, skip},
		"a replay behind its lane":      {facts{replay: true, held: true}, hold},
	} {
		require.Equal(t, tc.want, route(tc.facts), name)
	}
}

// Whatever is known, an event is published only if nothing holds it up or ends it, and
// nothing overtakes in a lane that is held.
func TestRoutePublishesOnlyWhatNothingSpeaksAgainst(t *testing.T) {
	for bits := range 1 << 10 {
		bit := func(n int) bool { return bits&(1<<n) != 0 }
		f := facts{
			control: bit(0), replay: bit(1), ended: bit(2), covered: bit(3), held: bit(4), skipped: bit(5), parked: bit(6), unfit: bit(7), halts: bit(8), paused: bit(9),
		}
		against := f.control || f.ended || f.covered || f.held || f.skipped || f.parked || f.unfit || f.paused
		require.Equal(t, !against, route(f) == publish, "%+v", f)
		if f.held {
			require.Contains(t, []verdict{leave, hold}, route(f), "%+v", f)
		}
	}
}
