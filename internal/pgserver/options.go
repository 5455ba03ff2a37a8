package pgserver

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/pgconf"
)

// Oldest is the oldest major version of PostgreSQL that Onceward supports.
const Oldest = pgconf.OldestServer / 10_000

// Options say which server to start. The zero value is a fine test server.
type Options struct {
	// Version is a major version, such as "15". Empty is whatever the system
	// has installed, or the newest that can be fetched.
	Version string
	// Dir is the folder for data, log and password. It is kept, and data in it
	// is used again. Empty is a temporary folder that [Server.Stop] removes.
	Dir string
	// Settings go on top of the defaults, as in postgresql.conf, for example
	// "wal_sender_timeout": "5s" or "fsync": "on". ALTER SYSTEM overrides them.
	Settings map[string]string
	// Detached lets the server outlive this program. End it by its process id.
	Detached bool
}

// defaults are the settings of every server. Tests want all that the relay
// needs, room for many slots and prepared transactions, and no waiting for the
// disk: only a loss of power, which no test makes, could tell fsync from none.
func defaults() map[string]string {
	return map[string]string{
		"wal_level":                 "logical",
		"max_replication_slots":     "20",
		"max_wal_senders":           "20",
		"max_prepared_transactions": "50",
		"listen_addresses":          "127.0.0.1",
		"unix_socket_directories":   "",
		"fsync":                     "off",
		"timezone":                  "UTC",
		"log_timezone":              "UTC",
		"log_line_prefix":           "%m [%p] ",
	}
}

// settingName also admits the dotted names of extensions.
var settingName = regexp.MustCompile(`^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?$`)

// reserved are the settings that Start chooses, or that would move the server
// away from where the caller is told that it is.
var reserved = []string{"port", "listen_addresses", "data_directory", "logging_collector"}

func (o *Options) validate() error {
	if o.Version != "" {
		if major, err := strconv.Atoi(o.Version); err != nil || major < Oldest {
			return fmt.Errorf("pgserver: Version is %q; want a major version from %d on, such as \"18\"", o.Version, Oldest)
		}
	}
	for name, value := range o.Settings {
		if !settingName.MatchString(name) {
			return fmt.Errorf("pgserver: Settings[%q]: not the name of a setting", name)
		}
		if slices.Contains(reserved, name) {
			return fmt.Errorf("pgserver: Settings[%q] is %q; Start decides about it", name, value)
		}
		if strings.ContainsAny(value, "\n\r\x00") {
			return fmt.Errorf("pgserver: Settings[%q] is %q; a value has one line", name, value)
		}
	}
	return nil
}

// configuration returns the text of a configuration file, sorted by name.
// Pure.
func configuration(settings map[string]string, port int) string {
	all := defaults()
	maps.Copy(all, settings)
	all["port"] = strconv.Itoa(port)
	var text strings.Builder
	text.WriteString("# Written by Onceward's package pgserver at each start.\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, quoteSetting.Replace(all[name]))
	}
	return text.String()
}

// quoteSetting escapes what ends or bends a quoted value of postgresql.conf.
var quoteSetting = strings.NewReplacer(`\`, `\\`, `'`, `''`)

// Mode is a way to shut the server down, named as in the documentation of
// PostgreSQL.
type Mode string

// The shutdown modes.
const (
	// Fast ends sessions, and walsenders once all WAL is sent, and writes a
	// shutdown checkpoint.
	Fast Mode = "fast"
	// Immediate quits without a checkpoint, as after a crash: the next start
	// recovers from the WAL.
	Immediate Mode = "immediate"
)

// errMode is for a Mode made from a string.
var errMode = errors.New(`want "fast" or "immediate"`)
