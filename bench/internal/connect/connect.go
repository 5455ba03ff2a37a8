// Package connect runs Debezium's Outbox Event Router on Kafka Connect, as a process of its own,
// for the benchmark to measure.
//
// The jars come from Maven, some 70 MB: [Fetch] copies what pom.xml names into the cache, once.
package connect

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/onceward/onceward/internal/cachedir"
	"github.com/onceward/onceward/internal/process"
)

// The versions that pom.xml names.
const (
	Debezium = "3.6.1.Final"
	Kafka    = "4.3.0"
)

//go:embed pom.xml
var pom []byte

// Fetch puts the jars into the cache and returns their folder. It runs Maven, and does nothing
// when they are there.
func Fetch(ctx context.Context) (string, error) {
	dir, err := cachedir.Path("debezium", Debezium+"-"+Kafka)
	if err != nil {
		return "", err
	}
	maven, err := exec.LookPath("mvn")
	if _, there := os.Stat(dir); err != nil && there != nil {
		return "", fmt.Errorf("fetch Debezium %s: %w; `make deps` installs Maven", Debezium, err)
	}
	err = cachedir.Fill(ctx, dir, func(ctx context.Context, staging string) error {
		project := filepath.Join(staging, "pom.xml")
		if err := os.WriteFile(project, pom, 0o644); err != nil { //nolint:gosec // G306: nothing secret, and the cache is for everybody
			return fmt.Errorf("write the Maven project: %w", err)
		}
		_, err := process.Run(ctx, process.Spec{Path: maven, Dir: staging, Args: []string{
			"--batch-mode", "--quiet", "--file", project,
			"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=" + staging,
		}})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("fetch Debezium %s: %w", Debezium, err)
	}
	return dir, nil
}

// Start starts Kafka Connect with one connector, each of a file of properties.
func Start(jars string, worker, connector, logFile string) (*process.Process, error) {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	return process.Start(process.Spec{
		Path: java, LogFile: logFile, DeathSignal: syscall.SIGKILL,
		Args: []string{"-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(jars, "*"),
			"org.apache.kafka.connect.cli.ConnectStandalone", worker, connector},
	})
}
