// Package kafkaconf is the one place where a sarama.Config is made: defaults of sarama
// lose and reorder events, so a second place is a second chance for it. [New] has what
// all clients of ours share, and [Secure] TLS and SASL; what a producer, a member of a
// group or a tool needs beside that is set where it is one (publisher/sarama.go,
// consumer/saramagroup/sarama.go, internal/operator/kafka). It keeps no state.
package kafkaconf
