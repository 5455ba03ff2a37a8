package publisher

import (
	"errors"
	"fmt"
	"maps"

	"github.com/IBM/sarama"
)

// Bounds of one request that makes topics: brokers refuse one with more than
// 10,000 partitions.
const (
	createTopics     = 500
	createPartitions = 5000
)

// creator makes missing topics beside the watcher, all that wait in one request.
// Its fields belong to the watcher's goroutine.
type creator struct {
	wanted map[string]*topic // in order to be made
	making map[string]*topic // of the round that is under way
	made   chan map[string]*RouteError
}

func newCreator() creator {
	return creator{wanted: make(map[string]*topic), making: make(map[string]*topic),
		made: make(chan map[string]*RouteError)}
}

// beingMade is why the events of a missing topic wait for a moment.
func beingMade(name string) *RouteError {
	return &RouteError{Route: name, Topic: name, Reason: "does not exist yet and is being created", Cure: "it goes on by itself", Passing: true}
}

// want has a missing topic made, and returns why its events wait meanwhile. One
// that could not be made keeps the reason while that is tried again.
func (w *watcher) want(t *topic) *RouteError {
	if w.creator.making[t.name] == nil {
		w.creator.wanted[t.name] = t
	}
	w.makeWanted()
	if old := t.state.Load(); old != nil && old.refused != nil {
		return old.refused
	}
	return beingMade(t.name)
}

// makeWanted begins a round, unless one is under way.
func (w *watcher) makeWanted() {
	c := &w.creator
	if len(c.making) > 0 || len(c.wanted) == 0 {
		return
	}
	most := max(1, min(createTopics, createPartitions/int(w.settings.Topics.Partitions)))
	names := make([]string, 0, min(most, len(c.wanted)))
	for name, t := range c.wanted {
		if len(names) == most {
			break
		}
		names = append(names, name)
		c.making[name] = t
		delete(c.wanted, name)
	}
	w.tasks.Go(func() {
		refused := w.round(names)
		select {
		case c.made <- refused:
		case <-w.wire.Down():
		}
	})
}

// endRound takes on what a round has done, and begins the next.
func (w *watcher) endRound(refused map[string]*RouteError) {
	c := &w.creator
	made := make([]*topic, 0, len(c.making))
	for name, t := range c.making {
		if why := refused[name]; why != nil {
			w.store(t, topicState{refused: why})
		} else {
			made = append(made, t)
		}
	}
	clear(c.making)
	if err := w.check(made...); err != nil {
		for _, t := range made {
			w.unanswered(t, err)
		}
	}
	w.makeWanted()
}

// round makes topics with one request, waits until they are known, and returns
// why some could not be made. It has a connection of its own.
func (w *watcher) round(names []string) map[string]*RouteError {
	b := newBrokers(w.brokers.Config, w.settings)
	defer b.Close()
	memory, limit := w.settings.Memory, w.settings.Topics.MaxCreated
	granted := memory.reserve(len(names), limit)
	refused := make(map[string]*RouteError)
	for _, name := range names[granted:] {
		refused[name] = tooManyCreated(name, w.settings)
	}
	names = names[:granted]
	if len(names) == 0 {
		return refused
	}
	made, failed, err := makeTopics(b, w.settings, names)
	w.wire.refuse(err)
	maps.Copy(refused, failed)
	for _, name := range made {
		w.settings.Logger.Info("created topic", "topic", name, "partitions", w.settings.Topics.Partitions, "replication_factor", w.settings.Topics.ReplicationFactor)
	}
	memory.giveBack(len(names) - len(made))
	w.awaitKnown(b, made)
	return refused
}

// awaitKnown waits for a moment until a broker knows topics that were made.
func (w *watcher) awaitKnown(b *brokers, names []string) {
	for try := 0; len(names) > 0 && try < createTries; try++ {
		response, err := b.describe(names)
		if err == nil {
			unknown := 0
			for _, metadata := range response.Topics {
				if errors.Is(metadata.Err, sarama.ErrUnknownTopicOrPartition) || len(metadata.Partitions) == 0 {
					unknown++
				}
			}
			if unknown == 0 {
				return
			}
		}
		if !w.wire.Pause(createPause) {
			return
		}
	}
}

// tooManyCreated: rows ask for more topics than may be made.
func tooManyCreated(name string, s *settings) *RouteError {
	return &RouteError{
		Route: name, Topic: name,
		Reason: fmt.Sprintf("does not exist, and this relay has made as many topics since it was started as it may (topics.max_created = %d)", s.Topics.MaxCreated),
		Cure:   "find out which rows ask for so many, and bound them by routes or topics.allow; then " + byHand(s) + orElse + "raise topics.max_created" + andRestart,
	}
}
