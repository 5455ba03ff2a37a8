//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
)

// versions are the PostgreSQL versions that every scenario runs on: the oldest
// and the newest that are supported.
var versions = []string{"15", "18"}

// shared holds what all tests of a run use: started at first use, stopped at the
// end.
var shared struct {
	dir      string
	mu       sync.Mutex
	roles    sync.Mutex // held while roles are made, which belong to a server
	kafka    *kafkaserver.Cluster
	postgres map[string]*pgserver.Server
	binaries map[string]string // relay by build tags
	grounds  map[int]*ground   // Kafka behind faults, by the number of brokers
}

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if task := os.Getenv(consumerTask); task != "" {
		return runConsumer(task)
	}
	dir, err := os.MkdirTemp("", "onceward-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared.dir, shared.postgres, shared.binaries = dir, map[string]*pgserver.Server{}, map[string]string{}
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, s := range shared.postgres {
		errs = append(errs, leftovers(ctx, s), s.Stop(ctx))
	}
	if shared.kafka != nil {
		errs = append(errs, shared.kafka.Stop(ctx))
	}
	for _, g := range shared.grounds {
		errs = append(errs, g.stop(ctx))
	}
	errs = append(errs, os.RemoveAll(dir))
	for _, err := range errs {
		if err != nil {
			fmt.Fprintln(os.Stderr, "after the tests:", err)
			code = max(code, 1)
		}
	}
	return code
}

// kafka returns the cluster of one broker that the tests share.
func kafka(t *testing.T) *kafkaserver.Cluster {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.kafka == nil {
		c, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Brokers: 1, Settings: map[string]string{"group.min.session.timeout.ms": "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		shared.kafka = c
	}
	return shared.kafka
}

// postgres returns the server of a version that the tests share.
func postgres(t *testing.T, version string) *pgserver.Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.postgres[version] == nil {
		s, err := pgserver.Start(t.Context(), pgserver.Options{Version: version})
		if err != nil {
			t.Fatal(err)
		}
		shared.postgres[version] = s
	}
	return shared.postgres[version]
}

// relayBinary builds cmd/relay once per set of build tags.
func relayBinary(t *testing.T, tags string) string {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.binaries[tags] == "" {
		path := filepath.Join(shared.dir, "relay-"+tags)
		out, err := process.Run(t.Context(), process.Spec{Path: "go", Args: []string{"build", "-tags", tags, "-o", path, "../cmd/relay"}})
		if err != nil {
			t.Fatal(err, out)
		}
		shared.binaries[tags] = path
	}
	return shared.binaries[tags]
}
