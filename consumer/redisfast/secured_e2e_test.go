//go:build e2e

package redisfast_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/redisfast"
)

// TestSecuredRedis: by TLS, as a user who may GET and SET the keys of one group and nothing else.
// What is refused is as if there were no Redis, is said once, and without the password.
func TestSecuredRedis(t *testing.T) {
	cert, key, pool := selfSigned(t)
	w := newWorld(t, "--tls-port", "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no",
		"--user", "default", "off", "--user", "app", "on", ">not-for-logs", "~once:billing:*", "+get", "+set")
	secured := func(c *redisfast.Config) {
		c.Prefix = "once:"
		c.Redis.Username, c.Redis.Password = "app", "not-for-logs"
		c.Redis.TLSConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	recs := w.events(10, "Paid")
	m := w.member("billing", w.cache(secured))
	m.handleAll(recs, consumer.Processed)
	w.unasked(func() { m.handleAll(recs, consumer.Duplicate) })
	require.EqualValues(t, 10, m.cache.Stats().Hits)

	for name, wrong := range map[string]struct {
		group  string
		change func(c *redisfast.Config)
	}{
		"another group's keys":  {"mail", func(*redisfast.Config) {}},
		"a wrong password":      {"billing", func(c *redisfast.Config) { c.Redis.Password = "wrong" }},
		"no TLS":                {"billing", func(c *redisfast.Config) { c.Redis.TLSConfig = nil }},
		"an unknown authority":  {"billing", func(c *redisfast.Config) { c.Redis.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} }},
		"a database of its own": {"billing", func(c *redisfast.Config) { c.Redis.DB = 1 }}, // wants +select
		"nobody at the address": {"billing", func(c *redisfast.Config) { c.Redis.Addrs = []string{"127.0.0.1:1"} }},
	} {
		var log bytes.Buffer
		m := w.member(wrong.group, w.cache(secured, wrong.change, func(c *redisfast.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}))
		for range 2 {
			for _, rec := range recs {
				outcome, err := m.HandleRecord(t.Context(), rec)
				require.NoError(t, err, name)
				require.True(t, outcome.Acknowledges(), name)
			}
		}
		require.Zero(t, m.cache.Stats().Hits, name)
		require.Positive(t, m.cache.Stats().Errors, "%s: %+v %s", name, m.cache.Stats(), log.Bytes())
		require.Zero(t, m.cache.Stats().Stale+m.cache.Stats().Remembered, "%s: %+v", name, m.cache.Stats())
		require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("Redis fails")), "%s: %s", name, log.Bytes())
		require.NotContains(t, log.String(), "not-for-logs", name)
	}
	w.once("billing", 10)
	w.once("mail", 10)
}

// selfSigned makes a certificate of 127.0.0.1, its key, and a pool that trusts it.
func selfSigned(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(crand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return file
	}
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool = x509.NewCertPool()
	pool.AddCert(cert)
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER), pool
}
