package main

import (
	"context"
	"log/slog"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay"
)

// whereabouts says in which database and in which cluster show looks.
type whereabouts struct {
	dsn    string // of --config; empty: of the flags and the environment
	kafka  publisher.Config
	topic  string // of --topic; empty: of the routes
	routed bool   // the configuration has routes
}

func whereToLook(c *cli.Context) (whereabouts, error) {
	w, cfg, err := clusterToAsk(c)
	if err == nil && w.routed && c.String("dsn") == "" && c.String("dsn-file") == "" {
		w.dsn, err = cfg.DSN()
	}
	return w, err
}

// clusterToAsk leaves the configuration's DSN alone: it is the relay's, who may
// not do what an operator may.
func clusterToAsk(c *cli.Context) (whereabouts, *relay.Config, error) {
	w := whereabouts{kafka: publisher.Config{Brokers: c.StringSlice("brokers")}, topic: c.String("topic")}
	if c.String("config") == "" {
		return w, nil, nil
	}
	cfg, err := loadConfig(c)
	if err != nil {
		return w, nil, err
	}
	if w.kafka, err = cfg.Publisher(slog.New(slog.DiscardHandler)); err != nil {
		return w, nil, err
	}
	w.routed = true
	return w, &cfg, nil
}

func (w whereabouts) connect(c *cli.Context) (*operator.Database, error) {
	if w.dsn == "" {
		return connect(c)
	}
	return operator.Open(c.Context, w.dsn)
}

// search looks into Kafka where it was asked for and the topic is known.
func (w whereabouts) search(ctx context.Context, r *showReport, key operator.Name) (err error) {
	topic := w.topic
	if topic == "" && !w.routed {
		return nil
	}
	if topic == "" {
		if topic, r.NotSearched = w.topicOf(r, key); r.NotSearched != "" {
			return nil
		}
	}
	s := r.search(w.kafka.Brokers, topic, key)
	s.Secure = w.kafka.Secure
	r.Kafka, err = findCopies(ctx, s)
	return err
}

// topicOf asks the routes; without a topic it says why there is none.
func (w whereabouts) topicOf(r *showReport, key operator.Name) (topic, why string) {
	var aggregateType, eventType string
	switch letter := r.eventLetter(""); {
	case r.Row != nil:
		aggregateType, eventType = r.Row.AggregateType, r.Row.EventType
	case letter != nil:
		aggregateType, eventType = letter.aggregateType, letter.eventType
	default:
		return "", "neither row nor letter is left that would say which route it took; give --topic"
	}
	topic, err := w.kafka.TopicOf(key.Namespace, aggregateType, eventType)
	if err != nil {
		return "", err.Error()
	}
	return topic, ""
}
