package publisher_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"testing"

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
