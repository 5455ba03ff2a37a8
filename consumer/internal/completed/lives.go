package completed

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
)

// Lives are what the classes of a group are bound to in one session, as the database said it no
// longer than ten seconds ago. The zero value knows nothing. Safe for concurrent use.
type Lives struct{ known atomic.Pointer[known] }

type known struct {
	of    map[string]Life
	until time.Time
}

// How long a delivery may wait for the answer, and nobody asks again where there was none: what
// leaves no claim goes on while the database is away.
const (
	answerTimeout = 5 * time.Second
	askAgain      = time.Second
)

// Of returns them by the name of the class, those in use only; none where the database does not
// say. Callers must not change it.
func (l *Lives) Of(ctx context.Context, q *consumerdb.Queries, group, history string) map[string]Life {
	if k := l.known.Load(); k != nil && time.Now().Before(k.until) {
		return k.of
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	asked := time.Now()
	rows, err := q.Registrations(ctx, group)
	if err != nil {
		l.known.Store(&known{until: time.Now().Add(askAgain)})
		return nil
	}
	now := &known{of: make(map[string]Life, len(rows)), until: asked.Add(claims.FloorsKept)}
	for _, row := range rows {
		now.of[row.Class] = Life{History: history, Tables: row.Tables, Group: group, Class: row.Class,
			Registered: row.RegisteredAt, Forgotten: row.Forgotten, Window: consumerdb.Micros(row.WindowUs)}
	}
	l.known.Store(now)
	return now.of
}
