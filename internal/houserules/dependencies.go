package houserules

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/internal/process"
)

// Dependencies returns the import paths of all that a package of the module
// pulls in, itself included, as a build of it would on this machine. The
// package is given relative to the module, such as "outbox". It runs the go
// command in root.
func Dependencies(ctx context.Context, root, pkg string) ([]string, error) {
	return list(ctx, root, pkg, "{{.ImportPath}}")
}

// Modules returns the other modules of [Dependencies], sorted: what a program that
// imports the package has to download and to trust.
func Modules(ctx context.Context, root, pkg string) ([]string, error) {
	all, err := list(ctx, root, pkg, "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}")
	slices.Sort(all)
	return slices.Compact(all), err
}

// list runs go list over a package and what it depends on.
func list(ctx context.Context, root, pkg, format string) ([]string, error) {
	out, err := process.Run(ctx, process.Spec{Path: "go", Args: []string{"list", "-deps", "-f", format, "./" + pkg}, Dir: root})
	if err != nil {
		return nil, fmt.Errorf("list what %s depends on: %w", pkg, err)
	}
	return strings.Fields(out), nil
}

// OfKafka returns those of the import paths that belong to a client, a fake or
// a server of Kafka. A service that only enqueues must not pay for them.
func OfKafka(paths []string) []string {
	var found []string
	for _, imported := range paths {
		lower := strings.ToLower(imported)
		if strings.Contains(lower, "sarama") || strings.Contains(lower, "kafka") || strings.Contains(lower, "franz-go") {
			found = append(found, imported)
		}
	}
	return found
}
