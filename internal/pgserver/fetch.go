package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	embedded "github.com/fergusstrange/embedded-postgres"

	"github.com/onceward/onceward/internal/cachedir"
)

// releases are the newest releases that the library knows, by major version.
var releases = map[int]embedded.PostgresVersion{
	15: embedded.V15,
	16: embedded.V16,
	17: embedded.V17,
	18: embedded.V18,
}

// Repository is the environment variable with the URL of a mirror of Maven Central, from
// which archives are downloaded in its place. It may have a user and a password.
const Repository = "TESTSERVER_REPOSITORY"

// extracted is the beginning of the error that the library's Start returns
// when initdb fails, which it runs right after it has extracted everything.
const extracted = "unable to init database"

// noLocale is a locale that no system has, so that initdb fails at once.
const noLocale = "onceward-only-extracts"

// Fetch returns the binaries of a major version from the cache, downloading
// them first when they are not there (some 10 MB, checked against their
// checksum; the download itself cannot be interrupted). It does not look at what the
// system has.
func Fetch(ctx context.Context, major int) (Binaries, error) {
	release, ok := releases[major]
	if !ok {
		return Binaries{}, fmt.Errorf("fetch PostgreSQL %d: the library has %d to %d", major, Oldest, newest)
	}
	dir, err := cachedir.Path("postgres", string(release))
	if err != nil {
		return Binaries{}, fmt.Errorf("fetch PostgreSQL %d: %w", major, err)
	}
	err = cachedir.Fill(ctx, dir, func(_ context.Context, staging string) error {
		return extract(release, staging)
	})
	if err != nil {
		return Binaries{}, fmt.Errorf("fetch PostgreSQL %s: %w", release, err)
	}
	found, err := inspect(ctx, filepath.Join(dir, "bin"))
	if err != nil {
		return Binaries{}, fmt.Errorf("use PostgreSQL %s from %s (remove that folder to fetch it again): %w", release, dir, err)
	}
	return found, nil
}

// extract has the library download and extract a release into dir. The library
// offers nothing but Start for it, and goes on to initdb, which root may not
// run. So it is given a locale with which initdb fails for everybody, and that
// failure is the proof that all before it went well.
func extract(release embedded.PostgresVersion, dir string) error {
	scratch, err := os.MkdirTemp("", "onceward-fetch-")
	if err != nil {
		return fmt.Errorf("make a folder for the archive: %w", err)
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a rest in the temporary folder does no harm
	config := embedded.DefaultConfig()
	mirror, err := mirror()
	if err != nil {
		return err
	}
	if mirror != nil {
		config = config.BinaryRepositoryURL(mirror.String())
	}
	var log bytes.Buffer
	err = embedded.NewDatabase(config.
		Version(release).
		Port(0).
		CachePath(filepath.Join(scratch, "archive")).
		RuntimePath(filepath.Join(scratch, "runtime")).
		DataPath(filepath.Join(scratch, "data")).
		BinariesPath(dir).
		Locale(noLocale).
		Logger(&log)).Start()
	switch {
	case err == nil:
		return fmt.Errorf("initdb took %q for a locale; the extraction cannot be told from a start", noLocale)
	case strings.HasPrefix(err.Error(), extracted):
		return nil
	case mirror != nil:
		return fmt.Errorf("download from the %s and extract: %s", Repository, strings.ReplaceAll(err.Error(), mirror.String(), mirror.Redacted()))
	default:
		return fmt.Errorf("download and extract: %w", err)
	}
}

// mirror returns what [Repository] says; nil: nothing.
func mirror() (*url.URL, error) {
	text := os.Getenv(Repository)
	if text == "" {
		return nil, nil //nolint:nilnil // there need not be one
	}
	mirror, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || mirror.Scheme != "http" && mirror.Scheme != "https" || mirror.Host == "" {
		// Neither the text nor the error is told: there may be a password in both.
		return nil, errors.New(Repository + " is no URL; want one such as https://maven.example.com/central, below which io/zonky/test/postgres is")
	}
	return mirror, nil
}
