package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/process"
)

// startTimeout bounds initdb and a start, crash recovery included.
const startTimeout = time.Minute

// readyPoll is how often a starting server is tried.
const readyPoll = 25 * time.Millisecond

// Server is a PostgreSQL server that this package started. The methods that
// start and stop it are called by one goroutine at a time; the others may be called
// at any time.
type Server struct {
	folder   folder
	binaries Binaries
	detached bool
	password string
	port     int
	ports    *loopback.Reservation // of the port, also while the server is down

	mu   sync.Mutex
	proc *process.Process // the last one started, which may have ended
}

// Start starts a server and returns when it has answered a query. It fetches
// the binaries when the system has none of the wanted version. The server does
// not depend on ctx, which bounds the start only, as does a limit of a minute
// after the fetch.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	binaries, err := obtain(ctx, opts.Version)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dir, err := openFolder(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	s := &Server{folder: dir, binaries: binaries, detached: opts.Detached}
	if err := s.first(ctx, opts.Settings); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL %d: %w", binaries.Major, err), s.release(), dir.discard(), dir.refused(err))
	}
	return s, nil
}

// first is the start of a server that has no port yet, and maybe no data.
func (s *Server) first(ctx context.Context, settings map[string]string) error {
	if err := s.folder.user.Reach(s.binaries.Dir); err != nil {
		return err
	}
	var err error
	if s.ports, err = loopback.Reserve(ctx, 1); err != nil {
		return err
	}
	s.port = s.ports.Ports()[0]
	if s.password, err = s.folder.prepare(ctx, s.binaries); err != nil {
		return err
	}
	if err := s.folder.configure(settings, s.port); err != nil {
		return err
	}
	return s.launch(ctx)
}

// launch starts the server's process and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	spec := process.Spec{
		Path:     s.binaries.path("postgres"),
		Args:     []string{"-D", s.folder.data()},
		Dir:      s.folder.path,
		Env:      []string{"LC_ALL=C", "TZ=UTC"},
		LogFile:  s.folder.log(),
		User:     s.folder.user,
		Detached: s.detached,
	}
	if !s.detached {
		spec.DeathSignal = syscall.SIGQUIT // an immediate shutdown, which takes the backends along
	}
	proc, err := process.Start(spec)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = proc
	s.mu.Unlock()
	if err := s.ready(ctx, proc); err != nil {
		proc.Kill()
		return fmt.Errorf("%w%s", err, process.Tail(s.folder.log()))
	}
	return nil
}

// ready waits until a query is answered, the process ends, or ctx does.
func (s *Server) ready(ctx context.Context, proc *process.Process) error {
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		last := s.ping(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-proc.Done():
			return fmt.Errorf("the server ended while it started: %w", errors.Join(proc.Err(), last))
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w (last: %w)", ctx.Err(), last)
		}
	}
}

func (s *Server) ping(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the query has told all there is to know
	_, err = conn.Exec(ctx, "SELECT 1")
	return err
}

// Halt shuts the server down and keeps its folder, so that [Server.Resume] can
// start it again. A fast shutdown waits for walsenders whose receivers lag;
// when ctx ends first, the server is killed and the error says so. A server
// that is down already is no error.
func (s *Server) Halt(ctx context.Context, mode Mode) error {
	var signal os.Signal
	switch mode {
	case Fast:
		signal = syscall.SIGINT
	case Immediate:
		signal = syscall.SIGQUIT
	default:
		return fmt.Errorf("halt PostgreSQL: mode is %q; %w", mode, errMode)
	}
	return s.process().Stop(ctx, signal)
}

// Resume starts a halted server again: same port, data and settings. It
// returns when the server has answered a query, within a minute.
func (s *Server) Resume(ctx context.Context) error {
	select {
	case <-s.process().Done():
	default:
		return errors.New("resume PostgreSQL: it is running; halt it first")
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("resume PostgreSQL %d: %w", s.binaries.Major, err)
	}
	return nil
}

// Restart is [Server.Halt] and then [Server.Resume].
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	if err := s.Halt(ctx, mode); err != nil {
		return err
	}
	return s.Resume(ctx)
}

// Stop ends the server by a fast shutdown and removes its folder if that is a
// temporary one. The server cannot be started again. When ctx ends before the
// shutdown, the server is killed, the folder goes all the same, and the error says so.
func (s *Server) Stop(ctx context.Context) error {
	return errors.Join(s.Halt(ctx, Fast), s.release(), s.folder.discard())
}

// StopImmediate is [Server.Stop] by an immediate shutdown.
func (s *Server) StopImmediate(ctx context.Context) error {
	return errors.Join(s.Halt(ctx, Immediate), s.release(), s.folder.discard())
}

// release gives the port back.
func (s *Server) release() error {
	if s.ports == nil {
		return nil
	}
	return s.ports.Release()
}

// DSN returns the superuser's connection string for a database, with its
// password. The server speaks no TLS.
func (s *Server) DSN(database string) string {
	dsn := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(Superuser, s.password),
		Host:     loopback.Address(s.port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return dsn.String()
}

// Port returns the TCP port on 127.0.0.1, the same for the server's whole life.
func (s *Server) Port() int { return s.port }

// PID returns the process id of the postmaster that was started last.
func (s *Server) PID() int { return s.process().PID() }

// Done is closed when the postmaster that was started last has ended, whoever
// ended it.
func (s *Server) Done() <-chan struct{} { return s.process().Done() }

// Version returns the major version, such as 18.
func (s *Server) Version() int { return s.binaries.Major }

// Dir returns the server's folder.
func (s *Server) Dir() string { return s.folder.path }

// DataDir returns the data folder inside [Server.Dir]. It is in the command
// line of the postmaster.
func (s *Server) DataDir() string { return s.folder.data() }

// LogFile returns the path of the server's log.
func (s *Server) LogFile() string { return s.folder.log() }

func (s *Server) process() *process.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}
