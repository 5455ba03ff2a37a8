package cachedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Variable is the environment variable that moves the cache. It does not begin
// with ONCEWARD_: a relay refuses such names when it does not know them, and
// tests hand their environment on.
const Variable = "TESTSERVER_CACHE"

// forRoot is the cache of root. Servers that root starts run as nobody, who
// cannot enter root's home folder.
const forRoot = "/var/cache/onceward"

// Path returns the place of a thing in the cache, which need not exist:
// $TESTSERVER_CACHE, /var/cache/onceward for root, onceward in the user's cache
// folder otherwise, joined with the given elements.
func Path(elem ...string) (string, error) {
	root := os.Getenv(Variable)
	if root == "" && os.Geteuid() == 0 {
		root = forRoot
	}
	if root == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the user's cache folder (set %s to choose one): %w", Variable, err)
		}
		root = filepath.Join(dir, "onceward")
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return "", fmt.Errorf("make %s absolute: %w", Variable, err)
	}
	return filepath.Join(append([]string{root}, elem...)...), nil
}

// Fill makes the folder dir by giving fetch an empty folder beside it, which is
// renamed to dir when fetch returns nil and removed otherwise. A dir that is
// there already is left alone. Everything becomes readable by everybody.
func Fill(ctx context.Context, dir string, fetch func(ctx context.Context, staging string) error) error {
	if exists(dir) {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil { //nolint:gosec // G301: a server that runs as nobody reads from here
		return fmt.Errorf("make the cache folder (set %s to choose another): %w", Variable, err)
	}
	staging, err := os.MkdirTemp(parent, ".fetching-")
	if err != nil {
		return fmt.Errorf("make a folder for the download: %w", err)
	}
	defer os.RemoveAll(staging) //nolint:errcheck // after the rename there is nothing left; a rest does no harm
	if err := fetch(ctx, staging); err != nil {
		return err
	}
	if err := openToAll(staging); err != nil {
		return err
	}
	if err := os.Rename(staging, dir); err != nil && !exists(dir) {
		return fmt.Errorf("put the download in its place: %w", err)
	}
	return nil // also when another program was faster: its download is as good
}

// openToAll adds what a strict umask took: reading for all, and entering and
// executing wherever the owner may.
func openToAll(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("read the download: %w", err)
		}
		if !entry.IsDir() && !entry.Type().IsRegular() {
			return nil // a symbolic link has no rights of its own
		}
		info, err := entry.Info()
		if err != nil {
			return fmt.Errorf("read the download: %w", err)
		}
		mode := info.Mode().Perm() | 0o444
		if mode&0o100 != 0 {
			mode |= 0o111
		}
		if err := os.Chmod(path, mode); err != nil { //nolint:gosec // G122: nobody else writes into the staging folder
			return fmt.Errorf("open the download to all: %w", err)
		}
		return nil
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
