package process

import "syscall"

func attributes(s *Spec) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Credential: credential(s.User), Pdeathsig: s.DeathSignal}
	if s.Detached {
		attr.Setsid = true
	} else {
		attr.Setpgid = true
	}
	return attr
}
