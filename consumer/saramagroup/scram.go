package saramagroup

import (
	"fmt"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// scramClient is one login by SCRAM (RFC 5802), as sarama wants it.
type scramClient struct {
	login        *SASL
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

// newScram returns the maker of clients for a SCRAM mechanism.
func newScram(login *SASL) func() sarama.SCRAMClient {
	hash := scram.SHA256
	if login.Mechanism == ScramSHA512 {
		hash = scram.SHA512
	}
	return func() sarama.SCRAMClient { return &scramClient{login: login, hash: hash} }
}

// Begin starts a conversation, with the password as it is now.
func (c *scramClient) Begin(user, _, authzID string) error {
	password, err := c.login.password()
	if err != nil {
		return err
	}
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return fmt.Errorf("prepare SCRAM login: %w", err)
	}
	c.conversation = client.NewConversation()
	return nil
}

// Step answers one message of the server.
func (c *scramClient) Step(challenge string) (string, error) { return c.conversation.Step(challenge) }

// Done reports whether the conversation is over.
func (c *scramClient) Done() bool { return c.conversation.Done() }
