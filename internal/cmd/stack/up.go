package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/migrations"
)

// relayName is in the names of the relay's slot and publication.
const relayName = "demo"

// relayFile holds the DSN of the relay's own role.
const relayFile = "relay.dsn"

// sides are the two databases, each with the side of the migrations that it
// gets and the file in .stack that holds its superuser's DSN, to play with.
var sides = []struct{ database, side, file string }{
	{"producer", "outbox", "producer.dsn"},
	{"consumer", "consumer", "consumer.dsn"},
}

// stack is a stack that is being brought up.
type stack struct {
	dir      string
	programs string // the folder of relay and outboxctl
	began    time.Time
	state    state
	out      io.Writer
}

// up starts the stack. When a step fails, it takes down what it has started.
func up(ctx context.Context, dir, programs, version string, out io.Writer) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("make the folder's path absolute: %w", err)
	}
	before, err := load(dir)
	if err != nil {
		return err
	}
	if err := before.vacant(dir); err != nil {
		return err
	}
	if err := makeEmpty(dir); err != nil {
		return err
	}
	s := &stack{dir: dir, programs: programs, began: time.Now(), out: out}
	if err := s.start(ctx, version); err != nil {
		// Not with ctx: an interrupt is one of the reasons to be here.
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
		defer cancel()
		return errors.Join(err, down(tidy, dir, out))
	}
	return nil
}

// makeEmpty makes the folder, or takes an empty one. Nothing else will do,
// because `down` removes it with all that is in it.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the stack's folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look into the stack's folder: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("the folder %s is not empty (%s), and no stack made it; name another by -dir", dir, entries[0].Name())
	}
	return nil
}

func (s *stack) start(ctx context.Context, version string) error {
	for _, name := range []string{"relay", "outboxctl"} {
		if _, err := exec.LookPath(s.program(name)); err != nil {
			return fmt.Errorf("look for %s: %w; `make build` makes it", name, err)
		}
	}
	s.say("starting PostgreSQL (the first time it may have to be fetched)")
	postgres, err := s.startPostgres(ctx, version)
	if err != nil {
		return err
	}
	s.say("PostgreSQL %d is up; fetching Kafka unless it is there (some 45 MB), and starting it", postgres.Version())
	kafka, err := s.startKafka(ctx)
	if err != nil {
		return err
	}
	s.say("Kafka is up; installing roles and tables: outboxctl migrate roles, outboxctl migrate up, for each side")
	if err := s.install(ctx, postgres); err != nil {
		return err
	}
	admin, err := loopback.Reserve(ctx, 1)
	if err != nil {
		return err
	}
	defer admin.Release() //nolint:errcheck // the relay is told the port, not given it
	schema, err := schemaFrom(s.dir)
	if err != nil {
		return err
	}
	text, err := relayConfig(relaySettings{
		Schema: schema, Name: relayName, DSNFile: s.path(relayFile), Brokers: kafka.Addrs(),
		Admin: loopback.Address(admin.Ports()[0]),
	})
	if err != nil {
		return err
	}
	if err := s.write("relay.yaml", text); err != nil {
		return err
	}
	if err := s.write("brokers", strings.Join(kafka.Addrs(), ",")+"\n"); err != nil {
		return err
	}
	for name, script := range kafka.Scripts() {
		if err := s.writeTool(name, script); err != nil {
			return err
		}
	}
	s.say("sending an event its whole way: outbox, relay, Kafka")
	if err := s.sample(ctx, postgres, kafka); err != nil {
		return err
	}
	return s.describe(postgres, kafka)
}

// say reports a step, with the seconds since the first.
func (s *stack) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%3.0f s  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...)) //nolint:errcheck // nobody is left to tell
}

// startPostgres starts the server in a temporary folder, because root's server
// runs as nobody, who cannot enter a checkout in root's home.
func (s *stack) startPostgres(ctx context.Context, version string) (*pgserver.Server, error) {
	postgres, err := pgserver.Start(ctx, pgserver.Options{Version: version, Detached: true})
	if err != nil {
		return nil, err
	}
	err = s.state.add(s.dir, server{
		Name: "PostgreSQL", PID: postgres.PID(), Marker: postgres.DataDir(), Dir: postgres.Dir(), Signal: int(syscall.SIGINT),
	})
	if err != nil { // nothing would find it again
		return nil, errors.Join(err, postgres.Stop(ctx))
	}
	return postgres, nil
}

