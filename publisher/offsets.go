package publisher

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
	wires "github.com/onceward/onceward/internal/wire"
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
//
// An offset that is held back for more looks than bound is ErrUnstableOffsetCommit; 0: it
// is waited for.
func (t *Transactional) fetch(bound int) (Position, bool, error) {
	w := t.wire
	unstable, failures := 0, 0
	for {
		pos, found, err := fetchOffset(t.txn.group, t.config)
		switch {
		case err == nil:
			return pos, found, nil
		case errors.Is(err, sarama.ErrUnstableOffsetCommit):
			if unstable++; bound > 0 && unstable > bound {
				return Position{}, false, err
			}
			if unstable == unstableNotice {
				t.settings.Logger.Warn("the checkpoint is held back by an open transaction, or by one of which a coordinator has lost the end (KAFKA-20634, brokers before 4.3.1: then a person has to end it, ADR 35); waiting until that ends",
					"group", t.config.Group, "topic", t.config.Topic)
			}
		case failures == fetchTries || !passing(err):
			return Position{}, false, asFenced(fmt.Errorf("read the checkpoint of group %q: %w: %s", t.config.Group, err, t.advise(err)), err)
		default:
			failures++
		}
		if !w.Pause(backoff.After(unstable+failures, fetchBackoff, fetchCeiling)) {
			return Position{}, false, fmt.Errorf("read the checkpoint of group %q: %w", t.config.Group, errors.Join(err, wires.ErrCut))
		}
	}
}

// fetchOffset asks the group's coordinator once.
func fetchOffset(group *coordinator, tx TransactionConfig) (pos Position, found bool, err error) {
	if !tx.faults.unprobed {
		err := group.ask(func(conn *sarama.Broker) (sarama.KError, error) { return probe(conn, group.link.Config, tx) })
		if err != nil {
			return Position{}, false, err
		}
	}
	err = group.ask(func(conn *sarama.Broker) (sarama.KError, error) {
		request := &sarama.OffsetFetchRequest{
			Version: stableVersion, ConsumerGroup: tx.Group, RequireStable: !tx.faults.untilQuiet,
		}
		request.AddPartition(tx.Topic, checkpointPartition)
		response, err := conn.FetchOffset(request)
		if err != nil {
			return 0, err
		}
		var refusal sarama.KError
		pos, found, refusal = readOffset(response, tx.Topic)
		return refusal, nil
	})
	return pos, found, err
}

// probe writes an offset that says nothing.
func probe(conn *sarama.Broker, config *sarama.Config, tx TransactionConfig) (sarama.KError, error) {
	request := sarama.NewOffsetCommitRequest(config, tx.Group)
	request.AddBlock(tx.Topic, probePartition, 0, 0, "")
	response, err := conn.CommitOffset(request)
	if err != nil {
		return 0, err
	}
	refusal, told := response.Errors[tx.Topic][probePartition]
	if !told {
		return 0, sarama.ErrIncompleteResponse
	}
	return refusal, nil
}

// readOffset reads the answer. A group that nobody has heard of has no
// checkpoint: Kafka says so with an offset of -1, others with an error.
func readOffset(response *sarama.OffsetFetchResponse, topic string) (pos Position, found bool, refusal sarama.KError) {
	switch block := response.GetBlock(topic, checkpointPartition); {
	case response.Err == sarama.ErrGroupIDNotFound:
		return pos, false, sarama.ErrNoError
	case response.Err != sarama.ErrNoError:
		return pos, false, response.Err
	case block == nil:
		return pos, false, sarama.ErrNetworkException // incomplete, which no broker says of itself
	case block.Err != sarama.ErrNoError || block.Offset < 0:
		return pos, false, block.Err
	default:
		return Position{Order: uint64(block.Offset), Meta: block.Metadata}, true, sarama.ErrNoError
	}
}
