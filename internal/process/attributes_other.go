//go:build !unix

package process

import (
	"os"
	"syscall"
)

// attributes has nothing to say where there are no credentials and groups.
func attributes(*Spec) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func (*User) owns(os.FileInfo) bool { return false }
