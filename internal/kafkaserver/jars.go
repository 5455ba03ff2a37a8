package kafkaserver

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/onceward/onceward/internal/cachedir"
	"github.com/onceward/onceward/internal/process"
)

// DefaultVersion is the version of Kafka that pom.xml names.
const DefaultVersion = "4.1.1"

// ErrNoJars is matched by the error of [Start] when the jars are not in the
// cache.
var ErrNoJars = errors.New("the jars of Kafka are not in the cache")

//go:embed pom.xml
var pom []byte

// jars returns the folder of a version in the cache and whether it is there. It is also
// that of pom.xml, so that what was fetched by another one is fetched anew.
func jars(version string) (string, error) {
	dir, err := cachedir.Path("kafka", fmt.Sprintf("%s-%.4x", version, sha256.Sum256(pom)))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(coreJar(dir, version)); err != nil {
		return dir, fmt.Errorf("%w: no %s; run `make deps`", ErrNoJars, coreJar(dir, version))
	}
	return dir, nil
}

// coreJar is the jar that holds the broker, so a folder without it is not one
// of ours.
func coreJar(dir, version string) string {
	return filepath.Join(dir, "kafka_2.13-"+version+".jar")
}

// Fetch puts the jars of a version (empty is [DefaultVersion]) into the cache
// and returns their folder. It runs Maven, some 45 MB the first time, and does
// nothing when they are there.
func Fetch(ctx context.Context, version string) (string, error) {
	if version == "" {
		version = DefaultVersion
	}
	dir, err := jars(version)
	if err == nil || !errors.Is(err, ErrNoJars) {
		return dir, err
	}
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("fetch Kafka %s: %w; install Maven: Debian and Ubuntu `apt-get install maven`, macOS `brew install maven`", version, err)
	}
	err = cachedir.Fill(ctx, dir, func(ctx context.Context, staging string) error {
		return resolve(ctx, maven, version, staging)
	})
	if err != nil {
		return "", fmt.Errorf("fetch Kafka %s: %w", version, err)
	}
	return jars(version)
}

// resolve has Maven copy the jars into dir.
func resolve(ctx context.Context, maven, version, dir string) error {
	project := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(project, pom, 0o644); err != nil { //nolint:gosec // G306: nothing secret, and the cache is for everybody
		return fmt.Errorf("write the Maven project: %w", err)
	}
	_, err := process.Run(ctx, process.Spec{
		Path: maven,
		Args: []string{
			"--batch-mode", "--quiet", "--file", project, "-Dkafka.version=" + version,
			"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=" + dir,
		},
		Dir: dir,
	})
	return err
}

// java returns the Java program: that of JAVA_HOME, else the one in PATH.
func java() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		path := filepath.Join(home, "bin", "java")
		if _, err := os.Stat(path); err != nil { //nolint:gosec // G703: the user's own JAVA_HOME
			return "", fmt.Errorf("JAVA_HOME is %q: %w", home, err)
		}
		return path, nil
	}
	path, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("java is not in PATH; run `make deps`, or install Java 17 or newer: %w", err)
	}
	return path, nil
}
