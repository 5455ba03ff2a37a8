package completed

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
)

// Session is what a group's session has begun with: behind each delivery of its partitions its
// marks are saved, which fails on another history. What its classes are bound to it knows as the
// database said it no longer than ten seconds ago, and another session asks for its own, also on the
// same history. Safe for concurrent use. Make one with [NewSession].
type Session struct {
	History string
	places  map[place]bool
	known   atomic.Pointer[known]
}

type place struct {
	topic     string
	partition int32
}

type known struct {
	lives map[string]Life
	until time.Time
}

// NewSession returns one of the partitions, which have topic and number at the same index.
func NewSession(history string, topics []string, partitions []int32) *Session {
	s := &Session{History: history, places: make(map[place]bool, len(topics))}
	for i, topic := range topics {
		s.places[place{topic, partitions[i]}] = true
	}
	return s
}

// How long a delivery may wait for the answer, and nobody asks again where there was none: what
// leaves no claim goes on while the database is away.
const (
	answerTimeout = 5 * time.Second
	askAgain      = time.Second
)

// Bind says what a delivery that begins now is bound to: nothing, where the database does not answer.
func (s *Session) Bind(ctx context.Context, q *consumerdb.Queries, group string) *Binding {
	if k := s.known.Load(); k != nil && time.Now().Before(k.until) {
		return &Binding{s, k.lives}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	asked := time.Now()
	rows, err := q.Registrations(ctx, group)
	if err != nil {
		s.known.Store(&known{until: time.Now().Add(askAgain)})
		return &Binding{session: s}
	}
	now := &known{make(map[string]Life, len(rows)), asked.Add(claims.FloorsKept)}
	for _, row := range rows {
		now.lives[row.Class] = Life{History: s.History, Tables: row.Tables, Group: group, Class: row.Class,
			Registered: row.RegisteredAt, Forgotten: row.Forgotten, Window: consumerdb.Micros(row.WindowUs)}
	}
	s.known.Store(now)
	return &Binding{s, now.lives}
}

// Binding is what the entries of one delivery are bound to. It does not change.
type Binding struct {
	session *Session
	lives   map[string]Life
}

// Life is that of a class, for an event of a partition. Not ok: the session has it not, the class is not
// in use, or nobody knows.
func (b *Binding) Life(topic string, partition int32, class string) (l Life, ok bool) {
	l, ok = b.lives[class]
	return l, ok && b.session.places[place{topic, partition}]
}
