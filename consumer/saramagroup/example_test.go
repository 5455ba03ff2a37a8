package saramagroup_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"

	"github.com/onceward/onceward/consumer"
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

// Each order is written to the topic of its country; one that cannot be read goes to a topic
// for such. Output and offset are one transaction of Kafka's: there is no database.
func ExampleTransform() {
	ctx := context.Background() // ends with the program, as of signal.NotifyContext
	byCountry := func(_ context.Context, rec consumer.Record) ([]saramagroup.Output, error) {
		country, _, ok := bytes.Cut(rec.Value, []byte{' '})
		out := saramagroup.Output{Topic: "orders." + string(country), Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
		if !ok {
			out.Topic = "orders.unreadable" // an error would be tried again, for ever
		}
		return []saramagroup.Output{out}, nil
	}
	err := saramagroup.Transform(ctx, []string{"kafka-1:9093"}, "orders-by-country", byCountry, saramagroup.TransformConfig{
		Topics: []string{"shop.order"}, TLS: &tls.Config{MinVersion: tls.VersionTLS12},
	})
	if err != nil {
		fmt.Println(err) // going on is pointless before a person changes something
	}
}
