package pgserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// install writes programs that print a version, in place of an installation.
func install(t *testing.T, dir, version string, programs ...string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range programs {
		text := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + "'\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	return dir
}

// configured puts a pg_config into an otherwise empty PATH.
func configured(t *testing.T, bindir string) {
	t.Helper()
	dir := t.TempDir()
	text := "#!/bin/sh\necho '" + bindir + "'\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pg_config"), []byte(text), 0o755))
	t.Setenv("PATH", dir)
}

func TestFindTakesThePgConfigInThePath(t *testing.T) {
	dir := install(t, t.TempDir(), "97.2 (Debian 97.2-1)", "initdb", "postgres")
	configured(t, dir)
	for _, major := range []int{0, 97} {
		found, err := Find(t.Context(), major)
		require.NoError(t, err)
		require.Equal(t, Binaries{Dir: dir, Major: 97}, found)
	}
}

func TestFindRefusesAnotherMajorVersion(t *testing.T) {
	configured(t, install(t, t.TempDir(), "97.2", "initdb", "postgres"))
	_, err := Find(t.Context(), 96)
	require.ErrorIs(t, err, ErrNotInstalled)
	require.ErrorContains(t, err, "96")
}

func TestFindPassesOverAClientOnlyInstallation(t *testing.T) {
	configured(t, install(t, t.TempDir(), "97.2", "initdb"))
	_, err := Find(t.Context(), 97)
	require.ErrorIs(t, err, ErrNotInstalled)
}

func TestInspectUnderstandsBetasAndNamesWhatItDoesNot(t *testing.T) {
	beta, err := inspect(t.Context(), install(t, t.TempDir(), "19beta1", "initdb", "postgres"))
	require.NoError(t, err)
	require.Equal(t, 19, beta.Major)

	_, err = inspect(t.Context(), install(t, t.TempDir(), "unknown", "initdb", "postgres"))
	require.ErrorContains(t, err, "read the version of")
}

func TestAVersionThatNobodyHasSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Start(t.Context(), Options{Version: "99"})
	require.ErrorIs(t, err, ErrNotInstalled)
	require.ErrorContains(t, err, "apt-get install postgresql-99")
}
