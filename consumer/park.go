package consumer

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
)

// LetterPolicy is a choice for the events behind one that became a dead letter.
type LetterPolicy string

// Policies for the events behind a dead letter.
const (
	// LetterGoOn applies later events of the aggregate without it.
	LetterGoOn LetterPolicy = "go-on"
	// LetterPark keeps later records of its topic with its record key as letters in the state "parked". They
	// are handled, in the order of their offsets, once the letter was redriven or discarded; the first that
	// fails is open, and the rest waits behind that one. A replay parks nothing, because it may have been
	// applied before. All members of a group must have the same choice. Each delivery reads one row more.
	LetterPark LetterPolicy = "park"
)

// Bounds of what is parked: see [ErrParkedFull].
const (
	maxParkedLetters = 10_000 // behind a key
	maxParkedKeys    = 1_000  // of a group
)

// ErrParkedFull: 10,000 records wait behind a dead letter, or 1,000 record keys of
// the group are parked. The partition stops until letters are settled.
var ErrParkedFull = errors.New("no more letters can be parked; redrive or discard the group's open dead letters (`outboxctl dead list --side consumer`)")

// A parked row is locked before anything that is claimed: a delivery reads it FOR
// SHARE, a release FOR UPDATE, so that while one handles a letter of the key no
// event of it is applied or parked, and both see what the other has committed.

// ordered reports whether the item is one of a sequence that a letter holds up.
// One that was accepted has begun before; one of a letter is released.
func (it *item) ordered() bool {
	return it.redrive == nil && !it.ev.accepted && it.ev.Source.Topic != "" && it.ev.Record().Key != nil
}

