package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		"the group, see in the outputs how far they go, and set the offset: kafka-consumer-groups.sh --bootstrap-server BROKER --group %s --topic %s:%d --reset-offsets --to-offset %d --execute",
		e.group, e.at.topic, e.at.partition, e.is, e.confirmed, e.group, e.at.topic, e.at.partition, e.confirmed)
}

// free ends the transactions that hold back offsets of the group.
func (t *transformer) free() error {
	if err := t.connect(); err != nil {
		return err
	}
	defer t.disconnect()
	ctx, cancel := context.WithTimeout(context.Background(), heldTimeout+t.cfg.DrainTimeout)
	defer cancel()
	held, err := t.heldBack(ctx)
	for _, at := range held {
		p := newTxn(t, at, nil)
		if err := p.take(ctx); err != nil {
			return err
		}
		p.close(ctx)
		log := t.log.With("topic", at.topic, "partition", at.partition)
		freed, err := t.has(ctx, at, -1)
		switch {
		case err != nil:
			return err
		case freed:
			log.Info("ended a transaction that a member had left in the middle of its commit")
		default:
			log.Error("the offset is held back though no transaction is open: a coordinator that was deposed has lost the end of one " +
				"(KAFKA-20634, in brokers before 4.3.1); the partition stands still, and with it the others of its member, until its offset is set by hand: " +
				"\"When the end of a transaction is lost\" in docs/transform.md")
		}
	}
	return err
}

// A member that is well holds an offset back for the milliseconds of a commit. One that is
// held back at each of so many looks, in half a second, is of nobody who goes on. The
// timeout leaves a new coordinator the time to answer.
const (
	heldLooks   = 6
	heldTimeout = 5 * time.Second
)

// heldBack returns the partitions whose offset a transaction holds back at every look.
func (t *transformer) heldBack(ctx context.Context) ([]place, error) {
	var held []place
	for _, topic := range t.cfg.Topics {
		partitions, err := t.questions.Partitions(topic)
		if err != nil {
			return nil, fmt.Errorf("list the partitions of %q: %w", topic, err)
		}
		for _, partition := range partitions {
			held = append(held, place{topic, partition})
		}
	}
	looks := 0
	if err := t.ask(ctx, func(int) (bool, error) {
		answer, err := t.stable(held)
		if err == nil {
			looks++
			held = slices.DeleteFunc(held, func(at place) bool {
				block := answer.GetBlock(at.topic, at.partition)
				return block == nil || block.Err != sarama.ErrUnstableOffsetCommit
			})
		}
		return looks == heldLooks || len(held) == 0, err
	}); err != nil {
		return nil, err
	}
	return held, nil
}

// stableVersion is the first version of OffsetFetch with RequireStable.
const stableVersion = 7

// stable asks for offsets of the group which no open transaction will change.
func (t *transformer) stable(of []place) (*sarama.OffsetFetchResponse, error) {
	request := &sarama.OffsetFetchRequest{Version: stableVersion, ConsumerGroup: t.group, RequireStable: true}
	for _, at := range of {
		request.AddPartition(at.topic, at.partition)
	}
	return fetchOffsets(t.client, request)
}

// ask asks the group's coordinator, who may be another one each time, until the question
// is done with, or was put so often that the session had better begin anew.
func (t *transformer) ask(ctx context.Context, question func(try int) (done bool, err error)) error {
	return t.do(ctx, func() error {
		for try := 1; ; try++ {
			done, err := question(try)
			if done || try == askTries {
				return err
			}
			_ = t.client.RefreshCoordinator(t.group) // what is wrong with it, the next request says
			t.wire.Pause(backoff.After(try, produceRetryMin, txnRetryMax))
		}
	})
}

// verify makes sure that a partition begins at the offset that is the last word of all
// who had its transactional id before: sarama read it before they were fenced, and perhaps
// from a coordinator that has been deposed and did not know.
func (t *transformer) verify(ctx context.Context, at place, begins int64) error {
	return t.ask(ctx, func(int) (bool, error) {
		offset, err := t.last(at)
		known := t.confirmed.of(at)
		switch {
		case err != nil:
		case offset < known: // or its coordinator does not know yet
			err = &wentBackError{t.group, at, offset, known}
		case offset != begins && (offset >= 0 || begins >= 0):
			return true, fmt.Errorf("the session begins at offset %d, and the group's is %d", begins, offset)
		case offset < 0:
			err = t.beginsAtTheOldest(at)
		}
		return err == nil, err
	})
}

// beginsAtTheOldest warns where a partition without an offset has something to begin with.
func (t *transformer) beginsAtTheOldest(at place) error {
	oldest, err := t.client.GetOffset(at.topic, at.partition, sarama.OffsetOldest)
	end, endErr := t.client.GetOffset(at.topic, at.partition, sarama.OffsetNewest)
	if err = errors.Join(err, endErr); err == nil && oldest < end {
		t.log.Warn("the group has no offset of the partition: outputs are made of all that is there; they are made again if the offset "+
			"was there and has expired (offsets.retention.minutes) or was deleted", "topic", at.topic, "partition", at.partition, "oldest", oldest, "end", end)
	}
	return err
}

// has reports whether the group has an offset that was committed. The new producer has its
// id, so Kafka says that the commit's markers are written: an offset that is still held back
// has lost its marker.
func (t *transformer) has(ctx context.Context, at place, offset int64) (bool, error) {
	has := false
	if err := t.ask(ctx, func(try int) (bool, error) {
		got, err := t.last(at)
		has = err == nil && got >= offset
		if has || try >= lostTries && (err == nil || errors.Is(err, sarama.ErrUnstableOffsetCommit)) {
			return true, nil
		}
		return false, err
	}); err != nil {
		return false, fmt.Errorf("look whether the group has the offset: %w", err)
	}
	return has, nil
}

// lostTries are how often a coordinator is asked, which may have been deposed, before an
// offset is taken for lost.
const lostTries = 4

// askTries are less than ten seconds.
const askTries = 12

// last returns the group's offset of a partition, less than 0 for none.
func (t *transformer) last(at place) (int64, error) {
	answer, err := t.stable([]place{at})
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
