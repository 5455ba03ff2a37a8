package relay

import (
	"crypto/tls"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// VerifiesServer reports whether every connection that the DSN can lead to is
// sslmode=verify-full, or a local socket: nobody else can read it, or answer in
// the server's place. The driver's own default, prefer, is neither. The error is
// the driver's, for a DSN that cannot be parsed. It connects to nothing, but reads
// the files of certificates that the DSN names.
func VerifiesServer(dsn string) (bool, error) {
	conf, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return false, err
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

// verified returns the DSN if it is sslmode=verify-full, or may be less.
func (c *Config) verified(field, dsn string) (string, error) {
	ok, err := VerifiesServer(dsn)
	switch {
	case err != nil:
		return "", fmt.Errorf("parse %s: %w", field, err)
	case ok || c.Postgres.Insecure:
		return dsn, nil
	}
	return "", &FieldError{field, "the connection is not sslmode=verify-full; add it (with sslrootcert) or, on a network that you trust, set postgres.insecure: true"}
}
