package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/cachedir"
	"github.com/onceward/onceward/internal/process"
)

// newest is the newest major version that the library can fetch.
const newest = 18

// ErrNotInstalled is matched by the error for a version that neither the system
// nor the cache has and that could not be fetched.
var ErrNotInstalled = errors.New("no server binaries of PostgreSQL")

// Binaries are the programs of one installation.
type Binaries struct {
	Dir   string // holds initdb and postgres
	Major int
}

func (b Binaries) path(name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(b.Dir, name)
}

// Find returns the server binaries of the system for a major version, or, when
// major is 0, those of pg_config's installation, else of the newest supported
// one. It looks at pg_config in PATH, at the folders of Debian, Red Hat,
// Homebrew and Postgres.app, and runs `postgres --version` in each. When there
// are none, the error matches [ErrNotInstalled].
func Find(ctx context.Context, major int) (Binaries, error) {
	for _, dir := range candidates(ctx, major) {
		found, err := inspect(ctx, dir)
		if err == nil && (found.Major == major || major == 0 && found.Major >= Oldest) {
			return found, nil
		}
	}
	if major == 0 {
		return Binaries{}, fmt.Errorf("%w %d or newer are installed", ErrNotInstalled, Oldest)
	}
	return Binaries{}, fmt.Errorf("%w %d are installed", ErrNotInstalled, major)
}

// candidates lists the folders in which to look, the likeliest first.
func candidates(ctx context.Context, major int) []string {
	var dirs []string
	if config, err := exec.LookPath("pg_config"); err == nil {
		if out, err := exec.CommandContext(ctx, config, "--bindir").Output(); err == nil { //nolint:gosec // G204: pg_config of the user's own PATH
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	if major != 0 {
		return append(dirs, folders(major)...)
	}
	for m := newest; m >= Oldest; m-- {
		dirs = append(dirs, folders(m)...)
	}
	return dirs
}

// folders are the places in which packagers put a major version. Pure.
func folders(major int) []string {
	m := strconv.Itoa(major)
	return []string{
		"/usr/lib/postgresql/" + m + "/bin",
		"/usr/pgsql-" + m + "/bin",
		"/opt/homebrew/opt/postgresql@" + m + "/bin",
		"/usr/local/opt/postgresql@" + m + "/bin",
		"/Applications/Postgres.app/Contents/Versions/" + m + "/bin",
	}
}

// versionLine is what `postgres --version` prints, in betas, too.
var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect runs the programs in dir. A client-only installation has no postgres.
func inspect(ctx context.Context, dir string) (Binaries, error) {
	b := Binaries{Dir: dir}
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(b.path(name)); err != nil {
			return Binaries{}, fmt.Errorf("look for %s: %w", name, err)
		}
		out, err := process.Run(ctx, process.Spec{Path: b.path(name), Args: []string{"--version"}})
		if err != nil {
			return Binaries{}, err
		}
		match := versionLine.FindStringSubmatch(out)
		if match == nil {
			return Binaries{}, fmt.Errorf("read the version of %s: it says %q", b.path(name), out)
		}
		if b.Major, err = strconv.Atoi(match[1]); err != nil {
			return Binaries{}, fmt.Errorf("read the version of %s: %w", b.path(name), err)
		}
	}
	return b, nil
}

// obtain returns the binaries for Options.Version: the system's, else fetched.
func obtain(ctx context.Context, version string) (Binaries, error) {
	major := 0
	if version != "" {
		var err error
		if major, err = strconv.Atoi(version); err != nil {
			return Binaries{}, fmt.Errorf("pgserver: Version is %q: %w", version, err)
		}
	}
	found, err := Find(ctx, major)
	if err == nil {
		return found, nil
	}
	if major == 0 {
		major = newest
	}
	fetched, fetchErr := Fetch(ctx, major)
	if fetchErr != nil {
		return Binaries{}, fmt.Errorf("%w, and they could not be fetched: %w\n%s", err, fetchErr, advice(major))
	}
	return fetched, nil
}

// advice says how to have a major version without this download.
func advice(major int) string {
	return fmt.Sprintf("install them: Debian and Ubuntu `apt-get install postgresql-%[1]d`, macOS `brew install postgresql@%[1]d`; "+
		"or put a PostgreSQL's pg_config into PATH; or let %[2]s name a mirror of Maven Central; "+
		"or let %[3]s be a folder that was filled where the download works", major, Repository, cachedir.Variable)
}
