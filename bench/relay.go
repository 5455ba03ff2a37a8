package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/internal/process"
)

// relay is the relay, as users run it.
type relay struct {
	stage   *stage
	name    string
	binary  string
	topic   *sink.Topic
	began   int       // the first event that this process has to publish
	asked   time.Time // when the topic was looked at
	process *process.Process
}

// relayName is also what its slot is called by.
func (r *relay) relayName() string { return r.stage.name + "_" + strings.ReplaceAll(r.name, "-", "_") }

func (r *relay) slot() string      { return "onceward_" + r.relayName() }
func (r *relay) sink() *sink.Topic { return r.topic }
func (r *relay) config() string    { return r.stage.path(r.name + ".yaml") }
func (r *relay) logFile() string   { return r.stage.path(r.name + ".log") }

func (r *relay) backend(ctx context.Context) (int, error) { return r.stage.walsender(ctx, r.slot()) }

// prepare configures the relay, which makes its slot when it is started first.
func (r *relay) prepare(ctx context.Context) (err error) {
	if r.topic, err = r.stage.topic(ctx, r.name); err != nil {
		return err
	}
	mode := report.Idempotent
	if r.name == report.ExactlyOnce {
		mode = r.name
	}
	text := fmt.Sprintf(`name: %s
postgres: {insecure: true, publication: %s, slot: {failover: false}}
kafka: {brokers: ["%s"], insecure: true, mode: %s}
routes: [{topic: "%s"}]
topics: {create: true, replication_factor: 1}
admin: {listen: "127.0.0.1:0"}
log: {format: text}
`, r.relayName(), publication, strings.Join(r.stage.servers.kafka.Addrs(), `", "`), mode, r.topic.Route())
	if err := os.WriteFile(r.config(), []byte(text), 0o600); err != nil {
		return fmt.Errorf("configure the relay: %w", err)
	}
	return nil
}

// makeSlot implements slotMaker.
func (r *relay) makeSlot(ctx context.Context) error {
	if _, err := r.start(ctx); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := until(starting, "the relay streams", func() (bool, error) { return r.ready(starting) })
	if err != nil {
		err = fmt.Errorf("%w%s", err, process.Tail(r.logFile()))
	}
	return errors.Join(err, r.stop(ctx))
}

func (r *relay) start(context.Context) (_ *process.Process, err error) {
	if err := os.Remove(r.logFile()); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("remove the log of the process before: %w", err)
	}
	r.process, err = process.Start(process.Spec{
		Path: r.binary, Args: []string{"run", "--config", r.config()}, LogFile: r.logFile(), DeathSignal: syscall.SIGKILL,
		Env: []string{"ONCEWARD_POSTGRES_DSN=" + r.stage.dsn(), "ONCEWARD_EXIT_ON_HALT=true"},
	})
	return r.process, err
}

// alive returns how the process ended, if it has.
func (r *relay) alive() error {
	select {
	case <-r.process.Done():
		return fmt.Errorf("the relay ended: %w%s", r.process.Err(), process.Tail(r.logFile()))
	default:
		return nil
	}
}

// hasBeginning is a side that says when it began to read. It reads ahead: of a short backlog, most
// of the work is done before the first event is there.
type hasBeginning interface{ beginning() (time.Time, error) }

// beginning is when the process took its slot.
func (r *relay) beginning() (time.Time, error) {
	text, err := os.ReadFile(r.logFile())
	if err != nil {
		return time.Time{}, fmt.Errorf("read the relay's log: %w", err)
	}
	at := taken.FindSubmatch(text)
	if at == nil {
		return time.Time{}, fmt.Errorf("the relay's log does not say when it took its slot%s", process.Tail(r.logFile()))
	}
	return time.Parse(time.RFC3339Nano, string(at[1]))
}

var taken = regexp.MustCompile(`(?m)^time=(\S+) .*"slot taken"`)

func (r *relay) ready(context.Context) (bool, error) {
	text, err := os.ReadFile(r.logFile())
	if err != nil {
		return false, fmt.Errorf("read the relay's log: %w", err)
	}
	return strings.Contains(string(text), "slot taken") && served.Match(text), r.alive()
}

var served = regexp.MustCompile(`serving health and metrics.* address=(\S+)`)

// finished looks at the topic first, which tells too much in exactly-once mode because of the
// markers, and asks the relay then.
func (r *relay) finished(ctx context.Context, below int) (bool, error) {
	if err := r.alive(); err != nil {
		return false, err
	}
	// A look at many partitions would cost the broker what is taken for the events' cost.
	if time.Since(r.asked) < poll*time.Duration(r.topic.Shape.All()/sink.Usual.All()) {
		return false, nil
	}
	r.asked = time.Now()
	if ok, err := written(ctx, r.topic, below); !ok || err != nil {
		return false, err
	}
	published, err := r.published(ctx)
	return published >= below-r.began, err
}

// published is how many events this process has published.
func (r *relay) published(ctx context.Context) (int, error) {
	text, err := os.ReadFile(r.logFile())
	if err != nil {
		return 0, fmt.Errorf("read the relay's log: %w", err)
	}
	address := served.FindSubmatch(text)
	if address == nil {
		return 0, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(address[1])+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("ask the relay for its metrics: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask the relay for its metrics: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "onceward_events_published_total{"); ok {
			_, number, _ := strings.Cut(text, "} ")
			v, err := strconv.ParseFloat(number, 64)
			return int(v), err
		}
	}
	return 0, lines.Err()
}

func (r *relay) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	r.began = r.stage.written
	if err := r.process.Stop(ctx, syscall.SIGTERM); err != nil {
		return err
	}
	if err := r.process.Err(); err != nil {
		return fmt.Errorf("the relay ended: %w%s", err, process.Tail(r.logFile()))
	}
	return nil
}
