// Command fetch puts what tests, demo and stack start into the cache: the
// binaries of a PostgreSQL that the system does not have, and the jars of
// Kafka. `make deps` runs it. What is there already is not fetched again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/pgserver"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	cancel()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fetch", flag.ContinueOnError)
	find := flags.Int("find", 0, "only say whether the system has this major `version` of PostgreSQL")
	postgres := flags.String("postgres", "", "comma-separated major `versions` of PostgreSQL to have")
	kafka := flags.String("kafka", "", "`version` of Kafka to have; default is "+kafkaserver.DefaultVersion)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || flags.NFlag() == 0 {
		return errors.New("want -find, or -postgres and -kafka, and no arguments")
	}
	if *find != 0 {
		found, err := pgserver.Find(ctx, *find)
		if err != nil {
			return err
		}
		return describe(out, "PostgreSQL", *find, found.Dir)
	}
	for version := range strings.SplitSeq(*postgres, ",") {
		if version == "" {
			continue
		}
		if err := havePostgres(ctx, version, out); err != nil {
			return err
		}
	}
	switch *kafka {
	case "":
		return nil
	case "default":
		*kafka = kafkaserver.DefaultVersion
	}
	jars, err := kafkaserver.Fetch(ctx, *kafka)
	if err != nil {
		return err
	}
	return describe(out, "Kafka", *kafka, jars)
}

// havePostgres fetches a major version unless the system has it.
func havePostgres(ctx context.Context, version string, out io.Writer) error {
	major, err := strconv.Atoi(version)
	if err != nil {
		return fmt.Errorf("-postgres %q: want a major version such as 18", version)
	}
	found, err := pgserver.Find(ctx, major)
	if errors.Is(err, pgserver.ErrNotInstalled) {
		found, err = pgserver.Fetch(ctx, major)
	}
	if err != nil {
		return err
	}
	return describe(out, "PostgreSQL", major, found.Dir)
}

func describe(out io.Writer, what string, version any, where string) error {
	_, err := fmt.Fprintf(out, "%s %v: %s\n", what, version, where)
	return err
}
