//go:build unix

package process

import (
	"os"
	"syscall"
)

// credential also drops the supplementary groups, of which root may have some.
func credential(u *User) *syscall.Credential {
	if u == nil {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: []uint32{}}
}

func (u *User) owns(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == u.UID
}
