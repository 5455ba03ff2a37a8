package events

import (
	"context"
	"slices"
	"strings"

	"github.com/onceward/onceward/internal/operator"
)

const (
	maxKeys = 50   // are offered
	maxRead = 1000 // of each state, to find those that begin as is wanted
)

// Keys are at most 50 keys of events in one of the states that begin with a text, but for
// those that are given: for who types one of them.
func Keys(ctx context.Context, db *operator.Database, states []string, begin string, but []string) ([]string, error) {
	var found []string
	for _, state := range states {
		filter := Filter{State: state, Limit: maxRead}
		if namespace, _, ok := strings.Cut(begin, ":"); ok {
			filter.Namespace = namespace
		}
		list, err := Read(ctx, db, filter)
		if err != nil {
			return nil, err
		}
		for _, e := range list.Events {
			found = append(found, e.Key)
		}
	}
	return offered(found, begin, but), nil
}

// offered leaves out what is no key, since a producer named its service as it liked: a
// shell would read it.
func offered(keys []string, begin string, but []string) (out []string) {
	for _, key := range keys {
		if !strings.HasPrefix(key, begin) || slices.Contains(but, key) || slices.Contains(out, key) {
			continue
		}
		if _, err := operator.ParseKey(key); err == nil && len(out) < maxKeys {
			out = append(out, key)
		}
	}
	return out
}
