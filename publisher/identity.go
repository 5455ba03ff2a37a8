package publisher

import (
	"sort"
	"time"

	"github.com/IBM/sarama"
)

// surely is how far two answers lie apart that say of a topic that it was made
// anew: a broker that lags behind may show an id that is gone.
const surely = 2 * time.Second

// KnownTopic is what is known of a topic that was written to.
type KnownTopic struct {
	Name string
	ID   string // Kafka's; another one is another topic of the same name
	// Acknowledged by the topic of this id, as of SeenAt; those of transactions that were aborted count too.
	Records int64
	SeenAt  time.Time // when a broker last said that this is its id
}

// RemadeTopic is a topic that was deleted and made anew: what was in the one
// before is gone.
type RemadeTopic struct {
	Before KnownTopic
	ID     string // of the one that is there now
	SeenAt time.Time
}

// identity is one topic as Memory knows it. The invariant: id changes only after
// two answers, at least surely apart and nothing else between, that agree on the
// new one.
type identity struct {
	KnownTopic
	of      *topic // whose count of records is added
	counted uint64 // of them, those that Records has
	other   string // another id that was the last answer
	otherAt time.Time
	told    KnownTopic // as the caller of Topics has it
}

// count adds what was acknowledged since the last count.
func (i *identity) count(t *topic) {
	if i.of != t {
		i.of, i.counted = t, 0
	}
	ended := t.ended.Load()
	i.Records += int64(ended - i.counted)
	i.counted = ended
}

// Know tells which topics were written to before, by this process or another. It
// forgets all others.
func (m *Memory) Know(topics []KnownTopic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := make(map[string]*identity, len(topics))
	for _, t := range topics {
		known[t.Name] = &identity{KnownTopic: t, told: t}
	}
	m.identities, m.remade = known, nil
}

// Topics returns the topics of which more is known than at the last call, and
// those that were made anew since then. Those of which only the count has changed
// are left out unless counts is true.
func (m *Memory) Topics(counts bool) (known []KnownTopic, remade []RemadeTopic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.identities {
		if i.ID == i.told.ID && (!counts || i.Records == i.told.Records) {
			continue
		}
		i.told = i.KnownTopic
		known = append(known, i.KnownTopic)
	}
	sort.Slice(known, func(a, b int) bool { return known[a].Name < known[b].Name })
	remade, m.remade = m.remade, nil
	return known, remade
}

// Count adds what was acknowledged since the brokers were last asked for the topics'
// ids, for a publisher that is about to be closed.
func (m *Memory) Count() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.identities {
		if i.of != nil && i.other == "" {
			i.count(i.of)
		}
	}
}

// meet takes in what a broker said of a topic, and reports whether it is to be
// asked again, because it may have been made anew. A zero id says nothing.
func (m *Memory) meet(t *topic, id sarama.Uuid, now time.Time) (doubtful bool) {
	if id == (sarama.Uuid{}) {
		return false
	}
	text := id.String()
	m.mu.Lock()
	defer m.mu.Unlock()
	i, known := m.identities[t.name]
	switch {
	case !known:
		if m.identities == nil {
			m.identities = make(map[string]*identity)
		}
		i = &identity{KnownTopic: KnownTopic{Name: t.name, ID: text}}
		m.identities[t.name] = i
	case i.ID == text:
	case i.other != text:
		i.other, i.otherAt = text, now
		return true
	case now.Sub(i.otherAt) < surely:
		return true
	default:
		m.remade = append(m.remade, RemadeTopic{Before: i.KnownTopic, ID: text, SeenAt: now})
		i.of, i.counted = t, t.ended.Load()
		i.ID, i.Records = text, 0
	}
	i.other, i.SeenAt = "", now
	i.count(t)
	return false
}
