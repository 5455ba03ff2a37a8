//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// Moves of TestAccount by commands that decide nothing about events: what they say is
// compared with what is.

// watchStatus lets `status --watch` look while other moves are under way, until it is
// interrupted: it ends then, as the last look would have.
func (a *accounting) watchStatus(s step) bool {
	log := filepath.Join(a.t.TempDir(), "log")
	p, err := process.Start(process.Spec{
		Path: outboxctlBinary(a.t), Args: []string{"status", "--watch", "--every", "500ms"}, LogFile: log,
		Env: []string{"OUTBOXCTL_DSN=" + a.dsn(operatorLogin), "OUTBOXCTL_INSECURE=true"},
	})
	require.NoError(a.t, err)
	interrupt := sync.OnceFunc(func() { _ = p.Signal(os.Interrupt) }) // another one would kill it
	a.nemesis.undos = append(a.nemesis.undos, undo{time.Now().Add(s.lasting), func() bool {
		interrupt()
		select {
		case <-p.Done():
		default:
			return false
		}
		var exit *exec.ExitError
		if errors.As(p.Err(), &exit) && !slices.Contains([]int{1, 3}, exit.ExitCode()) {
			said, err := os.ReadFile(log)
			require.NoError(a.t, err)
			if len(said) == 0 && exit.ExitCode() == -1 {
				return true // it had not begun: no program hears a signal before that
			}
			a.found = append(a.found, violation{accountTrue, fmt.Sprintf("status --watch was interrupted and ended with %v: %s", exit, said)})
		}
		return true
	}})
	return true
}

// awaitEvent waits for the newest event, or for some other, until it is published: what
// is said then is compared with the topics at the next quiet moment.
func (a *accounting) awaitEvent(s step) bool {
	row, ok := a.row(s)
	if !ok {
		return false
	}
	out, code := a.ctl("show", row.Key, "--relay", a.name, "--wait", "2s", "--output", "json")
	if code != 0 && code != 3 {
		return false
	}
	var life struct {
		State  string `json:"state"`
		Waited string `json:"waited_in_vain"`
	}
	require.NoError(a.t, json.Unmarshal([]byte(out), &life), out)
	ended := life.State != "pending" && life.State != "waiting"
	if ended == (life.Waited != "") {
		a.found = append(a.found, violation{accountTrue, fmt.Sprintf("show --wait ended with %d, and says: %s", code, out)})
	}
	if life.State == "published" {
		a.said[row.Key] = fmt.Sprintf("%s at %s", out, time.Since(a.nemesis.began).Round(time.Millisecond))
	}
	return true
}

// createTopics makes those that are missing by outboxctl. It asks where Kafka is reached
// past no fault: else it waits longer than a move may.
func (a *accounting) createTopics(step) bool {
	if len(a.nemesis.undos) > 0 || a.cluster() == "" {
		return false
	}
	out, code := a.ctlIn([]string{"ONCEWARD_KAFKA_MODE=" + a.mode}, "topics", "create", "--config", a.relays[0].config, "--output", "json")
	if code != 0 && code != 3 { // 3: some rows lead to names that no topic can have
		return false
	}
	var report struct {
		Made       []string
		Partitions int32
		Checkpoint string
	}
	require.NoError(a.t, json.Unmarshal([]byte(out), &report), out)
	if report.Checkpoint != "" {
		a.violated("topics create says that it made %s, which relays in exactly-once mode use: %s", report.Checkpoint, out)
	}
	for _, topic := range report.Made {
		kind := strings.TrimPrefix(topic, a.name+".")
		if a.makeTopic(kind) {
			a.found = append(a.found, violation{accountTrue, fmt.Sprintf("topics create says that it made %s, which was not there", topic)})
		}
		a.made[kind], a.widths[kind] = true, report.Partitions
	}
	if a.mode == "exactly-once" {
		a.nemesis.note(step{at: time.Since(a.nemesis.began), pack: topicsCreatedOnce})
	}
	return len(report.Made) > 0
}

// retireTypo starts a relay under a wrong name, which halts and begins nothing, ends it,
// and has it forgotten.
func (a *accounting) retireTypo(s step) bool {
	name := a.name + "_typo"
	known := func() bool {
		return a.holds(`SELECT EXISTS (SELECT FROM onceward.relay_health WHERE relay = $1)`, name)
	}
	if known() {
		return false
	}
	r := a.startStaying(name, `routes: [{topic: "{namespace}.{aggregate_type}"}]`)
	typo := r.process
	a.undoes(s.lasting+time.Second, func() bool {
		_ = typo.Signal(syscall.SIGTERM)
		select {
		case <-typo.Done():
			r.process = nil
		default:
			return false
		}
		if a.holds(`SELECT NOT EXISTS (SELECT FROM onceward.relay_health WHERE relay = $1)`, name) {
			return true // it was ended before it had said anything, or is forgotten already
		}
		_, code := a.ctl("retire", "--relay", name, "--yes", "--reason", "move")
		return code == 0
	})
	return true
}
