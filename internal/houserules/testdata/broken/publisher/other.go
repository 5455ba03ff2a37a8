package publisher

import kafka "github.com/IBM/sarama"

var other = kafka.NewConfig()
