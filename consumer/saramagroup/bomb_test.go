package saramagroup_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// bombBatch is a batch of records of so many zeros each, packed as well as zstd
// can.
func bombBatch(t *testing.T, records, zeros int) []byte {
	t.Helper()
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	require.NoError(t, err)
	writeZeros(t, w, records, zeros)
	return batchOf(4, records, packed.Bytes())
}

// gzipBatch is the same by gzip: sarama keeps zstd's decoders, and their
// channels, for the process, which bubbles must not share.
func gzipBatch(t *testing.T, records, zeros int) []byte {
	t.Helper()
	var packed bytes.Buffer
	writeZeros(t, gzip.NewWriter(&packed), records, zeros)
	return batchOf(1, records, packed.Bytes())
}

// writeZeros writes records of so many zeros each, and closes.
func writeZeros(t *testing.T, w io.WriteCloser, records, zeros int) {
	t.Helper()
	chunk := make([]byte, 1<<20)
	for i := range records {
		var head []byte
		head = append(head, 0, 0)                      // attributes, timestamp
		head = binary.AppendVarint(head, int64(i))     // offset
		head = append(head, 2, byte(i))                // key
		head = binary.AppendVarint(head, int64(zeros)) // value
		size := binary.AppendVarint(nil, int64(len(head)+zeros+1))
		_, err := w.Write(append(size, head...))
		require.NoError(t, err)
		for left := zeros; left > 0; left -= len(chunk) {
			_, err := w.Write(chunk[:min(left, len(chunk))])
			require.NoError(t, err)
		}
		_, err = w.Write([]byte{0}) // headers
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
}

// batchOf is a batch of packed records, as a producer writes it.
func batchOf(codec int16, records int, packed []byte) []byte {
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: codec, LastOffsetDelta: int32(records - 1), FirstTimestamp: time.Now().UnixMilli(),
		MaxTimestamp: time.Now().UnixMilli(), ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(records), Records: packed,
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// produceRaw writes one batch to the first partition as it is.
func produceRaw(t *testing.T, client *kgo.Client, raw []byte) {
	t.Helper()
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = raw // of partition 0
	to := kmsg.NewProduceRequestTopic()
	to.Topic, to.Partitions = topic, append(to.Partitions, part)
	request := kmsg.NewPtrProduceRequest()
	request.Acks, request.TimeoutMillis, request.Topics = -1, 10000, append(request.Topics, to)
	for _, broker := range client.DiscoveredBrokers() {
		answer, err := broker.Request(t.Context(), request)
		require.NoError(t, err)
		err = kerr.ErrorForCode(answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
		if !errors.Is(err, kerr.NotLeaderForPartition) {
			require.NoError(t, err)
			return
		}
	}
	require.Fail(t, "no leader of the partition")
}

// produceGood writes n ordinary messages, each a batch of its own.
func produceGood(t *testing.T, client *kgo.Client, partition int32, n int) {
	t.Helper()
	for range n {
		require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: partition, Key: []byte("k"), Value: []byte("v")}).FirstErr())
	}
}

// bombed is what a group in a process of its own has made of a topic.
type bombed struct {
	finished map[string]int // topic/partition@offset
	letters  []string
	peak     int // of its memory, MiB
}

// consumeAlone runs a member in a process of its own until it has finished so
// many messages.
func consumeAlone(t *testing.T, brokers []string, messages, letters int) bombed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), "ONCEWARD_BOMB_BROKERS="+strings.Join(brokers, ","))
	child.Stderr = t.Output()
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	got := bombed{finished: make(map[string]int)}
	lines := bufio.NewScanner(out)
	for (len(got.finished) < messages || len(got.letters) < letters) && lines.Scan() {
		what, text, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "finished":
			got.finished[text]++
		case "unreadable":
			got.letters = append(got.letters, text)
		}
	}
	require.NoError(t, lines.Err())
	require.NoError(t, in.Close())
	for lines.Scan() {
		if text, found := strings.CutPrefix(lines.Text(), "peak "); found {
			got.peak, err = strconv.Atoi(text)
			require.NoError(t, err)
		}
	}
	require.NoError(t, child.Wait(), "%d of %d messages, %d of %d letters", len(got.finished), messages, len(got.letters), letters)
	return got
}

// alone is the process of consumeAlone: it ends with its standard input, and
// says what its runtime had at most from the system. (Not what the system says:
// that counts what the race detector keeps beside each byte.)
func alone(brokers string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	err := saramagroup.Run(ctx, strings.Split(brokers, ","), printer{newHandler(nil)}, saramagroup.Config{
		Topics: []string{topic}, Insecure: true, RetryMin: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	fmt.Println("peak", memory.Sys>>20)
	return err
}

// printer says what becomes of messages.
type printer struct{ *handler }

func (printer) HandleRecord(_ context.Context, rec consumer.Record) (consumer.Outcome, error) {
	fmt.Println("finished", rec.Source)
	return consumer.Processed, nil
}

func (printer) KeepUnreadable(_ context.Context, u consumer.Unreadable) error {
	fmt.Println("unreadable", u.From, u.Until)
	return nil
}

// bombTopic fills two partitions of one broker: in the first are batches that
// unpack to far too much, alone, side by side, and with a message between them,
// and many that unpack to nearly as much as is allowed.
func bombTopic(t *testing.T, brokers []string) (messages int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxVersions(kversion.V3_6_0()), kgo.ProducerLinger(0))
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.Ping(t.Context()))
	produceGood(t, client, 0, 5) // 0 to 4
	produceGood(t, client, 1, 50)
	large := bombBatch(t, 6, 200<<20)
	t.Logf("a batch of %d bytes unpacks to %d MiB", len(large), 6*200)
	produceRaw(t, client, large)    // 5 to 10
	produceGood(t, client, 0, 2)    // 11, 12
	small := bombBatch(t, 3, 8<<20) // more than the limit
	produceRaw(t, client, small)    // 13 to 15
	produceGood(t, client, 0, 1)    // 16
	produceRaw(t, client, small)    // 17 to 19
	produceRaw(t, client, small)    // 20 to 22
	produceGood(t, client, 0, 1)    // 23
	half := bombBatch(t, 1, saramagroup.DefaultMaxUnpacked/2)
	for range 60 {
		produceRaw(t, client, half) // 24 to 83
	}
	produceGood(t, client, 0, 3) // 84 to 86
	produceGood(t, client, 1, 50)
	return 87 - 6 - 9 + 100
}

// TestBomb: batches that unpack to far more than their size cost neither the
// process its memory, nor any other message its delivery.
func TestBomb(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, topic))
	require.NoError(t, err)
	defer cluster.Close()
	provesBombs(t, cluster.ListenAddrs())
}

func provesBombs(t *testing.T, brokers []string) {
	t.Helper()
	messages := bombTopic(t, brokers)
	got := consumeAlone(t, brokers, messages, 4)
	require.Len(t, got.finished, messages)
	for at, n := range got.finished {
		require.Equal(t, 1, n, at)
	}
	require.Equal(t, []string{"orders/0@5 11", "orders/0@13 16", "orders/0@17 20", "orders/0@20 23"}, got.letters)
	t.Logf("memory of the process at its peak: %d MiB", got.peak)
	require.Positive(t, got.peak)
	require.LessOrEqual(t, got.peak, 256, "MiB")
}
