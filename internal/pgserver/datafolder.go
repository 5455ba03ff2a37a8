package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/process"
)

// Superuser is the name of the one role of a new server.
const Superuser = "postgres"

// includeLine makes postgresql.conf read our settings. postgresql.auto.conf,
// which ALTER SYSTEM writes, is read later and wins.
const includeLine = "\ninclude = 'onceward.conf'\n"

// folder is where a server lives: data/, postgres.log and password.
type folder struct {
	path      string
	temporary bool
	user      *process.User // who runs the programs; nil is ourselves
}

func (f folder) data() string     { return filepath.Join(f.path, "data") }
func (f folder) log() string      { return filepath.Join(f.path, "postgres.log") }
func (f folder) password() string { return filepath.Join(f.path, "password") }

// openFolder makes the folder, or takes the one that is there.
func openFolder(dir string) (folder, error) {
	user, err := process.Unprivileged()
	if err != nil {
		return folder{}, err
	}
	f := folder{path: dir, temporary: dir == "", user: user}
	if f.temporary {
		f.path, err = os.MkdirTemp("", "onceward-postgres-")
		if err == nil {
			err = user.Own(f.path)
		}
	} else {
		if f.path, err = filepath.Abs(dir); err == nil {
			err = os.MkdirAll(f.path, 0o755) //nolint:gosec // G301: the server's user must be able to enter
		}
	}
	if err == nil {
		err = user.Reach(f.path)
	}
	if err != nil {
		return folder{}, errors.Join(fmt.Errorf("make the folder of a PostgreSQL server: %w", err), f.discard(), f.refused(err))
	}
	return f, nil
}

// refused says what to do where root was not allowed to have another user run the server;
// nil: that is not why err came.
func (f folder) refused(err error) error {
	if f.user == nil || !errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return fmt.Errorf("PostgreSQL refuses to run as root, so root has %s run it; where root may not do that, as in a container "+
		"without CAP_SETUID, CAP_SETGID and CAP_CHOWN, run this as an ordinary user", f.user.Name)
}

// discard removes a temporary folder.
func (f folder) discard() error {
	if !f.temporary || f.path == "" {
		return nil
	}
	if err := os.RemoveAll(f.path); err != nil {
		return fmt.Errorf("remove the server's folder: %w", err)
	}
	return nil
}

// prepare runs initdb where there is no data yet, and returns the superuser's
// password.
func (f folder) prepare(ctx context.Context, b Binaries) (string, error) {
	version, err := os.ReadFile(filepath.Join(f.data(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return f.initialise(ctx, b)
	}
	if err != nil {
		return "", fmt.Errorf("look for data: %w", err)
	}
	if have := strings.TrimSpace(string(version)); have != strconv.Itoa(b.Major) {
		return "", fmt.Errorf("use the data in %s: it is of PostgreSQL %s, and the binaries in %s are of %d; ask for version %s, or choose another folder",
			f.data(), have, b.Dir, b.Major, have)
	}
	password, err := os.ReadFile(f.password())
	if err != nil {
		return "", fmt.Errorf("read the superuser's password: %w", err)
	}
	return string(password), nil
}

func (f folder) initialise(ctx context.Context, b Binaries) (string, error) {
	password := rand.Text()
	if err := f.write(f.password(), password, 0o600); err != nil {
		return "", err
	}
	if err := os.Mkdir(f.data(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make the data folder: %w", err)
	}
	if err := f.user.Own(f.data()); err != nil {
		return "", fmt.Errorf("give the data folder to its user: %w", err)
	}
	_, err := process.Run(ctx, process.Spec{
		Path: b.path("initdb"),
		Args: []string{
			"--pgdata=" + f.data(), "--username=" + Superuser, "--pwfile=" + f.password(),
			"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions",
		},
		Dir:  f.path,
		User: f.user,
	})
	if err != nil {
		return "", fmt.Errorf("initialise the data folder: %w", err)
	}
	main := filepath.Join(f.data(), "postgresql.conf")
	text, err := os.ReadFile(main) //nolint:gosec // G304: a file of the folder that initdb has just made
	if err != nil {
		return "", fmt.Errorf("read the configuration that initdb made: %w", err)
	}
	return password, f.write(main, string(text)+includeLine, 0o600)
}

// configure writes the settings of this start.
func (f folder) configure(settings map[string]string, port int) error {
	return f.write(filepath.Join(f.data(), "onceward.conf"), configuration(settings, port), 0o600)
}

// write writes a file that the server's user owns.
func (f folder) write(path, text string, mode fs.FileMode) error {
	if err := os.WriteFile(path, []byte(text), mode); err != nil { //nolint:gosec // G703: the folder is the caller's choice
		return fmt.Errorf("write a file of the server: %w", err)
	}
	if err := f.user.Own(path); err != nil {
		return fmt.Errorf("give %s to its user: %w", path, err)
	}
	return nil
}
