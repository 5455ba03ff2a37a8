//go:build e2e

package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/kafkaserver"
)

const shoutedPartitions = 6

// theatre is a cluster of real brokers behind a network with faults, with members of a
// Transform in processes of their own, and a producer of their input.
type theatre struct {
	t       *testing.T
	cluster *kafkaserver.Cluster
	network *kafkaproxy.Network
	defect  string
	trace   string // the folder of sarama's logs, empty for none
	dice    *rand.Rand
	members []*exec.Cmd
	client  *kgo.Client
	wrote   atomic.Int64
}

func newTheatre(t *testing.T, brokers int, defect string) *theatre {
	t.Helper()
	return newTheatreOf(t, brokers, defect, nil)
}

// newTheatreOf is newTheatre with settings of the brokers.
func newTheatreOf(t *testing.T, brokers int, defect string, settings map[string]string) *theatre {
	t.Helper()
	all := map[string]string{"group.min.session.timeout.ms": "1000", "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
	maps.Copy(all, settings)
	jvm := kafkaserver.DefaultJVM()
	if brokers > 1 { // for one, speed matters
		jvm = append(jvm, saysOfTransactions...)
	}
	th := &theatre{t: t, network: kafkaproxy.New(), defect: defect}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	th.dice = rand.New(rand.NewPCG(seed, 0))
	t.Cleanup(func() { require.NoError(t, th.network.Close()) })
	var err error
	th.cluster, err = kafkaserver.Start(t.Context(), kafkaserver.Options{
		Brokers:  brokers,
		JVM:      jvm,
		Settings: all,
		Advertise: func(_ int, address string) string {
			link, err := th.network.Add(t.Context(), address)
			require.NoError(t, err)
			return link.Addr()
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, th.cluster.Stop(context.Background())) })
	for _, name := range []string{topic, upper} {
		require.NoError(t, th.cluster.CreateTopic(t.Context(), name, shoutedPartitions, nil))
	}
	th.client, err = kgo.NewClient(kgo.SeedBrokers(th.cluster.Addrs()...), kgo.UnknownTopicRetries(-1), kgo.AlwaysRetryEOF(),
		kgo.MaxVersions(kversion.V2_8_0()))
	require.NoError(t, err)
	t.Cleanup(th.client.Close)
	_, _, err = th.client.ProducerID(t.Context()) // which it would not ask for again while a broker is away
	require.NoError(t, err)
	return th
}

// enter starts a member. It is killed at the test's end, if it is still there.
func (th *theatre) enter() *exec.Cmd {
	th.t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "ONCEWARD_SHOUT_BROKERS="+strings.Join(th.cluster.Addrs(), ","), "ONCEWARD_SHOUT_DEFECT="+th.defect,
		"ONCEWARD_SHOUT_TRACE="+th.trace)
	child.Stderr = th.t.Output()
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // sent at the end of the thread that started it
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- child.Start()
		<-th.t.Context().Done()
	}()
	require.NoError(th.t, <-started)
	th.t.Cleanup(func() {
		if child.ProcessState == nil {
			_ = child.Process.Kill()
			_ = child.Wait()
		}
	})
	return child
}

func (th *theatre) ends(i int, how syscall.Signal) {
	th.t.Helper()
	require.NoError(th.t, th.members[i].Process.Signal(how))
	err := th.members[i].Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		require.NoError(th.t, err, "by itself; a signal may have come before it was asked for")
	}
}

func (th *theatre) pause(least, most time.Duration) {
	select {
	case <-time.After(least + time.Duration(th.dice.Int64N(int64(most-least)))):
	case <-th.t.Context().Done():
	}
}

// write produces until done is closed, and returns when all is acknowledged.
func (th *theatre) write(done <-chan struct{}, rate int) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var all sync.WaitGroup
	for {
		select {
		case <-done:
			all.Wait()
			return
		case <-th.t.Context().Done(): // the test has failed
			return
		case <-tick.C:
		}
		n := th.wrote.Add(1)
		all.Add(1)
		th.client.Produce(th.t.Context(), &kgo.Record{Topic: topic, Key: fmt.Append(nil, "key-", n%40), Value: fmt.Append(nil, n)},
			func(_ *kgo.Record, err error) {
				defer all.Done()
				if err != nil && th.t.Context().Err() == nil {
					th.t.Errorf("produce %d: %v", n, err)
				}
			})
	}
}

