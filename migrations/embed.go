package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"
)

//go:embed outbox/*.sql consumer/*.sql rebuild/*.sql
var files embed.FS

// Side is one of the two databases of Onceward.
type Side string

// The two sides.
const (
	Outbox   Side = "outbox"   // the producer's database
	Consumer Side = "consumer" // the consumer's database
)

// ParseSide reads "outbox" or "consumer".
func ParseSide(s string) (Side, error) {
	switch side := Side(s); side {
	case Outbox, Consumer:
		return side, nil
	}
	return "", fmt.Errorf("side %q: want %s (the producer's database) or %s (the consumer's database)", s, Outbox, Consumer)
}

// versionTable is where goose records this side's versions.
func (s Side) versionTable() string { return schemaName + "." + string(s) + "_migrations" }

// partitioned returns the side's partitioned table and its partition column.
func (s Side) partitioned() (table, column string) {
	if s == Consumer {
		return schemaName + ".processed_events", "event_id"
	}
	return schemaName + ".outbox", "id"
}

// step is one embedded migration.
type step struct {
	name     string
	version  int64
	up, down string // the SQL between goose's annotations
}

// steps returns the side's migrations in ascending order of their versions.
func (s Side) steps() ([]step, error) {
	names, err := fs.Glob(files, string(s)+"/*.sql") // sorted by name
	if err != nil {
		return nil, fmt.Errorf("list embedded migrations of side %q: %w", s, err)
	}
	var out []step
	for _, path := range names {
		name := strings.TrimPrefix(path, string(s)+"/")
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("embedded migration %s: %w", path, err)
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("embedded migration %s: %w", path, err)
		}
		up, down, ok := splitSections(string(text))
		if !ok {
			return nil, fmt.Errorf("embedded migration %s: has not one Up and one Down section in this order", path)
		}
		out = append(out, step{name: name, version: version, up: up, down: down})
	}
	return out, nil
}

// Latest is the newest version that this build knows, to which Up migrates.
func (s Side) Latest() (int64, error) {
	all, err := s.steps()
	if err != nil {
		return 0, err
	}
	return all[len(all)-1].version, nil
}

// splitSections cuts a migration at goose's annotations.
func splitSections(text string) (up, down string, ok bool) {
	const upMark, downMark = "-- +goose Up\n", "-- +goose Down\n"
	_, rest, ok := strings.Cut(text, upMark)
	if !ok {
		return "", "", false
	}
	up, down, ok = strings.Cut(rest, downMark)
	return strings.TrimSpace(up), strings.TrimSpace(down), ok
}
