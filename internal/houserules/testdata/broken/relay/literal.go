package relay

import "github.com/IBM/sarama"

var literal, made = sarama.Config{}, new(sarama.Config)
