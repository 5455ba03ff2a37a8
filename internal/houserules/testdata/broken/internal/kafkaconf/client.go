package kafkaconf

import "github.com/IBM/sarama"

var config = sarama.NewConfig()
