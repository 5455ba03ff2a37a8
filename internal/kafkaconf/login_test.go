package kafkaconf_test

import (
	"crypto/tls"
	"errors"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaconf"
)

func TestSecureWithNothing(t *testing.T) {
	c := kafkaconf.New("c", sarama.V2_8_0_0)
	kafkaconf.Secure(c, nil, kafkaconf.Login{})
	require.False(t, c.Net.TLS.Enable || c.Net.SASL.Enable)
	require.NoError(t, c.Validate())
}

// A password is asked for at each SCRAM conversation; PLAIN has none.
func TestSecureByMechanism(t *testing.T) {
	gone := errors.New("the vault is sealed")
	for _, mechanism := range []string{sarama.SASLTypePlaintext, sarama.SASLTypeSCRAMSHA256, sarama.SASLTypeSCRAMSHA512} {
		c, of := kafkaconf.New("c", sarama.V2_8_0_0), &tls.Config{MinVersion: tls.VersionTLS12}
		var asked error
		kafkaconf.Secure(c, of, kafkaconf.Login{Mechanism: mechanism, User: "u", Password: "p", Ask: func() (string, error) { return "p", asked }})
		require.NoError(t, c.Validate(), mechanism)
		require.NotSame(t, of, c.Net.TLS.Config)
		if mechanism == sarama.SASLTypePlaintext {
			require.Nil(t, c.Net.SASL.SCRAMClientGeneratorFunc)
			continue
		}
		login := c.Net.SASL.SCRAMClientGeneratorFunc()
		require.NoError(t, login.Begin("u", "before", ""))
		first, err := login.Step("")
		require.NoError(t, err)
		require.Contains(t, first, "n=u")
		asked = gone
		require.ErrorIs(t, login.Begin("u", "before", ""), gone)
	}
}
