package saramagroup

import "github.com/IBM/sarama"

// Hooks builds what only tests want into a configuration.
func (c Config) Hooks(config func(*sarama.Config), member func(sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler) Config {
	c.hooks = hooks{config: config, member: member}
	return c
}

// Hopeless is hopeless.
var Hopeless = hopeless

// Steps returns the first n pauses of a backoff.
func Steps(c Config, n int) []int64 {
	b := backoff{min: c.RetryMin, max: c.RetryMax}
	var steps []int64
	for range n {
		steps = append(steps, int64(b.step()))
	}
	return steps
}
