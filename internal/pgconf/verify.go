package pgconf

import (
	"crypto/tls"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/secret"
)

// VerifiesServer reports whether every connection that a DSN can lead to is
// sslmode=verify-full, or a local socket: nobody else can read it, or answer in
// the server's place. The driver's own default, prefer, is neither. The error names
// field and holds nothing of a DSN that cannot be parsed. It connects to nothing,
// but reads the files of certificates that the DSN names.
func VerifiesServer(field, text string) (bool, error) {
	conf, err := pgconn.ParseConfig(text)
	if err != nil {
		return false, secret.ParseError(field, err)
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
