package consumerprom

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/consumerdb"
)

// What the database says, of all groups.
var (
	up       = desc("database_up", "1 when the last look into the database was answered: at the backlog, at retention.", "of")
	letters  = desc("open_letters", "Dead letters that nobody has settled.", "group", "reason")
	letter   = desc("oldest_open_letter_seconds", "Age of the oldest of them.", "group", "reason")
	events   = desc("open_events", "Events with effects that nothing has ended: under way, waiting for recovery, for an operator, or with their letter.", "group")
	event    = desc("oldest_open_event_seconds", "Age of the first effect of the oldest of them.", "group")
	operator = desc("stuck_effects", "Effects that are left to an operator; `outboxctl fences` says why.", "group")
	table    = desc("table_bytes", "Size of a table with its indexes; processed_events with its partitions.", "table")
)

var databaseDescs = []*prometheus.Desc{up, letters, letter, events, event, operator, table}

// Bounds of a look into the database: for how long, at least, what it said is shown
// again, and for how long a scrape waits.
const (
	backlogKept   = 10 * time.Second
	retentionKept = time.Minute
	lookTimeout   = 3 * time.Second
)

// again is when to look again after a look that began then: a slow one, such as at a
// million dead letters, is repeated less often, so that all of them take a twentieth
// of one session at most.
func again(began time.Time, kept time.Duration) time.Time {
	took := time.Since(began)
	return began.Add(took + max(kept, 20*took))
}

// database is what was read last. A look that fails is not repeated at once either.
type database struct {
	pool *pgxpool.Pool

	mu        sync.Mutex
	backlog   backlog
	backlogOK bool
	backlogAt time.Time // when to read it again

	report   retention.Report
	reportOK bool
	reportAt time.Time // as above
}

type backlog struct {
	letters []consumerdb.LettersWaitingRow
	events  []consumerdb.EventsOpenRow
	tables  []consumerdb.TableSizesRow
}

// FromDatabase has the collector look into the consumer's database: at what waits
// for an operator or for recovery, at most every ten seconds, and at retention, as
// retention.Maintain with DryRun does, at most once a minute, both less often where
// that takes long. A role with the rights
// of a consumer will do, so that all this is shown wherever maintenance runs. A
// scrape waits three seconds at most, and takes one connection of the pool; what
// was not answered is left out, and onceward_consumer_database_up is 0. So it is of
// retention behind a pooler, where that cannot be looked at: give a pool that
// connects directly.
//
// The figures are of all groups: let one program of those that share a database
// show them. Call it before the first scrape.
func (c *Collector) FromDatabase(pool *pgxpool.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.database = &database{pool: pool}
}

// look reads what is older than it may be.
func (d *database) look() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	if began := time.Now(); !began.Before(d.backlogAt) {
		b, err := d.readBacklog(ctx)
		d.backlog, d.backlogOK, d.backlogAt = b, err == nil, again(began, backlogKept)
	}
	if began := time.Now(); !began.Before(d.reportAt) {
		report, err := d.readRetention(ctx)
		d.report, d.reportOK, d.reportAt = report, err == nil, again(began, retentionKept)
	}
}

func (d *database) readBacklog(ctx context.Context) (b backlog, err error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return b, err
	}
	defer conn.Release()
	q := consumerdb.New(conn)
	if b.letters, err = q.LettersWaiting(ctx); err != nil {
		return b, err
	}
	if b.events, err = q.EventsOpen(ctx); err != nil {
		return b, err
	}
	b.tables, err = q.TableSizes(ctx)
	return b, err
}

// readRetention takes a connection out of the pool, because it changes a setting of
// its session.
func (d *database) readRetention(ctx context.Context) (retention.Report, error) {
	pooled, err := d.pool.Acquire(ctx)
	if err != nil {
		return retention.Report{}, err
	}
	conn := pooled.Hijack()
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return retention.Maintain(ctx, conn, retention.Config{DryRun: true, LockTimeout: time.Second})
}

// collect shows what was read. Reported: the retention of this process is shown
// already.
func (d *database) collect(ch chan<- prometheus.Metric, reported bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
	gauge(ch, up, one(d.backlogOK), "backlog")
	gauge(ch, up, one(d.reportOK), "retention")
	if d.backlogOK {
		for _, l := range d.backlog.letters {
			gauge(ch, letters, float64(l.Letters), l.ConsumerGroup, l.Reason)
			gauge(ch, letter, l.OldestSeconds, l.ConsumerGroup, l.Reason)
		}
		for _, e := range d.backlog.events {
			gauge(ch, events, float64(e.Events), e.ConsumerGroup)
			gauge(ch, event, e.OldestSeconds, e.ConsumerGroup)
			gauge(ch, operator, float64(e.Stuck), e.ConsumerGroup)
		}
		for _, t := range d.backlog.tables {
			gauge(ch, table, float64(t.Bytes), t.Name)
		}
	}
	if d.reportOK && !reported {
		collectRetention(ch, d.report)
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
