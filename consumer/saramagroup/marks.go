package saramagroup

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
)

// marks are how far the workers of a session have got since the last commit of
// offsets. Safe for concurrent use.
type marks struct {
	mu   sync.Mutex
	of   map[place]consumer.Mark
	read map[place]int64 // Mark.Read as it was saved last
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

// reach says up to where a partition was read that was widened to mark last: that is
// saved too while nothing is finished. It takes back that the partition was read to
// its end, if that is not saved yet: something has come.
func (m *marks) reach(mark consumer.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = make(map[place]consumer.Mark)
	}
	at := place{mark.Topic, mark.Partition}
	read := mark.Read
	if pending, ok := m.of[at]; ok {
		mark = pending
	}
	mark.Read, mark.AtEnd = read, false
	m.of[at] = mark
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

// saved remembers of marks that the database has up to where partitions were read.
func (m *marks) saved(all []consumer.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.read == nil {
		m.read = make(map[place]int64)
	}
	for _, mark := range all {
		m.read[place{mark.Topic, mark.Partition}] = mark.Read
	}
}

// savedRead returns up to where the database knows that a partition was read.
func (m *marks) savedRead(at place) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read[at]
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

// What begins the metadata of our offset commits. The first, of earlier releases,
// knows no topic id, and is written where there is none.
const (
	metadataPrefix       = "onceward:1:"
	metadataOfLifePrefix = "onceward:2:"
)

// metadata is committed with an offset: the id of the topic, and the mark that was
// in the database before. Its spelling says the cluster, where that is known, by 18 bits
// of a fingerprint: a letter each before and behind the id, and how many digits the mark
// has. Releases of before read over them. They would take another format for an offset that
// was set by hand, and not see that a database has lost commits which was put back together
// with its programs.
func metadata(cluster string, topic uuid.UUID, high int64) string {
	switch {
	case topic == uuid.Nil:
		return metadataPrefix + strconv.FormatInt(high, 10)
	case cluster == "":
		return fmt.Sprintf("%s%s:%d", metadataOfLifePrefix, topic, high)
	}
	sum := sha256.Sum256([]byte(cluster))
	letters := base64.RawURLEncoding.EncodeToString(sum[:])
	return fmt.Sprintf("%s%c%s%c:%0*d", metadataOfLifePrefix, letters[0], topic, letters[1], 20+int(sum[2]%64), high)
}

// spelledOn reports whether metadata, which says a topic's id, says that it is of the cluster.
func spelledOn(cluster, text string) bool {
	topic, high, _ := parseMetadata(text)
	return cluster != "" && text == metadata(cluster, topic, high)
}

// parseMetadata reads what metadata has written. Zero is no topic id. ours is false
// for anything else: the offset was set by hand, or by another client.
func parseMetadata(text string) (topic uuid.UUID, high int64, ours bool) {
	number, ours := strings.CutPrefix(text, metadataPrefix)
	if of, second := strings.CutPrefix(text, metadataOfLifePrefix); second {
		var id string
		var err error
		id, number, _ = strings.Cut(of, ":")
		if topic, err = uuid.Parse(id); err != nil {
			return uuid.Nil, 0, false
		}
		ours = true
	}
	high, err := strconv.ParseInt(number, 10, 64)
	return topic, high, ours && err == nil
}

// another reports whether two topic ids are known and differ.
func another(a, b uuid.UUID) bool { return a != uuid.Nil && b != uuid.Nil && a != b }

// rewindTo says where to begin a partition of the topic with the id, whose
// committed offset has the given metadata, when the database's mark is high, or known
// is false. ok is false for where Kafka says. It is pure.
//
// A database that is behind what it had when the offset was committed has lost
// commits, and with them effects: everything after its own mark is delivered
// again, and what it still has is a duplicate. An offset that was set by hand
// has no metadata, and is followed. So is one that was committed for another topic of
// the name: whoever moves a group to another cluster translates the offset, and
// takes the metadata with it. Where it is of this cluster, follow sees to it.
func rewindTo(committed string, topic uuid.UUID, high int64, known bool) (offset int64, ok bool) {
	of, flushed, ours := parseMetadata(committed)
	switch {
	case !ours || another(of, topic):
		return 0, false
	case !known:
		return 0, true
	case high < flushed:
		return high + 1, true
	}
	return 0, false
}

// markOf finds the mark of a partition of the topic with the id among all marks: one
// of that id, or one whose topic is not known, which is taken for it. Where the id
// is not known, it is the mark of the topic that is read now, or was read last. It
// is pure.
func markOf(all []consumer.Mark, at place, topic uuid.UUID) (found consumer.Mark, ok bool) {
	for _, mark := range all {
		if mark.Topic != at.topic || mark.Partition != at.partition || another(mark.TopicID, topic) {
			continue
		}
		if !ok || found.TopicID != topic && mark.TopicID == topic {
			found, ok = mark, true
		}
	}
	return found, ok
}
