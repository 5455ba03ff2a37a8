package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/outbox"
)

// tail restricts a query of processed_events to the last pages of one leaf. It
// goes through the table, because nobody has rights on the leaves themselves.
func tail(l *partition.Leaf) string {
	first := max(0, l.Heap/8192-tailPages)
	return fmt.Sprintf("event_id >= '%s' AND event_id < '%s' AND ctid >= '(%d,0)'", l.Lower, l.Upper, first)
}

// tails runs work on the leaves that matter, until it has taken too long.
func (a *audit) tails(check string, matters func(*partition.Leaf) bool, work func(*partition.Leaf) error) error {
	if a.besideDefault(check) {
		return nil
	}
	began := time.Now()
	leaves := a.table.newestFirst(matters)
	for i := range leaves {
		if time.Since(began) > a.cfg.patience {
			a.cut(check, "%d of %d partitions were looked at in %s", i, len(leaves), a.cfg.patience)
			return nil
		}
		if err := work(&leaves[i]); err != nil {
			return err
		}
	}
	return nil
}

// besideDefault leaves a check out where claims lie in a DEFAULT partition.
func (a *audit) besideDefault(check string) bool {
	if a.table.rest != nil {
		a.cut(check, "not looked at, because of the DEFAULT partition")
	}
	return a.table.rest != nil
}

// claimRow is a claim that may have been made below the floor.
type claimRow struct {
	ID        uuid.UUID
	Namespace string
	Group     string
	Type      string
	At        time.Time
}

// belowFloors looks for claims that were made when their floor had passed them. A
// process keeps a floor that it read for some seconds, hence the minute.
func (a *audit) belowFloors(ctx context.Context, tx pgx.Tx) error {
	if len(a.windows) == 0 {
		return nil
	}
	highest, oldest := a.windows[0].Floor, a.windows[0].RaisedAt
	for _, w := range a.windows {
		if w.Floor.After(highest) {
			highest = w.Floor
		}
		oldest = earliest(oldest, w.RaisedAt)
	}
	var found byGroup
	err := a.tails("below-floor", func(l *partition.Leaf) bool { return l.From().Before(highest) }, func(l *partition.Leaf) error {
		rows, _ := tx.Query(ctx, "SELECT event_id, namespace, consumer_group, event_type, processed_at FROM "+claims.Table+" WHERE "+tail(l)+
			" AND event_id < $1 AND processed_at > $2 AND ($3 = '' OR consumer_group = $3)",
			outbox.FirstID(highest), oldest.Add(claims.FloorSettles), a.cfg.Group) // CollectRows returns its error
		suspects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[claimRow])
		if err != nil {
			return err
		}
		return a.suspects(ctx, consumerdb.New(tx), suspects, &found)
	})
	found.report(a, "below-floor", "claims were made below the floor of their class, where an earlier claim of the event may be gone: it may have been applied twice")
	return err
}

// suspects reports those that no rule allows: each late event, and each replay that
// is applied all the same, is claimed under its own id and by arrival.
func (a *audit) suspects(ctx context.Context, q *consumerdb.Queries, rows []claimRow, found *byGroup) error {
	type suspect struct {
		claimRow
		arrival []uuid.UUID // under some of which it was claimed too, if it was by the rules
	}
	arrivals := make(map[string][]uuid.UUID) // by group
	var wrong []suspect
	for _, row := range rows {
		classes := a.classesOf(row.Group, row.Type)
		if len(classes) == 0 || slices.ContainsFunc(classes, row.allowedBy) || a.byArrival(row.Group, row.ID) {
			continue
		}
		var arrival []uuid.UUID
		for _, w := range classes {
			arrival = append(arrival, claims.BucketsIn(w).Ever(row.ID, row.At)...)
		}
		wrong = append(wrong, suspect{row, arrival})
		arrivals[row.Group] = append(arrivals[row.Group], arrival...)
	}
	claimed := make(map[uuid.UUID]bool)
	for group, ids := range arrivals {
		there, err := q.ClaimedAmong(ctx, consumerdb.ClaimedAmongParams{ConsumerGroup: group,
			EventIds: consumerdb.Texts(ids)})
		if err != nil {
			return err
		}
		for _, id := range there {
			claimed[id] = true
		}
	}
	for _, row := range wrong {
		if !slices.ContainsFunc(row.arrival, func(id uuid.UUID) bool { return claimed[id] }) {
			key := keyed(row.Namespace, row.ID)
			found.add(row.Group, fmt.Sprintf("event %s of type %s, claimed %s", key, row.Type, rfc(row.At)),
				fmt.Sprintf("see the event with `outboxctl processed show %s`; find the program that claims without package consumer, or of a release before windows", key))
		}
	}
	return nil
}

// allowedBy reports whether a program that judged by this class could make the claim:
// the event was not below the floor, or the floor was not that high yet.
func (row *claimRow) allowedBy(w consumerdb.WindowsRow) bool {
	if w.RetiredAt != nil && row.At.After(w.RetiredAt.Add(claims.FloorSettles)) {
		return false
	}
	return !row.At.After(w.RaisedAt.Add(claims.FloorSettles)) || !outbox.IDTime(row.ID).Before(w.Floor)
}

// classesOf returns the classes of a group that match an event type. By any of them a
// claim may have been made: a version of the program beside this one, or before it, may
// not know the most special one. None of them lets a partition go that it needs.
func (a *audit) classesOf(group, eventType string) (classes []consumerdb.WindowsRow) {
	for _, w := range a.ever {
		if w.ConsumerGroup == group && consumer.ClassOf([]consumer.Class{{Pattern: w.Class}}, eventType) == 0 {
			classes = append(classes, w)
		}
	}
	return classes
}

