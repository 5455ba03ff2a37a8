package cachedir_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/cachedir"
)

// place points the cache at a folder of the test and returns a place in it.
func place(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	t.Setenv(cachedir.Variable, root)
	dir, err := cachedir.Path("thing", "1.0")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(root, "thing", "1.0"), dir)
	return dir
}

// put is a fetch that writes one program.
func put(text string) func(context.Context, string) error {
	return func(_ context.Context, staging string) error {
		if err := os.MkdirAll(filepath.Join(staging, "bin"), 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(staging, "bin", "program"), []byte(text), 0o700)
	}
}

func TestFillKeepsTheFirstDownloadAndOpensItToAll(t *testing.T) {
	dir := place(t)
	require.NoError(t, cachedir.Fill(t.Context(), dir, put("first")))
	require.NoError(t, cachedir.Fill(t.Context(), dir, put("second")))
	text, err := os.ReadFile(filepath.Join(dir, "bin", "program"))
	require.NoError(t, err)
	require.Equal(t, "first", string(text))
	for _, path := range []string{"", "bin", "bin/program"} {
		info, err := os.Stat(filepath.Join(dir, path))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), path)
	}
}

func TestAFailedFillLeavesNothing(t *testing.T) {
	dir := place(t)
	broken := errors.New("the line was cut")
	err := cachedir.Fill(t.Context(), dir, func(ctx context.Context, staging string) error {
		return errors.Join(put("half")(ctx, staging), broken)
	})
	require.ErrorIs(t, err, broken)
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestFillsAtTheSameTimeDoNotDisturbEachOther(t *testing.T) {
	dir := place(t)
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() { errs[i] = cachedir.Fill(t.Context(), dir, put("one of eight")) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestWithoutTheVariableThePathIsAbsolute(t *testing.T) {
	t.Setenv(cachedir.Variable, "")
	dir, err := cachedir.Path("thing")
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(dir))
	require.Equal(t, filepath.Join("onceward", "thing"), filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir)))
}