// reads waits until a group has read the input to its end.
func (th *theatre) reads(group string, every time.Duration) {
	th.t.Helper()
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = group
	require.Eventually(th.t, func() bool {
		answer, err := request.RequestWith(th.t.Context(), th.client)
		if err != nil || answer.ErrorCode != 0 || len(answer.Topics) != 1 {
			return false
		}
		left, err := askEnds(th.t.Context(), th.client, topic, false)
		if err != nil { // a leader is on the move
			return false
		}
		maps.DeleteFunc(left, func(_ int32, end int64) bool { return end == 0 })
		for _, p := range answer.Topics[0].Partitions {
			if p.ErrorCode == 0 && p.Offset == left[p.Partition] {
				delete(left, p.Partition)
			}
		}
		return len(left) == 0
	}, 3*time.Minute, every, "the group does not get to the end")
}

// played returns the values of each partition in their order.
func (th *theatre) played(name string, isolation kgo.IsolationLevel) map[int32][]string {
	th.t.Helper()
	return readByPartition(th.t, th.cluster.Addrs(), name, isolation)
}

// compare finds where the outputs of a partition are not its inputs, each once and in
// order: both topics have as many partitions, and the same keys are in the same.
func compare(input, output map[int32][]string) error {
	for _, partition := range slices.Sorted(maps.Keys(input)) {
		in, out := input[partition], output[partition]
		for i := range max(len(in), len(out)) {
			switch {
			case i >= len(in):
				return fmt.Errorf("partition %d: %d outputs of %d inputs; the first too many is %s", partition, len(out), len(in), out[i])
			case i >= len(out):
				return fmt.Errorf("partition %d: %d outputs of %d inputs; the first that lacks is %s", partition, len(out), len(in), in[i])
			case in[i] != out[i]:
				return fmt.Errorf("partition %d: output %d is %s, want %s", partition, i, out[i], in[i])
			}
		}
	}
	return nil
}

// acts are what happens to the members and their Kafka, each once a round.
func (th *theatre) acts() map[string]func() {
	member := func() int { return th.dice.IntN(len(th.members)) }
	request := func(key kafkaproxy.Key, action kafkaproxy.Action) func() {
		return func() {
			fault := th.network.Inject(kafkaproxy.Fault{Key: key, Action: action, Times: 1 + th.dice.IntN(3)})
			th.pause(200*time.Millisecond, 3*time.Second) // longer than an answer is waited for, or not
			fault.Release()
		}
	}
	all := map[string]func(){
		"kill -9 a process": func() {
			i := member()
			th.ends(i, syscall.SIGKILL)
			th.pause(0, 2*time.Second)
			th.members[i] = th.enter()
		},
		"a process leaves and comes": func() {
			i := member()
			th.ends(i, syscall.SIGTERM)
			th.members[i] = th.enter()
		},
		"a process stands still for longer than its session": func() {
			i := member()
			require.NoError(th.t, th.members[i].Process.Signal(syscall.SIGSTOP))
			th.pause(4*time.Second, 6*time.Second)
			require.NoError(th.t, th.members[i].Process.Signal(syscall.SIGCONT))
		},
		"late EndTxn":             request(kafkaproxy.EndTxn, kafkaproxy.Late),
		"held EndTxn":             request(kafkaproxy.EndTxn, kafkaproxy.Hold),
		"lost answer of EndTxn":   request(kafkaproxy.EndTxn, kafkaproxy.DropReply),
		"late TxnOffsetCommit":    request(kafkaproxy.TxnOffsetCommit, kafkaproxy.Late),
		"late AddPartitions":      request(kafkaproxy.AddPartitionsToTxn, kafkaproxy.Late),
		"late Produce":            request(kafkaproxy.Produce, kafkaproxy.Late),
		"lost InitProducerID":     request(kafkaproxy.InitProducerID, kafkaproxy.DropReply),
		"all connections are cut": func() { th.network.Cut() },
		"a coordinator is killed": func() {
			i := th.coordinator()
			th.cluster.Kill(i)
			th.pause(0, 3*time.Second)
			require.NoError(th.t, th.cluster.StartBroker(th.t.Context(), i))
		},
	}
	only := regexp.MustCompile(os.Getenv("ACTS"))
	maps.DeleteFunc(all, func(name string, _ func()) bool { return !only.MatchString(name) })
	return all
}

