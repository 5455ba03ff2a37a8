//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
)

// Names of effects.
const (
	theEffect = "effect" // of an event that has one
	booked    = "book"   // the first of the type Two, in the database
	mailed    = "mail"   // the second, outside
)

// Troubles of the first attempts at an event.
const (
	slowly      = "slow"        // the handler waits for what does not come, until its context ends
	deaf        = "deaf"        // it does not listen to its context either
	conflicting = "conflicting" // it gives way to another transaction, three times
	breaking    = "breaking"    // it has the server end its session, three times
	exiting     = "exiting"     // it ends its goroutine
	committing  = "committing"  // it ends its transaction, behind its effect
	deadly      = "deadly"      // it takes its process with it, twice
	lost        = "lost"        // the provider's answer is, until an operator has asked it; and it forgets keys soon
)

// trouble makes the first attempts at an event end badly.
func (c *consumerProgram) trouble(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	var b body
	if err := json.Unmarshal(ev.Payload, &b); err != nil {
		return err
	}
	if b.Refused && tx != nil {
		if _, err := tx.Exec(ctx, `INSERT INTO refused VALUES ($1)`, ev.Key.String()); err != nil {
			return err
		}
	}
	if b.Trouble == "" {
		return nil
	}
	// The provider's database remembers it when the process, or the other database, does not.
	var n int
	err := c.provider.QueryRow(ctx, `INSERT INTO tries AS t VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = t.n + 1 RETURNING n`, ev.Key.String()).Scan(&n)
	switch {
	case err != nil:
		return err
	case b.Trouble == deadly && n <= 2:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case b.Trouble == conflicting && n <= 3:
		_, err = tx.Exec(ctx, `DO $$ BEGIN RAISE serialization_failure USING MESSAGE = 'gives way'; END $$`)
		return err
	case b.Trouble == breaking && n <= 3:
		_, err = tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		return err
	case b.Trouble == committing && n == 1:
		_, err = tx.Exec(ctx, `COMMIT`)
		return err
	case b.Trouble == slowly && n == 1:
		<-ctx.Done()
		return ctx.Err()
	case b.Trouble == exiting && n == 1:
		runtime.Goexit()
	case b.Trouble == deaf && n == 1:
		<-time.After(4 * time.Second)
	}
	return nil
}

// keyKept is for how long the provider of lost answers keeps a key.
const keyKept = time.Second

// forgetful returns keyKept for an event whose answer is lost, 0 for others.
func (c *consumerProgram) forgetful(ev consumer.Event) (time.Duration, error) {
	var b body
	if err := json.Unmarshal(ev.Payload, &b); err != nil || b.Trouble != lost {
		return 0, err
	}
	return keyKept, nil
}

// lose calls a provider, or does not reach it, and nobody hears which until it has
// forgotten the key. It is nil once an operator has said that the effect was not made.
// What is driven long after that without an operator's word leaves a charge of its own.
func (c *consumerProgram) lose(ctx context.Context, ev consumer.Event, call consumer.Call) error {
	var b body
	if err := json.Unmarshal(ev.Payload, &b); err != nil {
		return err
	}
	var free bool
	err := c.provider.QueryRow(ctx, `WITH t AS (INSERT INTO tries AS t VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = t.n + 1 RETURNING first),
		charged AS (INSERT INTO provider AS p (key) SELECT $1 WHERE $2 ON CONFLICT (key) DO UPDATE SET calls = p.calls + 1),
		blind AS (INSERT INTO provider (key) SELECT 'blind ' || $1 FROM t WHERE first < clock_timestamp() - interval '12 s' AND NOT EXISTS (SELECT FROM reconciled WHERE key = $1) ON CONFLICT DO NOTHING)
		SELECT EXISTS (SELECT FROM reconciled WHERE key = $1)`, call.Key, b.Charged).Scan(&free)
	if err != nil || free {
		return err
	}
	<-time.After(keyKept + keyKept/5)
	return errUnlucky
}

// two makes two effects of one event, with a step between them that may fail for good.
func (c *consumerProgram) two(ctx context.Context, ev consumer.Event) error {
	receipt, err := consumer.DoNamed(ctx, c.processor, ev, booked, func(ctx context.Context, tx pgx.Tx) (string, error) {
		return booked, c.effect(ctx, tx, ev, booked)
	})
	if err == nil && c.Defect == skipsSecond && receipt.Outcome == consumer.Duplicate {
		return nil
	}
	if err == nil {
		err = c.trouble(ctx, nil, ev)
	}
	if err == nil {
		err = c.possible(ctx, c.pool, ev)
	}
	if err != nil {
		return err
	}
	if c.chance(c.Fail) {
		return errUnlucky
	}
	_, err = consumer.Fence(ctx, c.processor, ev, consumer.Effect[string]{
		Name: mailed, Lease: 2 * time.Second,
		Do: func(ctx context.Context, call consumer.Call) (string, error) {
			_, err := c.provider.Exec(ctx, `INSERT INTO provider AS p (key) VALUES ($1) ON CONFLICT (key) DO UPDATE SET calls = p.calls + 1`, c.keyOf(call))
			if err == nil && c.chance(c.Fail) {
				return "", errUnlucky // the answer is lost
			}
			return call.Key, err
		},
		Commit: func(ctx context.Context, tx pgx.Tx, _ string) error { return c.effect(ctx, tx, ev, mailed) },
	})
	return err
}

// keyOf is the key that the provider is given.
func (c *consumerProgram) keyOf(call consumer.Call) string {
	if c.Defect == newKeys {
		return fmt.Sprint(call.Key, call.Epoch)
	}
	return call.Key
}

func (c *consumerProgram) effect(ctx context.Context, tx pgx.Tx, ev consumer.Event, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects (key, pid, late, name) VALUES ($1, $2, $3, $4)`, ev.Key.String(), os.Getpid(), ev.Late, name)
	return err
}
