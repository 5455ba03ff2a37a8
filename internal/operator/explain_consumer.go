package operator

import (
	"errors"
	"fmt"

	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/migrations"
)

// ExplainConsumersMaintainer names the role: partitions are made by the owner of the table.
func ExplainConsumersMaintainer(err error) error {
	switch {
	case errors.Is(err, retention.ErrMaintained):
		return fmt.Errorf("%w; try again when it has ended", err)
	case Denied(err):
		return fmt.Errorf("%w; connect as a member of the role onceward_consumer_maintainer: `outboxctl migrate roles --side consumer --print` shows how to make one", err)
	}
	return Explain(err, migrations.Consumer)
}
