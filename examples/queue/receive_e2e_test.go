//go:build e2e

package queue_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/examples/queue"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// restless is a queue that gives each message to two receivers at once, and again after it
// was deleted twice: the worst that SQS may do.
type restless struct {
	mutex   sync.Mutex
	all     []queue.Message
	deleted map[string]int
	gave    int
	done    chan struct{}
}

func (q *restless) Receive(ctx context.Context) ([]queue.Message, error) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	for range q.all {
		m := q.all[q.gave/2%len(q.all)]
		q.gave++
		if q.deleted[m.ID] < 4 {
			m.Receipt = m.ID
			return []queue.Message{m}, nil
		}
		q.gave += q.gave % 2
	}
	select {
	case <-q.done:
	default:
		close(q.done)
	}
	return nil, ctx.Err()
}

func (q *restless) Delete(_ context.Context, receipt string) error {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.deleted[receipt]++
	return nil
}

// Each message comes at least four times, to two receivers: one shipment each. What cannot be
// shipped is a dead letter, and leaves the queue.
func TestReceive(t *testing.T) {
	db := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), queue.Schema)
	require.NoError(t, err)
	q := &restless{deleted: make(map[string]int), done: make(chan struct{})}
	for i, body := range []string{`{"id":"o-1"}`, `{"id":"o-2"}`, `{"id":""}`, `no json`, `{"id":"o-3"}`} {
		q.all = append(q.all, queue.Message{ID: fmt.Sprint("m-", i), Sent: time.Now(), Body: []byte(body)})
	}
	p, err := queue.NewProcessor(t.Context(), db)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- queue.Run(ctx, q, p) }()
	}
	<-q.done
	cancel()
	for range 2 {
		require.NoError(t, <-ended)
	}
	for sql, want := range map[string]int{
		"SELECT count(*) FROM shipments":                                                                   3,
		"SELECT count(DISTINCT order_id) FROM shipments":                                                   3,
		"SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = 'from:orders-queue'":            2,
		"SELECT attempts FROM onceward.consumer_dead_letters WHERE error LIKE '%no id%'":                   3,
		"SELECT count(*) FROM onceward.consumer_dead_letters WHERE error LIKE '%decode%' AND attempts < 3": 1,
	} {
		var got int
		require.NoError(t, db.QueryRow(t.Context(), sql).Scan(&got))
		require.Equal(t, want, got, sql)
	}

	router := consumer.NewRouter(p)
	queue.Register(router)
	_, err = db.Exec(t.Context(), "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
	require.NoError(t, err)
	done, err := router.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 2, done, "they still fail, and are open again")
}