// coordinator returns the broker that coordinates the group, or the transactions of one
// of the partitions.
func (th *theatre) coordinator() int {
	request := kmsg.NewPtrFindCoordinatorRequest()
	request.CoordinatorKey = "shouting"
	if th.dice.IntN(2) == 0 {
		request.CoordinatorKey, request.CoordinatorType = fmt.Sprint("shouting:", topic, ":", th.dice.IntN(shoutedPartitions)), 1
	}
	if answer, err := request.RequestWith(th.t.Context(), th.client); err == nil && answer.ErrorCode == 0 {
		return int(answer.NodeID) - 1
	}
	return th.dice.IntN(len(th.cluster.Addrs()))
}

// TestTransform: whatever happens to processes, network and coordinators, a reader of
// committed messages sees the output of each input record once, in order. A minute; with
// E2E_FULL=1 ten minutes. ACTS is what the names of the acts have to match:
// ACTS='coordinator|EndTxn' has more of these.
func TestTransform(t *testing.T) {
	lasts := time.Minute
	if os.Getenv("E2E_FULL") == "1" {
		lasts = 10 * time.Minute
	}
	th := newTheatre(t, 3, "")
	th.trace = t.TempDir()
	for range 3 {
		th.members = append(th.members, th.enter())
	}
	enough := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { th.write(enough, 300) })
	acts, played := th.acts(), make(map[string]int)
	for began, rounds := time.Now(), 0; time.Since(began) < lasts || rounds == 0; rounds++ {
		names := slices.Sorted(maps.Keys(acts))
		th.dice.Shuffle(len(names), func(a, b int) { names[a], names[b] = names[b], names[a] })
		for _, name := range names {
			if time.Since(began) >= lasts && rounds > 0 {
				break
			}
			t.Log("act:", name)
			acts[name]()
			played[name]++
			th.pause(100*time.Millisecond, 1500*time.Millisecond)
		}
	}
	th.network.Heal()
	close(enough)
	writer.Wait()
	th.reads("shouting", 100*time.Millisecond)
	for i := range th.members {
		th.ends(i, syscall.SIGTERM)
	}
	input, output := th.played(topic, kgo.ReadUncommitted()), th.played(upper, kgo.ReadCommitted())
	if err := compare(input, output); err != nil {
		th.explain(input, output)
		require.NoError(t, err)
	}
	th.markers()
	made := 0
	for _, values := range th.played(upper, kgo.ReadUncommitted()) {
		made += len(values)
	}
	t.Logf("%d records in, each out once and in order; %d outputs were made and not committed; %v", th.wrote.Load(), made-int(th.wrote.Load()), played)
}

// The checker finds what it is for: without rotation a late EndTxn commits half of a later
// transaction.
func TestTransformCatchesLateEndTxn(t *testing.T) {
	th := newTheatre(t, 1, "keep-producer")
	th.members = append(th.members, th.enter())
	enough := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { th.write(enough, 300) })
	for round := 1; ; round++ {
		require.LessOrEqual(t, round, 50, "no late EndTxn did harm")
		fault := th.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Late, Times: 1})
		require.Eventually(t, func() bool { return fault.Hits() == 1 }, patience, 10*time.Millisecond)
		th.pause(100*time.Millisecond, 200*time.Millisecond)
		fault.Release()
		th.pause(100*time.Millisecond, 500*time.Millisecond)
		output := th.played(upper, kgo.ReadCommitted())
		input := th.played(topic, kgo.ReadUncommitted()) // all that the output can be of
		for partition, in := range input {
			input[partition] = in[:min(len(output[partition]), len(in))] // the rest is on its way
		}
		if err := compare(input, output); err != nil {
			t.Log("round", round, "as it should be:", err)
			break
		}
	}
	close(enough)
	writer.Wait()
}
