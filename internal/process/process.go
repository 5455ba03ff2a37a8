package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// Spec says what to start.
type Spec struct {
	// Path is the program, absolute or found in PATH. Required.
	Path string
	// Args are the program's arguments, without its name.
	Args []string
	// Dir is the working directory; empty is that of this program.
	Dir string
	// Env is added to the environment of this program.
	Env []string
	// LogFile gets standard output and error, appended. Required by [Start].
	LogFile string
	// User runs the program; nil is the user of this program.
	User *User
	// DeathSignal is what the kernel sends to the child when this program
	// dies (Linux only). 0 sends nothing.
	DeathSignal syscall.Signal
	// Detached puts the child into a session of its own, for a child that is
	// meant to outlive this program. DeathSignal must then be 0.
	Detached bool
}

// Process is a child that was started. Its methods may be called by several
// goroutines at once.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; read only after done is closed
}

// Start starts the program and returns without waiting for it to be useful.
// The child's life does not depend on a context; end it with [Process.Stop] or
// [Process.Kill].
func Start(spec Spec) (*Process, error) {
	if spec.Detached && spec.DeathSignal != 0 {
		return nil, fmt.Errorf("start %s: DeathSignal is %v, but a detached process outlives this program", spec.Path, spec.DeathSignal)
	}
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // G302: the log of a test server is no secret
	if err != nil {
		return nil, fmt.Errorf("start %s: open its log: %w", spec.Path, err)
	}
	defer log.Close() //nolint:errcheck // the child holds its own copy; nothing was written through this one
	cmd := spec.command()
	cmd.Stdout, cmd.Stderr = log, log
	p := &Process{name: filepath.Base(spec.Path), cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	return p, nil
}

// run is the one goroutine of the process. It never unlocks its thread, which
// therefore ends with it.
func (p *Process) run(started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
	}
}

// command puts the parts that are the same for every way to run together.
func (s *Spec) command() *exec.Cmd {
	cmd := exec.Command(s.Path, s.Args...) //nolint:gosec,noctx // G204: this package starts programs; Stop bounds their life, not a context
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.SysProcAttr = attributes(s)
	return cmd
}

// PID returns the process id, also after the end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended: nil for status 0, an [*exec.ExitError]
// otherwise. It is nil while the process runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends the signal. A process that has ended is [os.ErrProcessDone].
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Stop sends the signal and waits for the end. When ctx ends first, the
// process is killed, and the error matches ctx's. A process that has ended
// already is no error, and neither is the status it ends with.
func (p *Process) Stop(ctx context.Context, sig os.Signal) error {
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s (process %d): %w", p.name, p.PID(), err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("stop %s (process %d): it did not end after %v in time and was killed: %w", p.name, p.PID(), sig, ctx.Err())
	}
}

// Kill ends the process with SIGKILL and returns when it was reaped.
func (p *Process) Kill() {
	// The only failure is a process that has ended, which is what was asked.
	_ = p.Signal(os.Kill)
	<-p.done
}

// Run runs the program to its end and returns what it printed, standard output
// and error together. When ctx ends first, the program is killed. The error
// holds the end of what was printed. LogFile, DeathSignal and Detached are not
// used.
func Run(ctx context.Context, spec Spec) (string, error) {
	template := spec.command()
	cmd := exec.CommandContext(ctx, spec.Path, spec.Args...) //nolint:gosec // G204: starting programs is what this package is for
	cmd.Dir, cmd.Env, cmd.SysProcAttr = template.Dir, template.Env, template.SysProcAttr
	out, err := cmd.CombinedOutput()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return string(out), fmt.Errorf("run %s: %w%s", spec.Path, err, quoteTail(string(out)))
	}
	return string(out), nil
}
