//go:build e2e

package saramagroup_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// around is how much of logs and topics is kept on both sides of a violation.
const around = 20 * time.Second

// logTime is how the lines of evidence begin.
const logTime = "2006-01-02T15:04:05.000Z07:00"

// saysOfTransactions has the brokers say what becomes of transactions, and of their offsets.
var saysOfTransactions = []string{
	"-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=debug",
	"-Dorg.slf4j.simpleLogger.log.org.apache.kafka.coordinator.group.OffsetMetadataManager=debug",
}

// markers logs the ends of transactions that were written into a partition more than once,
// which of them came when Kafka had taken the transaction for complete, so that the next one
// could be open, and how many were refused. Each transaction has an epoch of its own.
func (th *theatre) markers() {
	th.t.Helper()
	complete := make(map[string]time.Time)
	for _, r := range th.raw("__transaction_state") {
		var value kmsg.TxnMetadataValue
		if value.ReadFrom(r.Value) == nil && strings.HasPrefix(value.State.String(), "Complete") {
			complete[fmt.Sprint(value.ProducerID, "/", value.ProducerEpoch)] = r.Timestamp
		}
	}
	again, late, refused := 0, 0, 0
	for _, name := range []string{upper, "__consumer_offsets"} {
		written := make(map[string]time.Time)
		for _, r := range th.raw(name) {
			if !r.Attrs.IsControl() {
				continue
			}
			of := fmt.Sprint(r.ProducerID, "/", r.ProducerEpoch)
			first, twice := written[fmt.Sprint(r.Partition, " ", of)]
			written[fmt.Sprint(r.Partition, " ", of)] = r.Timestamp
			if !twice {
				continue
			}
			again++
			if r.Timestamp.After(complete[of]) {
				late++
			}
			th.t.Logf("a marker again: %s-%d@%d producer %s %s at %s, first at %s, complete at %s", name, r.Partition, r.Offset, of, payload(r),
				r.Timestamp.UTC().Format(logTime), first.UTC().Format(logTime), complete[of].UTC().Format(logTime))
		}
	}
	for i := range th.cluster.Addrs() {
		text, err := os.ReadFile(th.cluster.LogFile(i))
		require.NoError(th.t, err)
		refused += strings.Count(string(text), "permanently failed with error INVALID_PRODUCER_EPOCH")
	}
	th.t.Logf("markers: %d were written again, %d of them late; %d were refused", again, late, refused)
}

// explain logs what lies in Kafka, and what sarama said, about the partitions whose outputs
// are not its inputs: the outputs, the group's offsets, the states of the transactional id.
func (th *theatre) explain(input, output map[int32][]string) {
	th.t.Helper()
	for _, partition := range slices.Sorted(maps.Keys(input)) {
		seen := make(map[string]int)
		for _, v := range output[partition] {
			seen[v]++
		}
		var wrong, lacks []string
		for _, v := range input[partition] {
			switch {
			case seen[v] > 1:
				wrong = append(wrong, v)
			case seen[v] == 0:
				lacks = append(lacks, v)
			}
		}
		if len(wrong)+len(lacks) == 0 {
			continue
		}
		th.t.Log("partition", partition, "more than once", wrong, "lacks", lacks)
		th.evidence(partition, append(wrong, lacks...))
	}
}

