package houserules

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// maxLines is the longest that a source file may be.
const maxLines = 500

// The modules that rules speak of.
const (
	saramaPath   = "github.com/IBM/sarama"
	embeddedPath = "github.com/fergusstrange/embedded-postgres"
	kfakePath    = "github.com/twmb/franz-go/pkg/kfake"
)

// Violation is one rule broken by one file.
type Violation struct {
	Rule   string // its name in this package
	File   string // relative to the root, with slashes
	Detail string // what was found, and what to do instead
}

// String returns the form that a test prints.
func (v Violation) String() string { return v.File + ": " + v.Rule + ": " + v.Detail }

// rules are all rules, each with its name. A rule returns what is wrong with a
// file.
var rules = []struct {
	name  string
	check func(*file) []string
}{
	{"rooms", rooms},
	{"leaf", leaf},
	{"sarama", saramaConfig},
	{"servers", embeddedServers},
	{"names", names},
	{"sleep", sleep},
	{"length", length},
}

// Check returns what breaks a rule below root, sorted by file.
func Check(root string) ([]Violation, error) {
	files, err := readTree(root)
	if err != nil {
		return nil, err
	}
	var found []Violation
	for _, f := range files {
		for _, rule := range rules {
			for _, detail := range rule.check(f) {
				found = append(found, Violation{rule.name, f.name, detail})
			}
		}
	}
	found = append(found, sizes(files, large)...)
	statements, err := Statements(root)
	if err != nil {
		return nil, err
	}
	for _, s := range statements {
		for _, detail := range slices.Concat(callsQualified(s), operatorsQualified(s)) {
			found = append(found, Violation{"sql", s.File, detail})
		}
	}
	slices.SortFunc(found, func(a, b Violation) int {
		return cmp.Or(strings.Compare(a.File, b.File), strings.Compare(a.Rule, b.Rule),
			strings.Compare(a.Detail, b.Detail))
	})
	return found, nil
}

// rooms: cdc, publisher and consumer do not know one another, tests included.
// What joins two of them is relay, or the user's program.
func rooms(f *file) []string {
	all := []string{"cdc", "publisher", "consumer"}
	own := slices.IndexFunc(all, func(room string) bool { return f.in(room) })
	if own < 0 {
		return nil
	}
	var details []string
	for _, imported := range f.internalImports() {
		for i, room := range all {
			if i != own && within(imported, room) {
				details = append(details, fmt.Sprintf("%s imports %s; declare what you need as an interface and let relay join them", all[own], imported))
			}
		}
	}
	return details
}

// leaf: outbox imports nothing of ours but itself, since a producing service gets all
// that it imports, and what its tests import is a requirement of its module; record
// nothing but outbox.
func leaf(f *file) []string {
	if !f.in("outbox") && (!f.in("record") || f.isTest()) {
		return nil
	}
	var details []string
	for _, imported := range f.internalImports() {
		if !within(imported, "outbox") {
			details = append(details, fmt.Sprintf("%s imports %s; the arrows point to outbox", f.dir(), imported))
		}
	}
	return details
}

// saramaConfig: a sarama.Config is built where its traps are known. Defaults of
// sarama lose and reorder events, so a second place is a second chance for it.
func saramaConfig(f *file) []string {
	if f.isTest() || f.in("internal/kafkaconf", "examples", "e2e", "bench") {
		return nil
	}
	var details []string
	if used, ok := f.uses(saramaPath, "NewConfig"); ok {
		details = append(details, used+" is called; internal/kafkaconf has what you need")
	}
	if f.builds(saramaPath, "Config") {
		details = append(details, "a sarama.Config is made; internal/kafkaconf has what you need")
	}
	return details
}

// embeddedServers: servers for tests do not get into what users build.
func embeddedServers(f *file) []string {
	demo, _ := path.Match("examples/*/demo", f.dir())
	if f.isTest() || f.in("internal") || demo {
		return nil
	}
	var details []string
	for _, server := range []string{embeddedPath, kfakePath} {
		if _, ok := f.imports[server]; ok {
			details = append(details, server+" is imported outside tests, internal and demos")
		}
	}
	return details
}

// names: a file and a package say what they hold.
func names(f *file) []string {
	nothing := []string{"util", "utils", "helper", "helpers", "common", "misc"}
	base := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.name), ".go"), "_test")
	words := strings.Split(base, "_")
	words = append(words, strings.Split(f.dir(), "/")...)
	for _, word := range words {
		if slices.Contains(nothing, word) {
			return []string{fmt.Sprintf("%q says nothing; name the noun that is inside", word)}
		}
	}
	return nil
}

// sleep: a test waits for what it needs, not for a time that was enough once.
// Inside testing/synctest a sleep moves a fake clock and is exact, so files that
// use it are let through.
func sleep(f *file) []string {
	_, fakeTime := f.imports["testing/synctest"]
	if !f.isTest() || fakeTime {
		return nil
	}
	if used, ok := f.uses("time", "Sleep"); ok {
		return []string{used + " is called; wait for the event itself, or use testing/synctest"}
	}
	return nil
}

// length: a file is one noun, which has room on a few screens.
func length(f *file) []string {
	if f.isGenerated() || f.lines <= maxLines {
		return nil
	}
	return []string{fmt.Sprintf("%d lines, at most %d are allowed; it holds more than one noun", f.lines, maxLines)}
}
