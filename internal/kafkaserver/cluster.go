package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/process"
)

// stopGrace is what [Cluster.Stop] gives brokers whose data is kept. The last
// controllers of three lose their quorum while they shut down and would wait
// for it for minutes.
const stopGrace = 15 * time.Second

// Cluster is a Kafka cluster that this package started. The methods that start
// and stop brokers are called by one goroutine at a time for one broker; the
// others may be called at any time.
type Cluster struct {
	dir       string
	temporary bool
	program   program
	brokers   []broker
	ports     *loopback.Reservation // of all brokers

	mu    sync.Mutex
	procs []*process.Process // the last one of each broker, which may have ended
}

// Start starts a cluster and returns when every broker is ready. The cluster
// does not depend on ctx, which bounds the start only, as does a limit of
// three minutes. Without the jars the error matches [ErrNoJars].
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := &Cluster{temporary: opts.Dir == "", procs: make([]*process.Process, opts.Brokers)}
	if err := c.first(ctx, opts); err != nil {
		c.killAll()
		return nil, errors.Join(fmt.Errorf("start Kafka %s: %w", opts.Version, err), c.release(), c.discard())
	}
	return c, nil
}

// first is the start of a cluster that has no ports yet, and maybe no data.
func (c *Cluster) first(ctx context.Context, opts Options) error {
	if err := c.findProgram(opts); err != nil {
		return err
	}
	if err := c.openDir(opts.Dir); err != nil {
		return err
	}
	var err error
	if c.brokers, c.ports, err = layOut(ctx, c.dir, opts); err != nil {
		return err
	}
	cluster := clusterID()
	for _, b := range c.brokers {
		if err := c.program.format(ctx, b, properties(b, c.brokers, opts.Settings), cluster); err != nil {
			return err
		}
	}
	for i := range c.brokers { // all, before any can be ready: they need one another
		if err := c.launch(i); err != nil {
			return err
		}
	}
	for i, b := range c.brokers {
		if err := b.ready(ctx, c.process(i), len(c.brokers)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) findProgram(opts Options) error {
	jars, err := jars(opts.Version)
	if err != nil {
		return err
	}
	java, err := java()
	if err != nil {
		return err
	}
	c.program = program{java: java, options: opts.JVM, jars: jars, detached: opts.Detached}
	return nil
}

func (c *Cluster) openDir(dir string) (err error) {
	if c.temporary {
		c.dir, err = os.MkdirTemp("", "onceward-kafka-")
	} else {
		c.dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return fmt.Errorf("make the cluster's folder: %w", err)
	}
	return nil
}

// launch starts the process of broker i.
func (c *Cluster) launch(i int) error {
	proc, err := c.program.start(c.brokers[i])
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.procs[i] = proc
	c.mu.Unlock()
	return nil
}

// StartBroker starts broker i (from 0) again after it was killed or stopped:
// same ports, data and settings. It returns when the broker is ready, within
// three minutes; a broker that is not is killed.
func (c *Cluster) StartBroker(ctx context.Context, i int) error {
	select {
	case <-c.process(i).Done():
	default:
		return fmt.Errorf("start broker %d: it is running", i)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.launch(i); err != nil {
		return err
	}
	proc := c.process(i)
	if err := c.brokers[i].ready(ctx, proc, 1); err != nil {
		proc.Kill()
		return fmt.Errorf("start broker %d: %w", i, err)
	}
	return nil
}

// Kill ends broker i (from 0) with SIGKILL and returns when it is gone. The
// rest of the cluster learns of it only by broker.session.timeout.ms. A broker
// that is down already is no error.
func (c *Cluster) Kill(i int) { c.process(i).Kill() }

// StopBroker shuts broker i (from 0) down in order: it hands its partitions
// over first. When ctx ends before that is done, the broker is killed and the
// error says so. A broker that is down already is no error.
func (c *Cluster) StopBroker(ctx context.Context, i int) error {
	return c.process(i).Stop(ctx, syscall.SIGTERM)
}

// Stop ends all brokers and removes the cluster's folder if that is a
// temporary one. Brokers whose data goes are killed; others get 15 seconds, or
// until ctx ends, to shut down, and are then killed, which their data survives.
func (c *Cluster) Stop(ctx context.Context) error {
	if c.temporary {
		c.killAll()
		return errors.Join(c.release(), c.discard())
	}
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	var errs []error
	for i := range c.procs { // all at once, so that they share the time
		if err := c.process(i).Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("stop broker %d: %w", i, err))
		}
	}
	for i := range c.procs {
		select {
		case <-c.process(i).Done():
		case <-ctx.Done():
			c.Kill(i)
		}
	}
	return errors.Join(append(errs, c.release())...)
}

// release gives the ports back.
func (c *Cluster) release() error {
	if c.ports == nil {
		return nil
	}
	return c.ports.Release()
}

// killAll kills every broker that was started.
func (c *Cluster) killAll() {
	for i := range c.procs {
		if proc := c.process(i); proc != nil {
			proc.Kill()
		}
	}
}

// discard removes a temporary folder.
func (c *Cluster) discard() error {
	if !c.temporary || c.dir == "" {
		return nil
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove the cluster's folder: %w", err)
	}
	return nil
}

// Addrs returns the address of each broker's listener for clients, host:port,
// as advertised: with Options.Advertise those of the proxies.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.brokers))
	for i, b := range c.brokers {
		addrs[i] = b.advertised
	}
	return addrs
}

// PID returns the process id of broker i (from 0), of its last start.
func (c *Cluster) PID(i int) int { return c.process(i).PID() }

// Dir returns the cluster's folder.
func (c *Cluster) Dir() string { return c.dir }

// LogFile returns the path of the log of broker i (from 0).
func (c *Cluster) LogFile(i int) string { return c.brokers[i].log() }

// PropertiesFile returns the path of the settings of broker i (from 0). It is
// in the broker's command line.
func (c *Cluster) PropertiesFile(i int) string { return c.brokers[i].properties() }

func (c *Cluster) process(i int) *process.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.procs[i]
}
