package publisher

import (
	"context"
	"slices"
	"strings"

	"github.com/onceward/onceward/internal/indoubt"
	"github.com/onceward/onceward/publisher/internal/rights"
)

// Refusal is what the brokers refuse, and what gives it.
type Refusal struct {
	Err  error
	Cure string
}

// InspectRights connects and asks for the rights of exactly-once mode beside those to write to the
// topics, and changes nothing. Nil is what is not refused. Where id or group is, no transaction is
// committed; where half is, nobody sees of a transaction, which wrote to these topics, that a
// coordinator has committed half of it.
func InspectRights(
	ctx context.Context, cfg Config, tx TransactionConfig, topics []string,
) (id, group, half *Refusal, err error) {
	err = look(ctx, cfg, func(b *brokers, _ *wire, s *settings) error {
		refused, err := rights.Ask(b.Config, b.Address, tx.ID, tx.Group, append(slices.Clip(topics), indoubt.Offsets))
		t := &Transactional{settings: s, config: tx}
		if refused.ID != nil {
			id = &Refusal{refused.ID, t.advise(refused.ID)}
		}
		if refused.Group != nil {
			group = &Refusal{refused.Group, t.advise(refused.Group)}
		}
		if refused.Half != nil {
			half = &Refusal{refused.Half, "run brokers of 3.0 or later"}
		}
		if refused.Topics != nil {
			half.Cure = s.grant("--operation Read --topic " + strings.Join(refused.Topics, " --topic "))
		}
		return err
	})
	return id, group, half, err
}
