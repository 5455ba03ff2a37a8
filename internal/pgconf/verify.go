package pgconf

import (
	"crypto/tls"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/secret"
)

// keywords are those of a connection string, of which a mistyped one would be taken for
// a setting of the server.
var keywords = []string{
	"host", "port", "user", "password", "dbname", "database", "sslmode", "sslrootcert", "sslcert", "sslkey", "passfile", "service",
	"connect_timeout", "target_session_attrs",
}

// mistyped names what unknown keywords of a connection string were meant to be: each is
// one slip away. What a server may know is not like any.
func mistyped(params map[string]string) (meant []string) {
	for _, keyword := range keywords {
		for name := range params {
			if oneSlip(strings.ToLower(name), keyword) {
				meant = append(meant, keyword)
				break
			}
		}
	}
	return meant
}

// oneSlip tells whether a letter is missing, one too many or another one, or two stand
// in each other's place.
func oneSlip(given, meant string) bool {
	same := 0
	for same < len(given) && same < len(meant) && given[same] == meant[same] {
		same++
	}
	a, b := given[same:], meant[same:]
	switch {
	case a == b:
		return false
	case len(a) == len(b):
		return a[1:] == b[1:] || len(a) > 1 && a[:2] == b[1:2]+b[:1] && a[2:] == b[2:]
	case len(a) == len(b)+1:
		return a[1:] == b
	}
	return len(a)+1 == len(b) && a == b[1:]
}

// setting is how the name of a setting looks, as a server or a pooler may have it.
var setting = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_.$-]*$`)

// VerifiesServer reports whether every connection that a DSN can lead to is
// sslmode=verify-full, or a local socket: nobody else can read it, or answer in
// the server's place. The driver's own default, prefer, is neither. The error names
// field and holds nothing of a DSN that cannot be parsed, or whose keywords look mistyped. It connects to nothing,
// but reads the files of certificates that the DSN names.
func VerifiesServer(field, text string) (bool, error) {
	conf, err := pgconn.ParseConfig(text)
	if err != nil {
		return false, secret.ParseError(field, err)
	}
	for name := range conf.RuntimeParams {
		if !setting.MatchString(name) { // a URL without its colon, which has a = further on
			return false, &secret.DSNError{Field: field, Problem: secret.NeitherForm}
		}
	}
	if meant := mistyped(conf.RuntimeParams); meant != nil {
		return false, &secret.DSNError{Field: field, Problem: "it has keywords that are not known and look mistyped; did you mean " + strings.Join(meant, ", ") + "?"}
	}
	if !verifies(conf.Host, conf.TLSConfig) {
		return false, nil
	}
	for _, other := range conf.Fallbacks { // other hosts; with prefer and allow, the same one without TLS
		if !verifies(other.Host, other.TLSConfig) {
			return false, nil
		}
	}
	return true, nil
}

func verifies(host string, conf *tls.Config) bool {
	return strings.HasPrefix(host, "/") || conf != nil && !conf.InsecureSkipVerify && conf.ServerName == host
}
