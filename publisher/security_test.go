package publisher_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// secured returns a cluster behind TLS and SASL, and the configuration that it
// wants.
func secured(t *testing.T, mechanism string) (*cluster, publisher.Config) {
	server := httptest.NewTLSServer(nil) // for its certificate, which is for 127.0.0.1
	t.Cleanup(server.Close)
	c := newCluster(t, kfake.TLS(&tls.Config{Certificates: server.TLS.Certificates}), kfake.SeedTopics(1, "shop.order"),
		kfake.EnableSASL(), kfake.Superuser(mechanism, "relay", "secret"))
	authority := x509.NewCertPool()
	authority.AddCert(server.Certificate())
	cfg := c.config()
	cfg.TLS = &tls.Config{RootCAs: authority}
	cfg.SASL = publisher.SASL{Mechanism: mechanism, Username: "relay", Password: "secret"}
	return c, cfg
}

func TestSecuredCluster(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			_, cfg := secured(t, mechanism)
			p, acks := start(t, cfg)
			publishNumbered(t, p, "a", 1, 1000)
			require.NoError(t, p.Flush(within(t)))
			require.Len(t, acks.all(), 1000)

			cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
			_, err := publisher.New(within(t), cfg, func([]uint64) {})
			require.ErrorContains(t, err, "certificate", "an unknown authority is refused")
		})
	}
}

// A request under TLS is several writes; the gate holds there too.
func TestFailureStopsTheWireUnderTLS(t *testing.T) {
	for range 5 {
		c, cfg := secured(t, "PLAIN")
		p, acks := start(t, cfg)
		publishNumbered(t, p, "a", 0, 4)
		require.NoError(t, p.Flush(within(t)))
		release, arrived := c.holdProduceSeen()
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord})
		publishNumbered(t, p, "a", 5, 5)
		waitFor(t, arrived)
		for i := 6; i < 100; i++ {
			require.NoError(t, p.Publish(within(t), event(uint64(i), "a", noise(5000))))
		}
		release()
		waitFor(t, p.Failed())
		require.NoError(t, p.Close())
		require.Len(t, acks.all(), 5)
		require.EqualValues(t, 5, c.PartitionInfo("shop.order", 0).HighWatermark)
	}
}

// certificate makes one for the host that kfake listens on, signed by itself,
// and valid in the time of synctest too.
func certificate(t *testing.T, host string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// K16: the brokers get a certificate that the relay does not trust. Sarama
// would knock for hours; the publisher fails once events wait, and the next one
// reads the authorities anew.
func TestReplacedCertificateEndsTheProducer(t *testing.T) {
	before, authority := certificate(t, "localhost")
	after, renewed := certificate(t, "localhost")
	var current atomic.Pointer[tls.Certificate]
	current.Store(&before)
	server := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil }}
	inFakeTime(t, func(t *testing.T, _ *cluster, cfg publisher.Config) {
		network := &cuttingDialer{dialer: cfg.Dial}
		cfg.Dial, cfg.TLS = network.dial, &tls.Config{RootCAs: authority}
		p, acks := start(t, cfg)
		publishNumbered(t, p, "a", 0, 9)
		require.NoError(t, p.Flush(t.Context()))
		current.Store(&after)
		network.cutAll()
		publishNumbered(t, p, "a", 10, 19)
		begin := time.Now()
		<-p.Failed()
		require.LessOrEqual(t, time.Since(begin), 15*time.Second) // the second look finds it
		require.ErrorIs(t, p.Err(), publisher.ErrFailed)
		require.ErrorContains(t, p.Err(), "kafka.tls")
		require.NoError(t, p.Close())

		cfg.TLS = &tls.Config{RootCAs: renewed}
		next, more := start(t, cfg)
		publishNumbered(t, next, "a", len(acks.all()), 19)
		require.NoError(t, next.Flush(t.Context()))
		require.Len(t, more.all(), 20-len(acks.all()))
	}, kfake.SeedTopics(1, "shop.order"), kfake.TLS(server))
}
