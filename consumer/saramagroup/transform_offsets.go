package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
)

// confirmed is behind which offset of each partition Kafka has confirmed a commit to this
// process, whatever its sessions. It is safe for concurrent use.
type confirmed struct{ offsets sync.Map } // by place

func (c *confirmed) set(at place, offset int64) { c.offsets.Store(at, offset) }

// of returns -1 for none, as Kafka does.
func (c *confirmed) of(at place) int64 {
	if offset, ok := c.offsets.Load(at); ok {
		return offset.(int64) //nolint:errcheck // set stores nothing else
	}
	return -1
}

// wentBackError says that the group's offset lies before one that Kafka has confirmed.
type wentBackError struct {
	group     string
	at        place
	is        int64
	confirmed int64
}

// Error implements error.
func (e *wentBackError) Error() string {
	return fmt.Sprintf("the offset of group %q in %s/%d is %d, and Kafka had confirmed %d to this process: the outputs of what lies between "+
		"are there, and would be made again; if somebody has set the offset back on purpose, start the process again; if not, stop all members of "+
		"the group, set the offset to %d (kafka-consumer-groups.sh --reset-offsets --to-offset %d), and look for copies among the outputs",
		e.group, e.at.topic, e.at.partition, e.is, e.confirmed, e.confirmed, e.confirmed)
}

// free ends the transactions that hold back offsets of the group.
func (t *transformer) free() error {
	held, err := t.heldBack()
	if err != nil || len(held) == 0 {
		return err
	}
	if err := t.connect(); err != nil {
		return err
	}
	defer t.disconnect()
	ctx, cancel := context.WithTimeout(context.Background(), t.cfg.DrainTimeout)
	defer cancel()
	for _, at := range held {
		p := newTxn(t, at, nil)
		if err := p.open(ctx); err != nil {
			return err
		}
		p.leave(ctx)
		t.log.Info("ended a transaction that a member had left in the middle of its commit", "topic", at.topic, "partition", at.partition)
	}
	return nil
}

// A member that is well holds an offset back for the milliseconds of a commit. One that is
// held back at each of so many looks is of nobody who goes on.
const (
	heldLooks = 10
	heldPause = 50 * time.Millisecond
)

// heldBack returns the partitions whose offset a transaction holds back at every look.
func (t *transformer) heldBack() ([]place, error) {
	held, err := t.places()
	for look := 1; err == nil && len(held) > 0; look++ {
		if held, err = t.heldOf(held); look == heldLooks {
			break
		}
		sleep(context.Background(), heldPause)
	}
	return held, err
}

// places returns the partitions of all topics.
func (t *transformer) places() (all []place, err error) {
	for _, topic := range t.cfg.Topics {
		partitions, err := t.questions.Partitions(topic)
		if err != nil {
			return nil, fmt.Errorf("list the partitions of %q: %w", topic, err)
		}
		for _, partition := range partitions {
			all = append(all, place{topic, partition})
		}
	}
	return all, nil
}

// heldOf returns those of some partitions whose offset is held back now.
func (t *transformer) heldOf(some []place) (held []place, err error) {
	answer, err := t.stable(t.questions, some)
	for _, at := range some {
		block := answer.GetBlock(at.topic, at.partition)
		if block != nil && block.Err == sarama.ErrUnstableOffsetCommit {
			held = append(held, at)
		}
	}
	return held, err
}

// stableVersion is the first version of OffsetFetch with RequireStable.
const stableVersion = 7

// stable asks for offsets of the group which no open transaction will change.
func (t *transformer) stable(client sarama.Client, of []place) (*sarama.OffsetFetchResponse, error) {
	coordinator, err := client.Coordinator(t.group)
	if err != nil {
		return new(sarama.OffsetFetchResponse), fmt.Errorf("find the group's coordinator: %w", err)
	}
	request := &sarama.OffsetFetchRequest{Version: stableVersion, ConsumerGroup: t.group, RequireStable: true}
	for _, at := range of {
		request.AddPartition(at.topic, at.partition)
	}
	answer, err := coordinator.FetchOffset(request)
	if err == nil && answer.Err != sarama.ErrNoError {
		err = answer.Err
	}
	if err != nil {
		return new(sarama.OffsetFetchResponse), fmt.Errorf("ask %s for the group's offsets: %w", coordinator.Addr(), err)
	}
	return answer, nil
}

// verify makes sure that a partition begins at the offset that is the last word of all
// who had its transactional id before: sarama read it before they were fenced, and perhaps
// from a coordinator that has been deposed and did not know.
func (t *transformer) verify(ctx context.Context, at place, begins int64) error {
	return t.do(ctx, func() error {
		for try := 1; ; try++ {
			offset, err := t.last(at)
			known := t.confirmed.of(at)
			switch {
			case err == nil && offset < known: // or its coordinator does not know yet
				err = &wentBackError{t.group, at, offset, known}
			case err == nil && offset != begins && (offset >= 0 || begins >= 0):
				return fmt.Errorf("the session begins at offset %d, and the group's is %d", begins, offset)
			}
			if err == nil || try == verifyTries {
				return err
			}
			_ = t.client.RefreshCoordinator(t.group) // what is wrong with it, the next request says
			t.wire.Pause(backoff.After(try, produceRetryMin, txnRetryMax))
		}
	})
}

// has reports whether the group has an offset that was committed. The new producer has its
// id, so Kafka says that the commit's markers are written: an offset that is still held back
// has lost its marker.
func (t *transformer) has(ctx context.Context, at place, offset int64) (has bool, err error) {
	err = t.do(ctx, func() error {
		for try := 1; ; try++ {
			got, err := t.last(at)
			has = err == nil && got >= offset
			lost := err == nil || errors.Is(err, sarama.ErrUnstableOffsetCommit)
			if has || lost && try >= lostTries {
				return nil
			}
			if try == verifyTries {
				return fmt.Errorf("look whether the group has the offset: %w", err)
			}
			_ = t.client.RefreshCoordinator(t.group)
			t.wire.Pause(backoff.After(try, produceRetryMin, txnRetryMax))
		}
	})
	return has, err
}

// lostTries are how often a coordinator is asked, which may have been deposed, before an
// offset is taken for lost.
const lostTries = 4

// verifyTries are less than ten seconds, after which the session is begun anew.
const verifyTries = 12

// last returns the group's offset of a partition, less than 0 for none.
func (t *transformer) last(at place) (int64, error) {
	answer, err := t.stable(t.client, []place{at})
	if err != nil {
		return 0, err
	}
	block := answer.GetBlock(at.topic, at.partition)
	switch {
	case block == nil:
		return 0, sarama.ErrIncompleteResponse
	case block.Err != sarama.ErrNoError:
		return 0, block.Err
	}
	return block.Offset, nil
}
