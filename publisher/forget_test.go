package publisher

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Names of topics come from rows, and those that are refused are forgotten when they
// are too many. An answer that comes late for such a one must not take the place of the
// topic of that name that is in use since: nobody would look after that one.
func TestALateAnswerForAForgottenTopicChangesNothing(t *testing.T) {
	w := &watcher{settings: &settings{Config: Config{Memory: new(Memory)}}, usable: map[string]*topic{}, nudged: map[*topic]struct{}{}}
	before, now, kept := &topic{name: "shop.late"}, &topic{name: "shop.late"}, &topic{name: "shop.order"}
	w.store(kept, topicState{partitions: 1})
	w.store(before, topicState{refused: &RouteError{Topic: "shop.late"}})
	w.nudged[before] = struct{}{}
	w.forget(map[string]*topic{"shop.late": before, "shop.order": kept})
	require.Empty(t, w.nudged)
	w.store(now, topicState{partitions: 1})
	w.store(before, topicState{partitions: 1})
	require.Same(t, now, w.find("shop.late"))
	require.Same(t, kept, w.find("shop.order"))
	w.store(kept, topicState{partitions: 1})
	require.Len(t, w.inUse(), 2)
}
