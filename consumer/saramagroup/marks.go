package saramagroup

import (
	"strconv"
	"strings"
	"sync"

	"github.com/onceward/onceward/consumer"
)

// marks are how far the workers of a session have got since the last commit of
// offsets. Safe for concurrent use.
type marks struct {
	mu sync.Mutex
	of map[place]consumer.Mark
}

// place is a topic partition.
type place struct {
	topic     string
	partition int32
}

func (m *marks) widen(mark consumer.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = make(map[place]consumer.Mark)
	}
	m.of[place{mark.Topic, mark.Partition}] = mark
}

// reopen takes back that a partition was read to its end, if that is not saved
// yet: something has come.
func (m *marks) reopen(at place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark, ok := m.of[at]; ok {
		mark.AtEnd = false
		m.of[at] = mark
	}
}

// take returns what was widened since the last call.
func (m *marks) take() []consumer.Mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []consumer.Mark
	for _, mark := range m.of {
		all = append(all, mark)
	}
	clear(m.of)
	return all
}

// restore puts back what could not be saved, unless it was widened meanwhile. An
// end is no longer one when the database is back.
func (m *marks) restore(all []consumer.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mark := range all {
		mark.AtEnd = false
		if _, newer := m.of[place{mark.Topic, mark.Partition}]; !newer {
			m.of[place{mark.Topic, mark.Partition}] = mark
		}
	}
}

// metadataPrefix begins the metadata of our offset commits.
const metadataPrefix = "onceward:1:"

// metadata is committed with an offset: the mark that was in the database before.
func metadata(high int64) string { return metadataPrefix + strconv.FormatInt(high, 10) }

// rewindTo says where to begin a partition whose committed offset has the given
// metadata, when the database's mark is high, or known is false. ok is false for
// where Kafka says. It is pure.
//
// A database that is behind what it had when the offset was committed has lost
// commits, and with them effects: everything after its own mark is delivered
// again, and what it still has is a duplicate. An offset that was set by hand
// has no metadata, and is obeyed.
func rewindTo(committed string, high int64, known bool) (offset int64, ok bool) {
	text, ours := strings.CutPrefix(committed, metadataPrefix)
	flushed, err := strconv.ParseInt(text, 10, 64)
	switch {
	case !ours || err != nil:
		return 0, false
	case !known:
		return 0, true
	case high < flushed:
		return high + 1, true
	}
	return 0, false
}
