//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

// violation is a broken promise, numbered as in the verification design.
type violation struct {
	statement string
	detail    string
}

func (v violation) String() string { return v.statement + ": " + v.detail }

const (
	noLoss      = "no loss"
	noInvention = "no invention"
	order       = "order"
	placement   = "placement"
	sameCopies  = "equal copies"
)

// truth is a committed row of the outbox.
type truth struct {
	key         string
	aggregate   string
	payload     string
	createdAt   time.Time
	eventType   string
	traceparent string
}

// readTruth reads every committed row.
func readTruth(ctx context.Context, pool *pgxpool.Pool) (map[string]truth, error) {
	rows, err := pool.Query(ctx, `SELECT namespace, id, aggregate_id, payload, created_at, event_type, coalesce(traceparent, '') FROM onceward.outbox`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string]truth)
	for rows.Next() {
		var namespace string
		var id uuid.UUID
		var body []byte
		var r truth
		if err := rows.Scan(&namespace, &id, &r.aggregate, &body, &r.createdAt, &r.eventType, &r.traceparent); err != nil {
			return nil, err
		}
		r.key, r.payload = namespace+":"+id.String(), string(body)
		all[r.key] = r
	}
	return all, rows.Err()
}

// verify compares the topic with the table, and returns what it found, at most
// a few of each kind, and the number of extra copies.
func verify(records []*sarama.ConsumerMessage, committed map[string]truth, ghosts map[string]string, partitions int32) (found []violation, copies int) {
	report := func(statement, format string, args ...any) {
		found = append(found, violation{statement, fmt.Sprintf(format, args...)})
	}
	first := make(map[string]*sarama.ConsumerMessage)
	last := make(map[string]int) // per aggregate: N of the last first occurrence
	for _, r := range records {
		key := headerOf(r, outbox.HeaderKey)
		row, ok := committed[key]
		if !ok {
			report(noInvention, "record %s at %d/%d belongs to no committed row (%s)", key, r.Partition, r.Offset, ghosts[key])
			continue
		}
		if before, again := first[key]; again {
			copies++
			if fingerprint(before) != fingerprint(r) {
				report(sameCopies, "%s: %s, then %s", key, fingerprint(before), fingerprint(r))
			}
			continue
		}
		first[key] = r
		if want := publisher.Partition([]byte(row.aggregate), partitions); r.Partition != want {
			report(placement, "%s is in partition %d, its aggregate %s belongs to %d", key, r.Partition, row.aggregate, want)
		}
		for _, diff := range differences(r, row) {
			report(noInvention, "%s: %s", key, diff)
		}
		var p payload
		if err := json.Unmarshal(r.Value, &p); err != nil {
			report(noInvention, "%s: %v", key, err)
		} else if p.N != last[p.Aggregate]+1 {
			report(order, "aggregate %s: event %d comes after %d (%s at %d/%d)", p.Aggregate, p.N, last[p.Aggregate], key, r.Partition, r.Offset)
		}
		last[p.Aggregate] = p.N
	}
	for _, key := range slices.Sorted(maps.Keys(committed)) {
		if first[key] == nil {
			report(noLoss, "%s was committed and is not in the topic", key)
		}
	}
	return found, copies
}

// differences compares one record with its row, header by header.
func differences(r *sarama.ConsumerMessage, row truth) []string {
	var out []string
	want := map[string]string{
		outbox.HeaderKey: row.key, record.HeaderEventType: row.eventType, record.HeaderAggregateType: "order",
		record.HeaderContentType: outbox.DefaultContentType, record.HeaderOccurredAt: row.createdAt.UTC().Format(record.OccurredAtLayout),
		record.HeaderTraceparent: row.traceparent,
	}
	for name, value := range want {
		if got := headerOf(r, name); got != value {
			out = append(out, fmt.Sprintf("header %s is %q, want %q", name, got, value))
		}
	}
	if string(r.Key) != row.aggregate {
		out = append(out, fmt.Sprintf("record key %q, want %q", r.Key, row.aggregate))
	}
	if string(r.Value) != row.payload {
		out = append(out, fmt.Sprintf("value %q, want %q", r.Value, row.payload))
	}
	if headerOf(r, record.HeaderPosition) == "" {
		out = append(out, "header position is missing")
	}
	return out
}

// fingerprint is all that every copy of an event has in common. One that a gap's
// repair made says so.
func fingerprint(r *sarama.ConsumerMessage) string {
	var b strings.Builder
	fmt.Fprintf(&b, "partition %d key %q value %q", r.Partition, r.Key, r.Value)
	for _, h := range r.Headers {
		if name := string(h.Key); name != record.HeaderPosition && name != record.HeaderRepairID {
			fmt.Fprintf(&b, " %s=%q", h.Key, h.Value)
		}
	}
	return b.String()
}

func headerOf(r *sarama.ConsumerMessage, name string) string {
	for _, h := range r.Headers {
		if string(h.Key) == name {
			return string(h.Value)
		}
	}
	return ""
}

// summary counts violations by statement and shows the first of each.
func summary(found []violation) string {
	counts, firsts := map[string]int{}, map[string]string{}
	for _, v := range found {
		if counts[v.statement]++; counts[v.statement] == 1 {
			firsts[v.statement] = v.detail
		}
	}
	var b strings.Builder
	for _, s := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%s: %d, first: %s\n", s, counts[s], firsts[s])
	}
	return b.String()
}
