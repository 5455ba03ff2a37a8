package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/outboxdb"
)

// compareEvery is the time between two looks of a standby at how the owner of the
// slot is configured.
const compareEvery = 10 * time.Second

// routesHash tells routes from others; the order counts. It is short enough to be
// compared by eye.
func (c *Config) routesHash() string {
	routes := make([]RouteConfig, len(c.Routes))
	for i, r := range c.Routes {
		r.Poison = orDefault(r.Poison, PoisonParkAggregate)
		routes[i] = r
	}
	text, err := json.Marshal(routes)
	if err != nil {
		text = fmt.Append(nil, routes) // it is strings
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// otherwise says how this process is configured otherwise than the session that
// wrote the row; empty: it is not. Whichever leads would publish by its own.
func (c *Config) otherwise(row outboxdb.RelayState) string {
	var differs []string
	if row.Mode != c.Kafka.Mode {
		differs = append(differs, fmt.Sprintf("kafka.mode is %s there and %s here", row.Mode, c.Kafka.Mode))
	}
	if hash := c.routesHash(); row.Routes != nil && *row.Routes != hash {
		differs = append(differs, fmt.Sprintf("the routes have hash %s there and %s here", *row.Routes, hash))
	}
	return strings.Join(differs, "; ")
}

// compare reports whether the process that holds the slot is configured otherwise
// than this standby.
func (l *lookout) compare(ctx context.Context, report func(kind string, waits ...Wait)) {
	ctx, cancel := context.WithTimeout(ctx, lookoutLimit)
	defer cancel()
	row, err := l.relayState(ctx)
	if err != nil {
		return // whoever looks for the slot will tell
	}
	differs := l.cfg.otherwise(row)
	if differs == "" {
		report(WaitSettings)
		return
	}
	report(WaitSettings, Wait{
		What: "slot " + row.Slot, Since: time.Now(),
		Detail: differs + "; the process that holds the slot and this one are to have the same: a takeover would change it",
	})
}

// decideSettings says how a relay that starts now would differ from its last session.
func decideSettings(cfg *Config, row outboxdb.RelayState) Decision {
	d := Decision{Name: "mode and routes", Detail: "as in the last session"}
	if differs := cfg.otherwise(row); differs != "" {
		d.Detail = "not those of the last session (there), to which a relay that starts now (here) changes: " + differs
		d.Advice = "nothing, if that is meant and every process of the relay gets the same; else the relay.yaml of the last session"
	}
	return d
}
