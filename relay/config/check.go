package config

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/relay"
)

// Report is what [Check] has found.
type Report struct {
	// Problems keep the relay from starting. Each is one thing to mend, and names its
	// key as the file has it; of a value that the file does not have, also the
	// environment variable or the --set.
	Problems []string
	// Notes say what could not be looked at here, and what the relay takes and will be
	// warned of.
	Notes []string
}

// Check reads what [Load] reads and looks at what a relay looks at before it
// connects. It finds all at once. A file of a secret or a certificate that cannot be
// read here is a note: a file is often checked where secrets are not. The error is of
// the configuration file itself.
func Check(path string, environ []string, settings ...string) (relay.Config, Report, error) {
	cfg, found, err := readFile(path, environ, settings)
	if err != nil {
		return relay.Config{}, Report{}, err
	}
	var report Report
	for _, err := range found.errs {
		report.Problems = append(report.Problems, problem(err))
	}
	for _, err := range found.beyond(cfg.Problems()) {
		var system syscall.Errno
		if errors.As(err, &system) {
			report.Notes = append(report.Notes, err.Error()+"; what it holds is not checked")
		} else {
			report.Problems = append(report.Problems, problem(err))
		}
	}
	if ahead := cfg.Outbox.Partitions.Ahead; len(report.Problems) == 0 && ahead > 0 && ahead < partition.FewAhead {
		report.Notes = append(report.Notes, fmt.Sprintf("outbox.partitions.ahead: %d: with fewer than %d days ahead it is time to act, so that status and relay check warn all the time; want %[2]d or more",
			ahead, partition.FewAhead))
	}
	return cfg, report, nil
}

// problem is an error as a list of problems has it.
func problem(err error) string { return strings.TrimPrefix(err.Error(), "config: ") }
