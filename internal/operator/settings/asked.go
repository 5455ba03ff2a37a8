package settings

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/relay/config"
)

// Asked is a line that says which database a command asks that is given the configuration in file, too: that of
// the connection string, which is from a flag or a variable. It is empty where the file names
// the same one or none is given, and where one of both cannot be read: whoever reads it says so.
func Asked(dsn, from, file string, environ []string) string {
	if file == "" {
		return ""
	}
	cfg, err := config.LoadOffline(file, environ)
	asked, known := database(dsn)
	if err != nil || !known {
		return ""
	}
	other := "which cannot be told here"
	if dsn, err := cfg.DSN(); err == nil {
		other, _ = database(dsn)
	}
	if other == asked {
		return ""
	}
	return fmt.Sprintf("note: this is database %s, by %s; that of %s, %s, is not asked\n", asked, from, file, other)
}

// database is where a connection string leads to, of several hosts to the first, without what
// may be a secret. False: it cannot be read.
func database(dsn string) (string, bool) {
	conf, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return "", false
	}
	return fmt.Sprintf("%s on %s:%d", secret.Name(conf.Database), secret.Host(conf.Host), conf.Port), true
}
