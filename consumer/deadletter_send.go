package consumer

import (
	"context"
	"time"

	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/record"
)

// lettersPage is how many letters are in memory at once.
const lettersPage = 20

// Letter is a dead letter on its way to where letters are collected.
type Letter struct {
	// Record is the message as it came; its Source is where the letter is kept, which
	// is where it was read, unless another letter was there.
	Record Record
	// Reason is malformed, mismatch, handler, crash, late, replay, from-future,
	// no-handler, parked (and open since) or unreadable.
	Reason string
	// Error says what happened at the last attempt.
	Error string
	// Attempts of the handler; 0 when it was not called.
	Attempts int
	// At is when the letter was written, in UTC.
	At time.Time

	generation int32 // of the row that was read
}

// sending is one call of [Router.SendLetters].
type sending struct {
	*steps
	send func(ctx context.Context, letters []Letter) (sent []Letter, err error)
}

// page sends the letters that come next after a place.
func (s sending) page(ctx context.Context, after Source) (page []Letter, sent int, err error) {
	tx, err := s.processor.windows.begin(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer transaction.Rollback(ctx, tx)
	q := consumerdb.New(tx)
	if page, err = s.processor.letters.unsent(ctx, q, after); err != nil || len(page) == 0 {
		return nil, 0, judge(ctx, tx, err)
	}
	arrived, failure := s.send(ctx, page)
	if len(arrived) == 0 {
		return page, 0, failure
	}
	if err := q.LettersSent(ctx, sentParams(s.processor.group, arrived)); err != nil {
		return page, 0, judge(ctx, tx, err)
	}
	if err := s.commit(ctx, tx); err != nil {
		return page, 0, err
	}
	return page, len(arrived), failure
}

// unsent reads letters that were not sent; none when another member sends.
func (ls *letters) unsent(ctx context.Context, q *consumerdb.Queries, after Source) ([]Letter, error) {
	mine, err := q.LockLettersToSend(ctx, ls.group)
	if err != nil || !mine {
		return nil, err
	}
	rows, err := q.LettersToSend(ctx, consumerdb.LettersToSendParams{
		ConsumerGroup: ls.group, Topic: after.Topic, KafkaPartition: after.Partition, KafkaOffset: after.Offset,
		RowLimit: lettersPage,
	})
	if err != nil {
		return nil, err
	}
	letters := make([]Letter, len(rows))
	for i, row := range rows {
		headers, err := record.LoadHeaders(row.RecordHeaders)
		if err != nil {
			return nil, err
		}
		letters[i] = Letter{
			Record: Record{
				Source: Source{Topic: row.Topic, Partition: row.KafkaPartition, Offset: row.KafkaOffset},
				Key:    row.RecordKey, Value: row.RecordValue, Headers: headers,
			},
			Reason: row.Reason, Error: row.Error, Attempts: int(row.Attempts), At: row.CreatedAt.UTC(),
			generation: row.Generation,
		}
	}
	return letters, nil
}

func sentParams(group string, letters []Letter) consumerdb.LettersSentParams {
	p := consumerdb.LettersSentParams{ConsumerGroup: group}
	for _, l := range letters {
		src := l.Record.Source
		p.Topics, p.KafkaPartitions, p.KafkaOffsets = append(p.Topics, src.Topic), append(p.KafkaPartitions,
			src.Partition), append(p.KafkaOffsets, src.Offset)
		p.Generations = append(p.Generations, l.generation)
	}
	return p
}
