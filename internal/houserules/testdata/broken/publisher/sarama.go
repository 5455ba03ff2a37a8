package publisher

import "github.com/IBM/sarama"

var config = sarama.NewConfig()
