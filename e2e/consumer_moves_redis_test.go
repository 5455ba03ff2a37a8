//go:build e2e

package e2e

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Moves of TestConsumerMoves at the Redis in front of the claims, which may say nothing, or
// something that is over, and changes no effect by it.

func (m *mover) redisFlushed() bool {
	m.fast.Thaw()
	client := redis.NewClient(&redis.Options{Addr: m.redis})
	defer client.Close()
	require.NoError(m.t, client.FlushAll(m.t.Context()).Err())
	return true
}

// redisFrozen has it answer late, or not at all in the time that members give it.
func (m *mover) redisFrozen() bool {
	m.fast.Thaw()
	m.fast.Freeze()
	m.due = append(m.due, later{time.Now().Add(time.Duration(100+m.rng.IntN(4000)) * time.Millisecond), m.fast.Thaw})
	return true
}

// redisKilled has it come back with nothing.
func (m *mover) redisKilled() bool {
	m.fast.Thaw()
	m.fast.Kill()
	require.NoError(m.t, wait(m.t.Context(), time.Duration(m.rng.IntN(2000))*time.Millisecond)) // nothing that is due finds it down
	m.fast.Up()
	return true
}

// redisPutBack has it come back with what it knew a while ago: the database may be another
// by now, or the class registered anew.
func (m *mover) redisPutBack() bool {
	m.fast.Thaw()
	client := redis.NewClient(&redis.Options{Addr: m.redis})
	defer client.Close()
	require.NoError(m.t, client.Save(m.t.Context()).Err())
	dump := m.fast.Dump()
	m.due = append(m.due, later{time.Now().Add(time.Duration(1000+m.rng.IntN(6000)) * time.Millisecond), func() {
		m.fast.Thaw()
		m.fast.Kill()
		m.fast.SetDump(dump)
		m.fast.Up()
	}})
	return true
}

// fastSays counts the answers of Redis that members have told of at their end.
func (m *mover) fastSays() string {
	if m.fast == nil {
		return "no Redis"
	}
	hits, stale := 0, 0
	for _, c := range m.members {
		hits, stale = hits+c.redisSays("hits"), stale+c.redisSays("stale")
	}
	return fmt.Sprintf("Redis with %d hits and %d stale answers", hits, stale)
}
