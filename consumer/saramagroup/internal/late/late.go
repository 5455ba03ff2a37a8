// Package late says that a session with Kafka is long in coming. sarama waits for minutes for
// a broker that takes connections and answers nothing, and says nothing of it.
package late

import (
	"log/slog"
	"time"

	"github.com/IBM/sarama"
)

// After is how long nothing is said: a rebalance among members that are well takes less.
const After = 15 * time.Second

// Session returns a handler for Consume of sarama. Where that has not set it up [After] a
// while, log is told, once, with the brokers. Over is called when Consume has returned.
func Session(h sarama.ConsumerGroupHandler, log *slog.Logger, brokers []string) (_ sarama.ConsumerGroupHandler,
	over func()) {
	timer := time.AfterFunc(After, func() {
		log.Warn("no session with Kafka yet: the brokers do not answer, or the group waits for another member", "brokers", brokers, "for", After)
	})
	return handler{h, timer}, func() { timer.Stop() }
}

type handler struct {
	sarama.ConsumerGroupHandler
	timer *time.Timer
}

// Setup implements the handler of sarama.
func (h handler) Setup(s sarama.ConsumerGroupSession) error {
	h.timer.Stop()
	return h.ConsumerGroupHandler.Setup(s)
}
