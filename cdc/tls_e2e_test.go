//go:build e2e

package cdc_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
)

// secure has the server speak TLS.
func (d *database) secure() {
	d.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(d.t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(d.t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(d.t, err)
	for name, block := range map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: cert}, "server.key": {Type: "PRIVATE KEY", Bytes: der}} {
		lines := strings.Split(strings.TrimSpace(string(pem.EncodeToMemory(block))), "\n")
		d.execute("COPY (SELECT unnest(ARRAY['" + strings.Join(lines, "', '") + "'])) TO PROGRAM 'umask 077; cat > " + name + "'")
	}
	d.execute("ALTER SYSTEM SET ssl = on")
	d.execute("SELECT pg_reload_conf()")
	d.cfg.DSN = strings.Replace(d.cfg.DSN, "sslmode=disable", "sslmode=require", 1)
	require.Eventually(d.t, func() bool {
		conn, err := pgx.Connect(d.t.Context(), d.cfg.DSN)
		return err == nil && conn.Close(d.t.Context()) == nil
	}, 10*time.Second, 10*time.Millisecond)
}

// TLS gives out one of the server's messages at a time: the reader rests when the
// connection has no more, and not after each.
func TestReaderOverTLS(t *testing.T) {
	d := newDatabase(t, "15")
	const transactions = 3000
	took := func() time.Duration {
		for range transactions {
			d.insert(d.writer, cdc.KindEvent, "INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'shop', 'order', 'a', 'Paid', '{}')")
		}
		began := time.Now()
		require.Len(t, d.read(transactions), transactions)
		return time.Since(began)
	}
	plain := took()
	d.secure()
	require.Less(t, took(), 20*plain)
}
