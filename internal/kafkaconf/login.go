package kafkaconf

import (
	"crypto/tls"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// Login is a SASL login with user and password. The zero Login is none.
type Login struct {
	Mechanism string // as sarama names it
	User      string
	Password  string
	// Ask, when not nil, is asked for the password of each SCRAM conversation.
	Ask func() (string, error)
}

// Secure puts TLS, unless nil, and SASL into a configuration. The [tls.Config] is
// cloned.
func Secure(c *sarama.Config, encrypted *tls.Config, login Login) {
	if encrypted != nil {
		c.Net.TLS.Enable = true
		c.Net.TLS.Config = encrypted.Clone()
	}
	if login.Mechanism == "" {
		return
	}
	c.Net.SASL.Enable = true
	c.Net.SASL.Mechanism = sarama.SASLMechanism(login.Mechanism) // empty would mean PLAIN
	c.Net.SASL.User = login.User
	c.Net.SASL.Password = login.Password
	switch login.Mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			return &conversation{hash: scram.SHA256,
				ask: login.Ask}
		}
	case sarama.SASLTypeSCRAMSHA512:
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			return &conversation{hash: scram.SHA512,
				ask: login.Ask}
		}
	}
}

// conversation is a SCRAM exchange (RFC 5802) in the shape that sarama wants.
type conversation struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
	ask  func() (string, error)
}

// Begin starts it, with the password as it is now.
func (c *conversation) Begin(user, password, authzID string) (err error) {
	if c.ask != nil {
		if password, err = c.ask(); err != nil {
			return err
		}
	}
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return fmt.Errorf("prepare SCRAM login: %w", err)
	}
	c.ClientConversation = client.NewConversation()
	return nil
}
