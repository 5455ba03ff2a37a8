package saramagroup

import (
	"fmt"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// scramClient is one login by SCRAM (RFC 5802), as sarama wants it.
type scramClient struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

// newScram returns the maker of clients for a SCRAM mechanism.
func newScram(m Mechanism) func() sarama.SCRAMClient {
	hash := scram.SHA256
	if m == ScramSHA512 {
		hash = scram.SHA512
	}
	return func() sarama.SCRAMClient { return &scramClient{hash: hash} }
}

// Begin starts a conversation.
func (c *scramClient) Begin(user, password, authzID string) error {
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
