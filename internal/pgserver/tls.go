package pgserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// ServeTLS has the server behind a superuser's connection string speak TLS to those who
// connect from now on, with a certificate for a day that nobody signed, or no longer.
// Who asks for no TLS has none in either case. It returns when the server does.
func ServeTLS(ctx context.Context, dsn string, on bool) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	statements := []string{"ALTER SYSTEM RESET ssl"}
	if on {
		if statements, err = certificate(); err != nil {
			return fmt.Errorf("make a certificate: %w", err)
		}
		statements = append(statements, "ALTER SYSTEM SET ssl = on")
	}
	for _, statement := range append(statements, "SELECT pg_reload_conf()") {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	conf, err := pgx.ParseConfig(strings.Replace(dsn, "sslmode=disable", "sslmode=require", 1))
	if err != nil {
		return err
	}
	for {
		tried, err := pgx.ConnectConfig(ctx, conf)
		if err == nil {
			err = tried.Close(ctx)
		}
		if (err == nil) == on {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server has not taken ssl = %t: %w", on, errors.Join(ctx.Err(), err))
		case <-time.After(readyPoll):
		}
	}
}

// certificate returns what puts a new certificate and its key into the data folder.
func certificate() ([]string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return []string{
		put("server.crt", &pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		put("server.key", &pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}, nil
}

// put writes a block into a file of the data folder that only the server's user may read.
func put(file string, block *pem.Block) string {
	lines := strings.Split(strings.TrimSpace(string(pem.EncodeToMemory(block))), "\n")
	return "COPY (SELECT unnest(ARRAY['" + strings.Join(lines, "', '") + "'])) TO PROGRAM 'umask 077; cat > " + file + "'"
}
