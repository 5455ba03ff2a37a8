package completed

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
)

// Lives are what the classes of a group are bound to in one session, as the database said it no
// longer than ten seconds ago. The zero value knows nothing. Safe for concurrent use.
type Lives struct{ known atomic.Pointer[known] }

type known struct {
	of     map[string]Life
	readAt time.Time
}

// Of returns them by the name of the class, those in use only. Callers must not change it.
func (l *Lives) Of(ctx context.Context, q *consumerdb.Queries, group, history string) (map[string]Life, error) {
	if k := l.known.Load(); k != nil && time.Since(k.readAt) < claims.FloorsKept {
		return k.of, nil
	}
	rows, err := q.Registrations(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("read how the classes are registered: %w", err)
	}
	now := &known{of: make(map[string]Life, len(rows)), readAt: time.Now()}
	for _, row := range rows {
		now.of[row.Class] = Life{History: history, Tables: row.Tables, Group: group, Class: row.Class,
			Registered: row.RegisteredAt, Forgotten: row.Forgotten}
	}
	l.known.Store(now)
	return now.of, nil
}
