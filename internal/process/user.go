package process

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// unprivileged is the account that root runs servers as when they refuse root.
const unprivileged = "nobody"

// User is an account that a child runs as.
type User struct {
	Name     string
	UID, GID uint32
}

// Unprivileged returns the account for a server that refuses to run as root:
// nil, this program's own user, unless this program is root; nobody then.
func Unprivileged() (*User, error) {
	if os.Geteuid() != 0 { // -1 on Windows
		return nil, nil //nolint:nilnil // a nil User has a meaning, which Spec.User states
	}
	account, err := user.Lookup(unprivileged)
	if err != nil {
		return nil, fmt.Errorf("look up the account %q, as which root runs servers (make it, or run this as an ordinary user): %w", unprivileged, err)
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read the user id of %q: %w", unprivileged, err)
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read the group id of %q: %w", unprivileged, err)
	}
	return &User{Name: unprivileged, UID: uint32(uid), GID: uint32(gid)}, nil
}

// Own gives the file or folder to the user. A nil User changes nothing.
func (u *User) Own(path string) error {
	if u == nil {
		return nil
	}
	return os.Chown(path, int(u.UID), int(u.GID))
}

// Reach checks that the user may enter every folder on the way to path, path
// included, and names the first that is closed. It looks at the permission of
// everybody, so it may refuse a folder that a group or an access list opens.
// A nil User reaches everything that this program does.
func (u *User) Reach(path string) error {
	if u == nil {
		return nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("make %s absolute: %w", path, err)
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 && !u.owns(info) {
			return fmt.Errorf("the user %s may not enter %s (mode %04o), which is on the way to %s; "+
				"choose a folder that everybody may enter, for example by TMPDIR", u.Name, dir, info.Mode().Perm(), path)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
