//go:build e2e

package quickstart

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	repository = "../.."
	published  = "https://github.com/onceward/onceward" // what the README clones
	consuming  = "go run ./hello/consume"               // runs until it is told to end
	receipt    = "receipt for inv-7"                    // what it prints of an effect
	patience   = 20 * time.Minute                       // for one block, with everything to build on a busy machine
)

// TestQuickstart is a stranger who types the README's quick start, and then
// docs/quickstart.md, into one shell: in a folder where nothing is, from a clone of
// this tree. With E2E_FULL nothing is built before either.
func TestQuickstart(t *testing.T) {
	readme, page := blocks(t, "README.md", "## Quick start"), blocks(t, "docs/quickstart.md", "# Quick start")
	require.GreaterOrEqual(t, len(readme), 5)
	require.GreaterOrEqual(t, len(page), 8)
	sh := start(t)
	began := time.Now()
	for i, block := range readme {
		out := sh.typed(t, block)
		switch {
		case strings.Contains(block, consuming):
			t.Logf("the first effect of an own event: %.0f s", time.Since(began).Seconds())
		case strings.Contains(block, "make stack"):
			require.Contains(t, out, "has arrived: topic payments.invoice")
		case strings.Contains(block, "outboxctl show"):
			require.Regexp(t, `found in topic payments.invoice partition \d offset 1`, out)
			require.Regexp(t, `billing +processed`, out)
		}
		t.Logf("README, block %d: %.0f s", i+1, time.Since(began).Seconds())
	}
	goesOn(t, sh, page)
	require.Empty(t, sh.run(t, "git status --short"), "what it leaves behind")
}

// goesOn is docs/quickstart.md.
func goesOn(t *testing.T, sh *shell, page []string) {
	t.Helper()
	for i, block := range page {
		out := sh.typed(t, block)
		switch {
		case strings.Contains(block, consuming):
			require.NotContains(t, out, receipt, "behind the first")
		case strings.Contains(block, "kill -9"):
			require.Regexp(t, `payments:\S+ +pending`, out)
		case strings.Contains(block, "outboxctl status"):
			require.Contains(t, out, "exit code 3")
		case strings.Contains(block, `show "$KEY"`), strings.Contains(block, `show "$AFTER"`):
			require.Regexp(t, `state +published: `, out)
		case strings.Contains(block, "dead list"):
			require.Regexp(t, `state +dead: record: row cannot become a record: size: `, out)
			require.Contains(t, out, "parked-aggregate: an older letter holds its aggregate")
		case strings.Contains(block, "stack-down"):
			require.Contains(t, out, "the stack is down")
		}
		t.Logf("docs/quickstart.md, block %d:\n%s\n%s", i+1, block, out)
	}
}

var fence = regexp.MustCompile("(?s)```sh\n(.*?)```")

// blocks are those of shell commands in the part of a page that a heading begins.
func blocks(t *testing.T, path, heading string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, path))
	require.NoError(t, err)
	_, part, found := strings.Cut(string(text), heading+"\n")
	require.True(t, found, "%s has %q", path, heading)
	if strings.HasPrefix(heading, "## ") {
		part, _, _ = strings.Cut(part, "\n## ")
	}
	var all []string
	for _, found := range fence.FindAllStringSubmatch(part, -1) {
		all = append(all, found[1])
	}
	return all
}

// shell is a bash that reads one block after the other, as it would from a person.
type shell struct {
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
	ended chan struct{}
	count int
}

// start begins a shell in an empty folder, in which the published repository is this
// tree: what is tracked of it, or would be.
func start(t *testing.T) *shell {
	t.Helper()
	origin := copyOfTree(t)
	cmd := exec.Command("bash")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url."+origin+".insteadOf", "GIT_CONFIG_VALUE_0="+published)
	if os.Getenv("E2E_FULL") != "" {
		cmd.Env = append(cmd.Env, "GOCACHE="+t.TempDir())
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	sh := &shell{cmd: cmd, in: in, lines: make(chan string, 1<<16), ended: make(chan struct{})}
	go func() {
		defer close(sh.ended)
		_, _ = cmd.Process.Wait()
	}()
	go func() { // what it has started in the background has its output, too
		for scan := bufio.NewScanner(out); scan.Scan(); {
			sh.lines <- scan.Text()
		}
	}()
	t.Cleanup(func() {
		down := exec.Command("make", "stack-down") // where the page did not come so far
		down.Dir = filepath.Join(cmd.Dir, "onceward")
		_ = down.Run()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-sh.ended
	})
	_, err = io.WriteString(in, "set -eo pipefail\ntrap : INT\n")
	require.NoError(t, err)
	return sh
}

// copyOfTree is a repository with the files of this one as they are, which need not be
// under git.
func copyOfTree(t *testing.T) string {
	t.Helper()
	origin := t.TempDir()
	copied := exec.Command("bash", "-euo", "pipefail", "-c", `
{ git ls-files -z --cached --others --exclude-standard || find . -path ./.git -prune -o -path ./.bin -prune -o -type f -print0; } |
  while IFS= read -r -d '' f; do test ! -e "$f" || printf '%s\0' "$f"; done |
  tar --null --files-from=- -cf - | tar -xf - -C "$0"
cd "$0"
git init -q
git add -A
git -c user.name=t -c user.email=t@t commit -qm tree`, origin)
	copied.Dir = repository
	out, err := copied.CombinedOutput()
	require.NoError(t, err, string(out))
	return origin
}

// begin types a block.
func (s *shell) begin(block string) {
	s.count++
	fmt.Fprintf(s.in, "%s\necho '@@' %d $?\n", block, s.count)
}

// end returns what a block has printed, when it is done.
func (s *shell) end(t *testing.T, block string) string {
	t.Helper()
	return s.until(t, "@@ "+strconv.Itoa(s.count)+" 0", block)
}

func (s *shell) run(t *testing.T, block string) string {
	t.Helper()
	s.begin(block)
	return s.end(t, block)
}

// typed returns what a block has printed. One that consumes is interrupted when it has
// printed a receipt: then it is what came behind that.
func (s *shell) typed(t *testing.T, block string) string {
	t.Helper()
	s.begin(block)
	if strings.Contains(block, consuming) {
		s.await(t, receipt)
		s.interrupt(t, "consume")
	}
	return s.end(t, block)
}

// await returns when the block that runs has printed a line.
func (s *shell) await(t *testing.T, line string) {
	t.Helper()
	s.until(t, line, "")
}

func (s *shell) until(t *testing.T, want, block string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var said strings.Builder
	for {
		select {
		case line := <-s.lines:
			if line == want {
				return said.String()
			}
			fmt.Fprintln(&said, line)
		case <-s.ended:
			require.Fail(t, "the shell has ended", "in\n%s\nwith\n%s", block, &said)
		case <-ctx.Done():
			left, _ := exec.CommandContext(t.Context(), "ps", "-eo", "pid,ppid,etime,time,args").Output()
			require.Fail(t, "no answer", "%q did not come of\n%s\nbut\n%s\nbeside\n%s", want, block, &said, left)
		}
	}
}

// interrupt is Ctrl-C to the program of that name that the shell has started.
func (s *shell) interrupt(t *testing.T, name string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, rest, _ := strings.Cut(string(text), " (")
		comm, rest, _ := strings.Cut(rest, ") ")
		fields := strings.Fields(rest) // state, ppid, pgrp
		if comm == name && fields[2] == strconv.Itoa(s.cmd.Process.Pid) {
			id, err := strconv.Atoi(pid)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(id, syscall.SIGINT))
			return
		}
	}
	require.Fail(t, "not running", name)
}