func (th *theatre) evidence(partition int32, values []string) {
	th.t.Helper()
	from, to := time.Now(), time.Time{}
	outputs := th.raw(upper)
	for _, r := range outputs {
		if r.Partition == partition && slices.Contains(values, string(r.Value)) {
			if r.Timestamp.Before(from) {
				from = r.Timestamp
			}
			if r.Timestamp.After(to) {
				to = r.Timestamp
			}
		}
	}
	from, to = from.Add(-around), to.Add(around)
	id := fmt.Sprint("shouting:", topic, ":", partition)
	var lines []string
	tell := func(at time.Time, format string, args ...any) {
		if !at.Before(from) && !at.After(to) {
			lines = append(lines, at.UTC().Format(logTime)+" "+fmt.Sprintf(format, args...))
		}
	}
	producers := make(map[int64]bool)
	for _, r := range th.raw("__transaction_state") {
		var key kmsg.TxnMetadataKey
		var value kmsg.TxnMetadataValue
		if key.ReadFrom(r.Key) != nil || key.TransactionalID != id || value.ReadFrom(r.Value) != nil {
			continue
		}
		producers[value.ProducerID] = true
		tell(r.Timestamp, "__transaction_state-%d@%d epoch %d producer %d/%d %v %v", r.Partition, r.Offset, r.LeaderEpoch, value.ProducerID, value.ProducerEpoch, value.State, value.Topics)
	}
	for _, r := range outputs {
		if r.Partition == partition {
			tell(r.Timestamp, "%s-%d@%d epoch %d producer %d/%d %s", upper, partition, r.Offset, r.LeaderEpoch, r.ProducerID, r.ProducerEpoch, payload(r))
		}
	}
	for _, r := range th.raw("__consumer_offsets") {
		var key kmsg.OffsetCommitKey
		var value kmsg.OffsetCommitValue
		switch {
		case r.Attrs.IsControl():
			if producers[r.ProducerID] {
				tell(r.Timestamp, "__consumer_offsets-%d@%d epoch %d producer %d/%d %s", r.Partition, r.Offset, r.LeaderEpoch, r.ProducerID, r.ProducerEpoch, payload(r))
			}
		case len(r.Key) > 2 && binary.BigEndian.Uint16(r.Key) > 1: // of the group
			tell(r.Timestamp, "__consumer_offsets-%d@%d epoch %d the group's state, %d bytes", r.Partition, r.Offset, r.LeaderEpoch, len(r.Value))
		case key.ReadFrom(r.Key) == nil && key.Group == "shouting" && key.Partition == partition && value.ReadFrom(r.Value) == nil:
			tell(r.Timestamp, "__consumer_offsets-%d@%d epoch %d producer %d/%d offset %d", r.Partition, r.Offset, r.LeaderEpoch, r.ProducerID, r.ProducerEpoch, value.Offset)
		}
	}
	files, err := filepath.Glob(filepath.Join(th.trace, "sarama-*.log"))
	require.NoError(th.t, err)
	for _, name := range files {
		th.sayings(name, id, tell)
	}
	about := []string{id, fmt.Sprint("partition ", topic, "-", partition, " "), "INFO kafka.coordinator", " WARN ", " ERROR "}
	for producer := range producers {
		about = append(about, fmt.Sprint("producer id ", producer, " "), fmt.Sprint("producer id ", producer, "."))
	}
	for i := range th.cluster.Addrs() {
		th.brokerSayings(i, about, tell)
	}
	slices.Sort(lines)
	th.t.Log("evidence about " + id + ":\n" + strings.Join(lines, "\n"))
}

// sayings tells the lines of sarama's log that name a transactional id.
func (th *theatre) sayings(name, id string, tell func(at time.Time, format string, args ...any)) {
	f, err := os.Open(name)
	require.NoError(th.t, err)
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		first, rest, _ := strings.Cut(lines.Text(), " ")
		at, err := time.Parse(logTime, strings.TrimPrefix(first, "time="))
		if err == nil && strings.Contains(rest, "["+id+"]") {
			tell(at, "%s %s", strings.TrimSuffix(filepath.Base(name), ".log"), rest)
		}
	}
}

// brokerSayings tells the lines of a broker's log with one of these words.
func (th *theatre) brokerSayings(i int, about []string, tell func(at time.Time, format string, args ...any)) {
	f, err := os.Open(th.cluster.LogFile(i))
	require.NoError(th.t, err)
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		const layout = "2006-01-02 15:04:05.000"
		at := strings.Index(lines.Text(), "20")
		if at < 0 || len(lines.Text()) < at+len(layout) {
			continue
		}
		when, err := time.ParseInLocation(layout, lines.Text()[at:at+len(layout)], time.Local)
		if err != nil {
			continue
		}
		if slices.ContainsFunc(about, func(word string) bool { return strings.Contains(lines.Text(), word) }) {
			tell(when, "broker %d %s", i+1, lines.Text()[at+len(layout):])
		}
	}
}

func payload(r *kgo.Record) string {
	if !r.Attrs.IsControl() {
		return string(r.Value)
	}
	var key kmsg.ControlRecordKey
	if err := key.ReadFrom(r.Key); err != nil {
		return err.Error()
	}
	return key.Type.String()
}

// raw reads all of a topic, with its markers.
func (th *theatre) raw(name string) (records []*kgo.Record) {
	th.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(th.cluster.Addrs()...), kgo.ConsumeTopics(name), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MaxVersions(kversion.V2_8_0()))
	require.NoError(th.t, err)
	defer client.Close()
	left := endsOf(th.t, client, name, false)
	maps.DeleteFunc(left, func(_ int32, end int64) bool { return end == 0 })
	for len(left) > 0 {
		fetches := client.PollFetches(th.t.Context())
		require.NoError(th.t, th.t.Context().Err())
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, r)
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return records
}
