package produce

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Throttle is until when a broker wants nothing, because a quota is used up. Its zero value says that none has asked.
// It is safe for concurrent use.
type Throttle struct{ until atomic.Pointer[time.Time] }

// Until returns until when, the latest of all brokers; zero when none has asked.
func (t *Throttle) Until() time.Time {
	if until := t.until.Load(); until != nil {
		return *until
	}
	return time.Time{}
}

// ask notes that a broker has asked. The loop calls it.
func (t *Throttle) ask(until time.Time) {
	if until.After(t.Until()) {
		t.until.Store(&until)
	}
}

// Said returns what brokers answer to a client id, what they have answered otherwise before it, and until when one of
// them wants nothing.
func (t *Throttle) Said(otherwise, client, server string) (all string, until time.Time) {
	if until = t.Until(); !until.After(time.Now()) {
		return otherwise, until
	}
	if otherwise != "" {
		otherwise += "; and "
	}
	return otherwise + fmt.Sprintf("a quota is used up (producer_byte_rate or request_percentage of client id %s or of its user), and a broker throttles: it has this relay wait until %s. "+
		"`kafka-configs.sh --bootstrap-server %s --describe --entity-type clients` shows quotas, and so with users; raise it. Where it was raised since, restart the relay: a new connection does not wait",
		client, until.UTC().Format(time.RFC3339), server), until
}
