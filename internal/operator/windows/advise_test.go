package windows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/consumerdb"
)

func TestAdviceIsGivenGroupByGroup(t *testing.T) {
	const ms = int64(time.Hour / time.Millisecond)
	gone := time.Now()
	report := adviseOn(
		[]consumerdb.ListWindowsRow{
			{ConsumerGroup: "billing", Class: "*", WindowMs: 24 * ms}, {ConsumerGroup: "billing", Class: "Pay*", WindowMs: 4 * ms},
			{ConsumerGroup: "mail", Class: "*", WindowMs: 24 * ms}, {ConsumerGroup: "old", Class: "*", WindowMs: ms, RetiredAt: &gone},
		},
		[]consumerdb.RedeliveriesOfGroupsRow{
			{ConsumerGroup: "billing", EventType: "PayIn", AgeLog2: 0, Seen: 5, OldestMs: 1500}, {ConsumerGroup: "billing", EventType: "PayIn", AgeLog2: 13, Seen: 1, OldestMs: 3 * ms},
			{ConsumerGroup: "billing", EventType: "PayOut", AgeLog2: 0, Seen: 2, OldestMs: 1000}, {ConsumerGroup: "mail", EventType: "Sent", AgeLog2: 1, Seen: 1, OldestMs: 2000},
			{ConsumerGroup: "old", EventType: "Sent", AgeLog2: 20, Seen: 1, OldestMs: 300 * ms},
		},
		[]consumerdb.ReplayLettersRow{
			{ConsumerGroup: "billing", EventType: "PayIn", Letters: 2, OldestMs: 30 * ms}, {ConsumerGroup: "billing", EventType: "PayOut", Letters: 1, OldestMs: 50 * ms},
			{ConsumerGroup: "mail", EventType: "", Letters: 1, OldestMs: 30 * ms},
		})
	require.Equal(t, &Advice{Windows: []ClassAdvice{
		{Group: "billing", Class: "*", Window: "1d", Oldest: "0s", Recommended: "1d", Ages: []Age{}},
		{
			Group: "billing", Class: "Pay*", Window: "4h", Seen: 8, Oldest: "3h", EventType: "PayIn", TooSmall: true, Recommended: "8h",
			Ages: []Age{{"2s", 7}, {"4h33m4s", 1}}, Replays: 3, OldestReplay: "2d2h",
		},
		{Group: "mail", Class: "*", Window: "1d", Seen: 1, Oldest: "2s", EventType: "Sent", Recommended: "1d", Ages: []Age{{"4s", 1}}, Replays: 1, OldestReplay: "1d6h"},
	}}, report)
}
