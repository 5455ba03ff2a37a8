package secret

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// DSNError says which connection string cannot be used, and why, and holds nothing
// of its text.
type DSNError struct {
	Field   string // where it was given, e.g. postgres.dsn
	Problem string // what is wrong, in kind

	system error // of a file that it names and that cannot be read
}

// Unwrap returns what the system said of a file that the string names; nil where
// something else is wrong.
func (e *DSNError) Unwrap() error { return e.system }

// Error implements error.
func (e *DSNError) Error() string {
	return fmt.Sprintf("%s: %s (the connection string is not shown, because it may hold a password)", e.Field, e.Problem)
}

// NeitherForm is the problem of a connection string that is neither a URL nor keywords.
const NeitherForm = "it is neither postgres://… nor host=… user=… dbname=…; a value with a space stands in single quotes, a quote in it behind a backslash"

// problems are what the driver's parser refuses, by its words, which are never
// shown. The first that fits counts.
var problems = []struct{ words, problem string }{
	{"failed to parse as URL", "it begins as a URL and is none; want postgres://user@host:5432/database?sslmode=verify-full, with special characters of a password percent-encoded"},
	{"failed to parse as keyword/value", NeitherForm},
	{"port numbers to", "port: want one, or as many as there are hosts"},
	{"invalid port", "port: want 1 to 65535; in a URL special characters of a password are percent-encoded"},
	{"failed to read service", "service: the file of services cannot be read, or does not have it"},
	{"sslmode is invalid", "sslmode: want disable, allow, prefer, require, verify-ca or verify-full"},
	{"unable to read CA file", "sslrootcert: the file cannot be read"},
	{"unable to add CA", "sslrootcert: the file holds no certificate in PEM form"},
	{`both "sslcert" and "sslkey"`, "sslcert and sslkey go together"},
	{"unable to read sslkey", "sslkey: the file cannot be read"},
	{"sslpassword", "sslpassword: the key of sslkey is encrypted, and none was given"},
	{"decode sslkey", "sslkey: the file holds no key in PEM form"},
	{"decrypt key", "sslpassword: it does not open the key of sslkey"},
	{"unable to read cert", "sslcert: the file cannot be read"},
	{"unable to load cert", "sslcert: the certificate and the key of sslkey do not fit"},
	{"sslcertmode", "sslcertmode: want disable, allow or require"},
	{"failed to configure TLS", "sslmode and its files cannot be used"},
	{"connect_timeout", "connect_timeout: want a whole number of seconds"},
	{"target_session_attrs", "target_session_attrs: want any, read-write, read-only, primary, standby or prefer-standby"},
	{"protocol_version", "min_protocol_version, max_protocol_version: want 3.0, 3.2 or latest, the first not above the second"},
	{"channel_binding", "channel_binding: want disable, prefer or require"},
	{"require_auth", "require_auth: it names a method that is not known"},
	{"_cache_capacity", "statement_cache_capacity, description_cache_capacity: want a whole number"},
	{"default_query_exec_mode", "default_query_exec_mode: its value is not known"},
	{"pool_", "one of the pool_… settings has a value that is none"},
}

// ParseError returns a [*DSNError] for the answer of one of the driver's parsers; nil
// for nil. The driver's error is not wrapped: its text holds the string.
func ParseError(field string, err error) error {
	if err == nil {
		return nil
	}
	said := err.Error()
	if i := strings.LastIndex(said, "`: "); i >= 0 { // what stands in the string decides nothing
		said = said[i:]
	}
	e := &DSNError{Field: field, Problem: "it cannot be parsed"}
	for _, p := range problems {
		if strings.Contains(said, p.words) {
			e.Problem = p.problem
			break
		}
	}
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		e.Problem += fmt.Sprintf(": %s: %v", Path(file.Path), file.Err)
		e.system = file.Err
	}
	return e
}

// plain is how a name looks that is one.
var plain = regexp.MustCompile(`^[\p{L}\p{N}_.$ -]{1,63}$`)

// Name returns the name of a role or a database of a parsed string as it may be
// shown.
func Name(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return notShown
}

// Host is [Name] for a host.
func Host(host string) string {
	if address.MatchString(host) {
		return host
	}
	return notShown
}

const notShown = "(not shown)"

// connectError is an error of connecting, without what its string may have hidden.
type connectError struct {
	text  string
	cause error
}

func (e *connectError) Error() string { return e.text }
func (e *connectError) Unwrap() error { return e.cause }

// address is how a host looks that is one: a name, an address, the folder of a
// socket.
var address = regexp.MustCompile(`^[\p{L}\p{N}_.:%/-]*$`)

// ConnectError returns the error of a connection without what may be a secret; it
// wraps what it was given. conf is what the connection was made from.
func ConnectError(err error, conf *pgconn.Config) error {
	if err == nil {
		return nil
	}
	said := err
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		said = connect.Unwrap() // without role and database
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42704" { // undefined_object
		return &connectError{"the server does not know a parameter of the connection string (SQLSTATE 42704)", err}
	}
	hidden := []string{conf.Password}
	for _, name := range []string{conf.User, conf.Database} {
		if !plain.MatchString(name) {
			hidden = append(hidden, name)
		}
	}
	hosts := []string{conf.Host}
	for _, f := range conf.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, host := range hosts {
		if !address.MatchString(host) {
			hidden = append(hidden, host)
		}
	}
	for key, value := range conf.RuntimeParams {
		for _, text := range []string{key, value} {
			if !plain.MatchString(text) {
				hidden = append(hidden, text)
			}
		}
	}
	return &connectError{without(said.Error(), hidden), err}
}

// without replaces what is hidden, the longest first: one may be part of another.
// What is shorter than three bytes would take the text to pieces, and is told by it
// to nobody.
func without(text string, hidden []string) string {
	slices.SortFunc(hidden, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, secret := range hidden {
		if len(secret) > 2 {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}
