package saramagroup_test

import (
	"crypto/tls"
	"fmt"

	"github.com/onceward/onceward/consumer/saramagroup"
)

// The defaults of sarama that can lose an event are replaced.
func ExampleConfig_SaramaConfig() {
	cfg := saramagroup.Config{
		Topics: []string{"shop.order"}, TLS: &tls.Config{MinVersion: tls.VersionTLS12},
		SASL: &saramagroup.SASL{Mechanism: saramagroup.ScramSHA512, User: "billing", Password: "secret"},
	}
	client, err := cfg.SaramaConfig()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(client.Consumer.Offsets.AutoCommit.Enable, client.Consumer.Group.ResetInvalidOffsets, client.Net.SASL.Mechanism)
	cfg.TLS = nil
	_, err = cfg.SaramaConfig()
	fmt.Println(err)
	// Output:
	// false false SCRAM-SHA-512
	// config: SASL without TLS shows the credentials to the network; set TLS, or Insecure if the network is trusted
}
