package publisher

import (
	"fmt"

	"github.com/IBM/sarama"
)

// Secure gives a sarama configuration the TLS and SASL of this one, for tools
// that read what the relay publishes. The error is that of a security setting
// that [New] would refuse.
func (c Config) Secure(to *sarama.Config) error {
	s := &settings{Config: c}
	if err := s.resolveSecurity(); err != nil {
		return err
	}
	if c.TLS != nil {
		to.Net.TLS.Enable = true
		to.Net.TLS.Config = c.TLS.Clone()
	}
	setSASL(to, c.SASL)
	if err := to.Validate(); err != nil {
		return fmt.Errorf("configure publisher: %w", err)
	}
	return nil
}