// byArrival reports whether an id is one that [claims.IDs] can have made for a
// class of the group: version 8, at the edge of a bucket. A derived key whose time
// is such a start looks the same, and is not suspected either.
func (a *audit) byArrival(group string, id uuid.UUID) bool {
	if id.Version() != 8 {
		return false
	}
	return slices.ContainsFunc(a.ever, func(w consumerdb.WindowsRow) bool {
		return w.ConsumerGroup == group && slices.ContainsFunc(claims.BucketsIn(w).Lengths(),
			func(length time.Duration) bool {
				return outbox.IDTime(id).UnixMilli()%length.Milliseconds() == 0
			})
	})
}

// twice looks for a key that is there twice, which the unique key of its partition
// forbids, unless the index is gone or broken.
func (a *audit) twice(ctx context.Context, tx pgx.Tx) error {
	var found byGroup
	err := a.tails("twice", func(*partition.Leaf) bool { return true }, func(l *partition.Leaf) error {
		rows, _ := tx.Query(ctx, "SELECT event_id, pg_catalog.min(namespace), consumer_group FROM "+claims.Table+" WHERE "+tail(l)+
			" AND ($1 = '' OR consumer_group = $1) GROUP BY event_id, consumer_group HAVING pg_catalog.count(*) > 1", a.cfg.Group) // ForEachRow returns its error
		cure := "compare the effects, then remove one of the claims"
		if !slices.Contains(a.keyless, l.Name) {
			cure = "REINDEX the partition's key, which must fail; " + cure
		}
		var id uuid.UUID
		var namespace, group string
		_, err := pgx.ForEachRow(rows, []any{&id, &namespace, &group}, func() error {
			found.add(group, "event "+keyed(namespace, id), cure)
			return nil
		})
		return err
	})
	found.report(a, "twice", "one key is claimed twice by one group: the effect was made twice")
	return err
}

// deadClaims looks for events that were given up and of which nothing is left.
func (a *audit) deadClaims(ctx context.Context, tx pgx.Tx) error {
	q := consumerdb.New(tx)
	rows, err := q.DeadWithoutLetter(ctx, consumerdb.DeadWithoutLetterParams{ConsumerGroup: a.cfg.Group,
		RowLimit: maxRows})
	if err != nil {
		return err
	}
	a.full("dead-claim", len(rows))
	var found byGroup
	for _, row := range rows {
		if a.byArrival(row.ConsumerGroup, row.EventID) {
			continue // its letter has the event's own id
		}
		key := keyed(row.Namespace, row.EventID)
		found.add(row.ConsumerGroup, "event "+key,
			fmt.Sprintf("forget the event, `outboxctl processed forget %s --group %s --reason \"…\"`, and do what that prints", key, terminal.Word(row.ConsumerGroup)))
	}
	found.report(a, "dead-claim", "events were given up and no letter of them stands, so that nobody will apply them")
	return nil
}

// letters looks for letters whose redrive and whose redelivery could both be
// applied.
func (a *audit) letters(ctx context.Context, tx pgx.Tx) error {
	if a.besideDefault("letter") {
		return nil
	}
	q := consumerdb.New(tx)
	rows, err := q.OpenWithoutClaim(ctx, consumerdb.OpenWithoutClaimParams{ConsumerGroup: a.cfg.Group,
		RowLimit: maxRows})
	if err != nil {
		return err
	}
	a.full("letter", len(rows))
	var found byGroup
	var hidden []string
	for i := range rows {
		row := &rows[i]
		ids := []uuid.UUID{*row.ClaimID}
		for _, w := range a.ever {
			if w.ConsumerGroup == row.ConsumerGroup {
				ids = append(ids, claims.BucketsIn(w).Ever(*row.ClaimID, row.CreatedAt)...)
			}
		}
		// Dropped with its day.
		dead := slices.ContainsFunc(ids, func(id uuid.UUID) bool { return outbox.IDTime(id).Before(a.table.horizon) })
		if !dead {
			if dead, err = q.DeadAmong(ctx, consumerdb.DeadAmongParams{ConsumerGroup: row.ConsumerGroup,
				EventIds: consumerdb.Texts(ids)}); err != nil {
				return err
			}
		}
		at, key := consumer.Source{Topic: row.Topic, Partition: row.KafkaPartition,
			Offset: row.KafkaOffset}, keyed(row.Namespace, row.EventID)
		letter := fmt.Sprintf("letter %s of event %s", at, key)
		switch {
		case dead:
		case slices.ContainsFunc(ids, a.table.hidden):
			hidden = append(hidden, letter)
		default:
			again := fmt.Sprintf("`outboxctl dead redrive %s --group %s --reason \"…\"`", at, terminal.Word(row.ConsumerGroup))
			if row.State == "requested" {
				again = "let the group redrive it, which is asked for"
			}
			found.add(row.ConsumerGroup, letter, fmt.Sprintf("look with `outboxctl processed show %s` whether the event was applied; if so, `outboxctl dead discard --side consumer %s --group %s --reason \"…\"`, else %s",
				key, at, terminal.Word(row.ConsumerGroup), again))
		}
	}
	if len(hidden) > 0 {
		a.cut("letter", "%s not looked at, the first %s: the claims are of days that are not attached, see hole and detached", label.Count(len(hidden), "letter was", "letters were"), hidden[0])
	}
	found.report(a, "letter", "letters of events whose handler failed are open, and no claim says that the event is dead: it may have been applied by another delivery, "+
		"or will be, and by the redrive again")
	return nil
}

func (a *audit) full(check string, rows int) {
	if rows == maxRows {
		a.cut(check, "the first %d rows were looked at", rows)
	}
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