// lookForParked finds out which items belong to parked keys, and keeps it so.
func (ls *letters) lookForParked(ctx context.Context, tx pgx.Tx, items []*item) error {
	if ls.retry.OnLetter != LetterPark {
		return nil
	}
	given := consumerdb.ParkedAmongParams{ConsumerGroup: ls.group}
	var asked []*item
	for _, it := range items {
		if it.ordered() {
			given.Numbers = append(given.Numbers, strconv.Itoa(len(asked)))
			given.Topics, given.KeyHashes = append(given.Topics, it.ev.Source.Topic), append(given.KeyHashes,
				consumerdb.KeyHash(it.ev.Record().Key))
			id := "" // of what cannot be read, and by content: recall knows which letters speak of that
			if !it.ev.Key.IsZero() && !it.content {
				id = it.id.String()
			}
			given.ClaimIds, given.Fingerprints = append(given.ClaimIds, id), append(given.Fingerprints,
				hex.EncodeToString(it.fingerprint[:]))
			asked = append(asked, it)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	rows, err := consumerdb.New(tx).ParkedAmong(ctx, given)
	switch {
	case sqlstate.Is(err, "55P03") && len(items) > 1:
		return errAlone
	case sqlstate.Is(err, "55P03"):
		return ErrInProgress // a release is at the key
	case err != nil:
		return fmt.Errorf("look for parked keys: %w", err)
	}
	for _, row := range rows {
		it := asked[row.N]
		it.parked, it.discarded = it.parked || row.Parked, it.discarded || !row.Parked
	}
	return nil
}

// behindOf reports whether the item, a later one, has to wait behind another that is a letter.
func (it *item) behindOf(other *item) bool {
	return it.ordered() && it.ev.Source.Topic == other.ev.Source.Topic &&
		bytes.Equal(it.ev.Record().Key, other.ev.Record().Key)
}

// overtaken reports whether another member has made a letter of an item since it was looked for parked
// keys: its claim was waited for, and what is behind the item is to be looked for anew.
func (ls *letters) overtaken(items []*item) bool {
	for i, it := range items {
		if ls.retry.OnLetter != LetterPark || it.claim.Outcome != DeadLettered || it.parked {
			continue
		}
		behind := func(next *item) bool { return next.fresh() && !next.parked && next.behindOf(it) }
		if slices.ContainsFunc(items[i+1:], behind) {
			return true
		}
	}
	return false
}

func (it *item) heldBack() {
	it.claim, it.behind = Claim{Outcome: DeadLettered}, it.parked && !it.discarded
}

var errBehind = errors.New("an earlier record of its key is a dead letter; it is handled when that is redriven or discarded")

// parks reports whether later records of the key have to wait for a letter. Events from no
// topic have no order.
func (ls *letters) parks(l *letter) bool {
	return ls.retry.OnLetter == LetterPark && l.record.Key != nil && l.reason != reasonReplay &&
		l.reason != reasonUnreadable && !strings.HasPrefix(l.record.Source.Topic, fromMark)
}

// park parks the key of a letter that was written, or counts the letters behind
// the one that has parked it.
func (ls *letters) park(ctx context.Context, tx pgx.Tx, l *letter) error {
	if !ls.parks(l) {
		return nil
	}
	q, topic := consumerdb.New(tx), l.record.Source.Topic
	// The one that it waits for may have been there, and decided, so that it parked nothing.
	row, err := q.ParkKey(ctx, consumerdb.ParkKeyParams{ConsumerGroup: ls.group, Topic: topic, RecordKey: l.record.Key})
	if err != nil {
		return fmt.Errorf("park the record's key: %w", err)
	}
	if !l.parked {
		return ls.full(ctx, l, row.Made > 0 && int(row.Keys) >= ls.mostKeys)
	}
	n, err := q.CountParked(ctx, consumerdb.CountParkedParams{ConsumerGroup: ls.group, Topic: topic,
		RecordKey: l.record.Key, RowLimit: int32(ls.most) + 1})
	if err != nil {
		return fmt.Errorf("count parked letters: %w", err)
	}
	return ls.full(ctx, l, int(n) > ls.most)
}

func (ls *letters) full(ctx context.Context, l *letter, full bool) error {
	if !full {
		return nil
	}
	ls.log.ErrorContext(ctx, "the partition stops", "source", l.record.Source.String(), "error", ErrParkedFull)
	return &infrastructureError{ErrParkedFull}
}

// release handles the letters that are parked and whose turn has come: what they
// were behind is settled. It is the second half of [Router.Redrive].
func (d redriver) release(ctx context.Context, limit int) (done int, err error) {
	after := Source{Partition: -1, Offset: -1}
	for done < limit && ctx.Err() == nil {
		row, takeErr := consumerdb.New(d.processor.db).NextParkedLetter(ctx, consumerdb.NextParkedLetterParams{
			ConsumerGroup: d.processor.group, Topic: after.Topic, KafkaPartition: after.Partition,
			KafkaOffset: after.Offset,
		})
		if errors.Is(takeErr, pgx.ErrNoRows) {
			break
		}
		if takeErr != nil {
			return done, errors.Join(err, &infrastructureError{fmt.Errorf("release: take a letter: %w", takeErr)})
		}
		l := requested(row)
		made := d.decide(ctx, &l)
		if made.err != nil && err == nil {
			err = fmt.Errorf("release: %w", made.err)
		}
		if made.decided {
			done++ // and the next of the key may have its turn
		} else {
			after = l.source()
		}
	}
	return done, errors.Join(err, d.unparkEmpty(ctx))
}

// unparkEmpty lets keys go on whose last letter an operator has discarded.
func (d redriver) unparkEmpty(ctx context.Context) error {
	rows, err := consumerdb.New(d.processor.db).EmptyParked(ctx, d.processor.group)
	if err != nil {
		return &infrastructureError{fmt.Errorf("release: look for keys without letters: %w", err)}
	}
	for _, row := range rows {
		if err := d.unparkOne(ctx, row.Topic, row.RecordKey); err != nil {
			return fmt.Errorf("release a key of topic %s without letters: %w", row.Topic, err)
		}
	}
	return nil
}

func (d redriver) unparkOne(ctx context.Context, topic string, key []byte) error {
	tx, err := d.processor.windows.begin(ctx)
	if err != nil {
		return err
	}
	defer transaction.Rollback(ctx, tx)
	if _, err := d.processor.letters.lockKey(ctx, tx, topic, key); err != nil {
		return err
	}
	if err := d.processor.letters.unpark(ctx, tx, topic, key); err != nil {
		return err
	}
	return d.steps.commit(ctx, tx)
}

// lockKey locks a key, if it is parked, for as long as the transaction takes.
func (ls *letters) lockKey(ctx context.Context, tx pgx.Tx, topic string, key []byte) (parked bool, err error) {
	_, err = consumerdb.New(tx).LockParked(ctx, consumerdb.LockParkedParams{ConsumerGroup: ls.group, Topic: topic,
		RecordKey: key})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case sqlstate.Is(err, "55P03"):
		return false, ErrInProgress
	case err != nil:
		return false, fmt.Errorf("lock the parked key: %w", err)
	}
	return true, nil
}

// queued reports whether other letters of its key may wait for this one.
func (l *requested) queued() bool { return l.RecordKey != nil && reason(l.Reason) != reasonReplay }

// inTurn locks the key of a letter, and refuses it while another one of the key comes first.
func (ls *letters) inTurn(ctx context.Context, tx pgx.Tx, l *requested) error {
	if !l.queued() {
		return nil
	}
	parked, err := ls.lockKey(ctx, tx, l.Topic, l.RecordKey)
	if err != nil || !parked {
		return err
	}
	first, err := consumerdb.New(tx).FirstOfKey(ctx,
		consumerdb.FirstOfKeyParams{ConsumerGroup: ls.group, Topic: l.Topic, RecordKey: l.RecordKey})
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil &&
		(first.KafkaPartition != l.KafkaPartition || first.KafkaOffset != l.KafkaOffset):
		return errDecided
	case err != nil:
		return fmt.Errorf("read the first letter of the key: %w", err)
	}
	return nil
}

// unpark lets a key go on, unless a letter of it waits.
func (ls *letters) unpark(ctx context.Context, tx pgx.Tx, topic string, key []byte) error {
	if err := consumerdb.New(tx).UnparkKey(ctx, consumerdb.UnparkKeyParams{ConsumerGroup: ls.group, Topic: topic,
		RecordKey: key}); err != nil {
		return fmt.Errorf("let the parked key go on: %w", err)
	}
	return nil
}

// stopRelease opens a parked letter about which somebody has to decide, whatever it waited for.
func (ls *letters) stopRelease(ctx context.Context, l *requested) decision {
	n, err := consumerdb.New(ls.db).StopRelease(ctx, consumerdb.StopReleaseParams{
		ConsumerGroup: ls.group, Topic: l.Topic, KafkaPartition: l.KafkaPartition, KafkaOffset: l.KafkaOffset,
		Generation: l.Generation,
	})
	if err != nil {
		return decision{err: &infrastructureError{fmt.Errorf("open parked letter %s: %w", l.source(), err)}}
	}
	if n > 0 {
		ls.log.WarnContext(ctx, "release stopped at a letter that was refused; redrive or discard it", "source", l.source().String(), "reason", l.Reason)
	}
	return decision{decided: n > 0}
}
