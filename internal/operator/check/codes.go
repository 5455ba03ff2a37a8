package check

import (
	"errors"

	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay"
)

// Codes of what is no failure of a relay that runs, so that it has none for it. Each
// verdict that is not well has one.
const (
	codeNoAnswer        = "NO_ANSWER"
	codeAddress         = "ADDRESS_TAKEN"
	codePaused          = "PAUSED"
	codeFewPartitions   = "FEW_PARTITIONS"
	codeSettings        = "SETTINGS_CHANGED"
	codeUnboundLog      = "WAL_UNBOUNDED"
	codeNoSenderTimeout = "SENDER_TIMEOUT_OFF"
	codeIdleTimeout     = "IDLE_SLOT_TIMEOUT"
	codeStandbys        = "STANDBYS_NOT_AWAITED"
	codeStandbyAway     = "STANDBY_AWAY"
	codeNoFailover      = "SLOT_WITHOUT_FAILOVER"
	codeClock           = "CLOCK_SKEW"
	codeRoute           = "ROUTE"
	codeRecord          = "RECORD"
	codeCompacted       = "COMPACTED_TOPIC"
	codeNarrow          = "NARROW_TOPIC"
	codeUnclean         = "UNCLEAN_ELECTION"
	codeFewReplicas     = "FEW_REPLICAS"
	codeMinInSync       = "MIN_IN_SYNC"
	codeHalfCommits     = "HALF_COMMITS"
)

// codeOf is the code of an error that has none by itself.
func codeOf(err error) string {
	var route *publisher.RouteError
	switch {
	case errors.As(err, &route):
		return codeRoute
	case errors.Is(err, publisher.ErrRecord):
		return codeRecord
	}
	if code := relay.CodeOf(err); code != codeUnnamed {
		return code
	}
	return relay.CodePostgres // which almost everything is asked of
}

// codeUnnamed is that of a session's end of which nothing is known.
const codeUnnamed = "SESSION_ENDED"