func (s *stack) startKafka(ctx context.Context) (*kafkaserver.Cluster, error) {
	if _, err := kafkaserver.Fetch(ctx, ""); err != nil {
		return nil, err
	}
	cluster, err := kafkaserver.Start(ctx, kafkaserver.Options{Dir: s.path("kafka"), Detached: true})
	if err != nil {
		return nil, err
	}
	err = s.state.add(s.dir, server{
		Name: "Kafka", PID: cluster.PID(0), Marker: cluster.PropertiesFile(0), Dir: cluster.Dir(), Signal: int(syscall.SIGTERM),
	})
	if err != nil { // nothing would find it again
		return nil, errors.Join(err, cluster.Stop(ctx))
	}
	return cluster, nil
}

// install makes the databases, the roles and the tables, by the commands that a
// user would run. Everything belongs to the owner's role, and the relay gets no
// more than its own.
func (s *stack) install(ctx context.Context, postgres *pgserver.Server) error {
	conn, err := pgx.Connect(ctx, postgres.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect to make the databases: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // each statement has told its result
	for _, side := range sides {
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+side.database); err != nil {
			return fmt.Errorf("make the database %s: %w", side.database, err)
		}
		if err := s.write(side.file, postgres.DSN(side.database)+"\n"); err != nil {
			return err
		}
		up := []string{"up"}
		if side.side == "outbox" {
			up = append(up, "--relay", relayName)
		}
		for _, command := range [][]string{{"roles", "--apply"}, up} {
			args := append([]string{"migrate"}, command...)
			args = append(args, "--side", side.side, "--dsn-file", s.path(side.file), "--insecure")
			if _, err := process.Run(ctx, process.Spec{Path: s.program("outboxctl"), Args: args}); err != nil {
				return fmt.Errorf("install the tables of the %s side: %w", side.side, err)
			}
		}
	}
	return s.letRelayIn(ctx, conn, postgres.DSN(sides[0].database))
}

// letRelayIn gives the relay's role a password and writes its DSN.
func (s *stack) letRelayIn(ctx context.Context, conn *pgx.Conn, superuser string) error {
	role, password := migrations.DefaultPrefix+"_"+string(migrations.RoleRelay), rand.Text()
	if _, err := conn.Exec(ctx, fmt.Sprintf("ALTER ROLE %s LOGIN PASSWORD '%s'", pgx.Identifier{role}.Sanitize(), password)); err != nil {
		return fmt.Errorf("let the relay log in: %w", err)
	}
	dsn, err := url.Parse(superuser)
	if err != nil {
		return errors.New("make the relay's DSN: the superuser's cannot be parsed") // it holds a password
	}
	dsn.User = url.UserPassword(role, password)
	return s.write(relayFile, dsn.String()+"\n")
}

// describe tells the user where everything is and what to do with it.
func (s *stack) describe(postgres *pgserver.Server, kafka *kafkaserver.Cluster) error {
	_, err := fmt.Fprintf(s.out, `
the stack is up
  PostgreSQL %d      127.0.0.1:%d (log: %s)
    producer         %s
    consumer         %s
  Kafka              %s (log: %s)
    kafka-topics.sh and the others that messages name are in %s
try
  %s run --config %s
  %s status --dsn-file %s --insecure
  psql "$(cat %s)"
  make stack-down
README.md, "Quick start", goes on from here: an event of your own, and its effect
`, postgres.Version(), postgres.Port(), postgres.LogFile(),
		s.path(sides[0].file), s.path(sides[1].file),
		kafka.Addrs()[0], kafka.LogFile(0), s.path(toolsDir),
		s.program("relay"), s.path("relay.yaml"),
		s.program("outboxctl"), s.path(sides[0].file),
		s.path(sides[0].file))
	return err
}

func (s *stack) program(name string) string { return filepath.Join(s.programs, name) }

func (s *stack) path(name string) string { return filepath.Join(s.dir, name) }

// toolsDir has Kafka's programs that printed commands call.
const toolsDir = "bin"

// writeTool writes a program into [toolsDir].
func (s *stack) writeTool(name, script string) error {
	if err := os.MkdirAll(s.path(toolsDir), 0o700); err != nil {
		return fmt.Errorf("make a folder of the stack: %w", err)
	}
	if err := s.write(filepath.Join(toolsDir, name), script); err != nil {
		return err
	}
	return os.Chmod(s.path(filepath.Join(toolsDir, name)), 0o700) //nolint:gosec // G302: it is a program
}

// write writes a file that only the user may read: it has, or leads to, a
// password.
func (s *stack) write(name, text string) error {
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write a file of the stack: %w", err)
	}
	return nil
}
