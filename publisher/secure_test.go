package publisher

import (
	"crypto/tls"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
)

func TestSecure(t *testing.T) {
	plain := sarama.NewConfig()
	require.NoError(t, Config{}.Secure(plain))
	require.False(t, plain.Net.TLS.Enable || plain.Net.SASL.Enable)

	credentials := SASL{Mechanism: MechanismSCRAMSHA512, Username: "relay", Password: "secret"}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "kafka"}
	secured := sarama.NewConfig()
	require.NoError(t, Config{TLS: conf, SASL: credentials}.Secure(secured))
	require.True(t, secured.Net.TLS.Enable)
	require.Equal(t, "kafka", secured.Net.TLS.Config.ServerName)
	require.Equal(t, "secret", secured.Net.SASL.Password)
	require.NotNil(t, secured.Net.SASL.SCRAMClientGeneratorFunc())

	require.ErrorContains(t, Config{SASL: credentials}.Secure(sarama.NewConfig()), "SASL without TLS")
}
