// Package flight knows of the messages of a producer which of them are still on their way.
package flight

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
)

// Flight counts the messages that are on their way.
type Flight struct {
	changed chan struct{} // gets one when Wait has to look again

	mu      sync.Mutex
	aloft   int
	failure error // the first
}

// New returns one without messages.
func New() *Flight { return &Flight{changed: make(chan struct{}, 1)} }

// Add counts one that is about to be handed over.
func (f *Flight) Add() {
	f.mu.Lock()
	f.aloft++
	f.mu.Unlock()
}

func (f *Flight) land(err error) {
	f.mu.Lock()
	f.aloft--
	if f.failure == nil {
		f.failure = err
	}
	look := f.aloft == 0 || f.failure != nil
	f.mu.Unlock()
	if look {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// Wait returns nil once all are acknowledged, or else the first failure.
func (f *Flight) Wait(ctx context.Context) error {
	for {
		f.mu.Lock()
		aloft, failure := f.aloft, f.failure
		f.mu.Unlock()
		switch {
		case failure != nil:
			return failure
		case aloft == 0:
			return nil
		}
		select {
		case <-f.changed:
		case <-ctx.Done():
			return errors.Join(errors.New("the outputs were not acknowledged in time"), ctx.Err())
		}
	}
}

// Drain takes what becomes of the messages until the producer has ended. Nobody else may,
// and somebody must: sarama waits for it.
func (f *Flight) Drain(producer sarama.AsyncProducer) {
	successes, failures := producer.Successes(), producer.Errors()
	for successes != nil || failures != nil {
		select {
		case _, open := <-successes:
			if !open {
				successes = nil
				continue
			}
			f.land(nil)
		case failed, open := <-failures:
			if !open {
				failures = nil
				continue
			}
			f.land(fmt.Errorf("produce to topic %q: %w", failed.Msg.Topic, failed.Err))
		}
	}
}
