package publisher

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"github.com/stretchr/testify/require"
)

// A cure never names a principal that is everybody's where the relay has one of its own.
func TestPrincipal(t *testing.T) {
	certified := &tls.Config{Certificates: []tls.Certificate{{Leaf: &x509.Certificate{Subject: pkix.Name{CommonName: "relay", Organization: []string{"shop"}}}}}}
	for want, s := range map[string]*settings{
		"User:ANONYMOUS":                     {Config: Config{TLS: new(tls.Config)}},
		"User:relay":                         {Config: Config{TLS: certified, SASL: SASL{Username: "relay"}}},
		"'User:CN=relay,O=shop'":             {Config: Config{TLS: certified}},
		"'User:the name in the certificate'": {Config: Config{TLS: &tls.Config{Certificates: make([]tls.Certificate, 1)}}},
	} {
		require.Equal(t, want, principal(s))
	}
}
