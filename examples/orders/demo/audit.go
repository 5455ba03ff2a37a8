package main

import "github.com/IBM/sarama"

// auditConfig is for reading the topic beside the consumer, and for delivering
// a record again to the partition that it came from.
func auditConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.ClientID = "onceward-demo-audit"
	c.Version = sarama.V2_8_0_0
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	return c
}
