package publisher

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
)

const (
	// stableVersion is the first version of OffsetFetch with RequireStable.
	stableVersion = 7
	fetchBackoff  = 50 * time.Millisecond
	fetchCeiling  = time.Second
	// fetchTries bounds the errors in a row. An offset that is not stable is
	// none: it is waited for.
	fetchTries = 60
	// unstableNotice is how often an unstable offset is seen before it is said.
	unstableNotice = 10
)

// The partitions of the checkpoint topic. No record is ever written to them;
// they are names for the group's offsets.
const (
	checkpointPartition = 0 // of the position
	probePartition      = 1 // of the probe
	checkpointWidth     = 2
)

// fetch reads the checkpoint. With RequireStable the coordinator answers only
// when no transaction holds an offset back, so what it returns is the last word
// of everybody who was fenced. sarama's own calls do not ask for that.
//
// A coordinator answers from its memory, and one that has been deposed and does
// not know it yet, such as a broker that stood still, from an old one: it would
// show a position that another has replaced. So it has to write something first.
// A write is acknowledged by the in-sync replicas, and they follow the broker
// that leads. What was committed before the write, the writer has then; nothing
// is committed after it, because all others are fenced.
func (t *Transactional) fetch() (Position, bool, error) {
	client, w := t.publisher.client, t.publisher.wire
	unstable, failures := 0, 0
	for {
		pos, found, err := fetchOffset(client, t.config)
		switch {
		case err == nil:
			return pos, found, nil
		case errors.Is(err, sarama.ErrUnstableOffsetCommit):
			if unstable++; unstable == unstableNotice {
				t.settings.Logger.Warn("the checkpoint is held back by an open transaction of another producer on the same group; waiting until that ends",
					"group", t.config.Group, "topic", t.config.Topic)
			}
		case failures == fetchTries || !passing(err):
			return Position{}, false, asFenced(fmt.Errorf("read the checkpoint of group %q: %w: %s", t.config.Group, err, t.advise(err)), err)
		default:
			failures++
			_ = client.RefreshCoordinator(t.config.Group) // what is wrong with it, the next request says
		}
		if !w.pause(backoff.After(unstable+failures, fetchBackoff, fetchCeiling)) {
			return Position{}, false, fmt.Errorf("read the checkpoint of group %q: %w", t.config.Group, errors.Join(err, errCut))
		}
	}
}

// fetchOffset asks the group's coordinator once.
func fetchOffset(client sarama.Client, tx TransactionConfig) (Position, bool, error) {
	coordinator, err := client.Coordinator(tx.Group)
	if err != nil {
		return Position{}, false, err
	}
	broken := func(err error) (Position, bool, error) {
		_ = coordinator.Close() // it may be broken; the only error is that it is closed already
		return Position{}, false, err
	}
	if !tx.faults.unprobed {
		probe := sarama.NewOffsetCommitRequest(client.Config(), tx.Group)
		probe.AddBlock(tx.Topic, probePartition, 0, 0, "")
		written, err := coordinator.CommitOffset(probe)
		if err != nil {
			return broken(err)
		}
		refusal, told := written.Errors[tx.Topic][probePartition]
		switch {
		case !told:
			return Position{}, false, sarama.ErrIncompleteResponse
		case refusal != sarama.ErrNoError:
			return Position{}, false, refusal
		}
	}
	request := &sarama.OffsetFetchRequest{Version: stableVersion, ConsumerGroup: tx.Group,
		RequireStable: !tx.faults.untilQuiet}
	request.AddPartition(tx.Topic, checkpointPartition)
	response, err := coordinator.FetchOffset(request)
	if err != nil {
		return broken(err)
	}
	return readOffset(response, tx.Topic)
}

// readOffset reads the answer. A group that nobody has heard of has no
// checkpoint: Kafka says so with an offset of -1, others with an error.
func readOffset(response *sarama.OffsetFetchResponse, topic string) (Position, bool, error) {
	if errors.Is(response.Err, sarama.ErrGroupIDNotFound) {
		return Position{}, false, nil
	}
	if response.Err != sarama.ErrNoError {
		return Position{}, false, response.Err
	}
	block := response.GetBlock(topic, checkpointPartition)
	if block == nil {
		return Position{}, false, sarama.ErrIncompleteResponse
	}
	if block.Err != sarama.ErrNoError {
		return Position{}, false, block.Err
	}
	if block.Offset < 0 {
		return Position{}, false, nil
	}
	return Position{Order: uint64(block.Offset), Meta: block.Metadata}, true, nil
}

// passing reports whether an error of the fetch may be gone at the next try:
// anything but a refusal by the broker.
func passing(err error) bool {
	var refusal sarama.KError
	if !errors.As(err, &refusal) {
		return true
	}
	return slices.Contains([]sarama.KError{
		sarama.ErrOffsetsLoadInProgress, sarama.ErrConsumerCoordinatorNotAvailable, sarama.ErrNotCoordinatorForConsumer,
		sarama.ErrRequestTimedOut, sarama.ErrNetworkException, sarama.ErrUnstableOffsetCommit,
		// Of a topic that this broker has not heard of yet: it was there a moment ago.
		sarama.ErrUnknownTopicOrPartition,
	}, refusal)
}
