package operator

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
)

func TestAProblemNamesItsCures(t *testing.T) {
	p := NewProblem("relay a is `halted`: `outboxctl skip KEY --relay a` leaves it out, `outboxctl status` says more").Of("halted", "a", "onceward_a")
	text, err := json.Marshal(p)
	require.NoError(t, err)
	require.JSONEq(t, `{"check": "halted", "relay": "a", "slot": "onceward_a",
		"what": "relay a is `+"`halted`: `outboxctl skip KEY --relay a` leaves it out, `outboxctl status`"+` says more",
		"cures": ["outboxctl skip KEY --relay a", "outboxctl status"]}`, string(text))
	require.Equal(t, p.What, p.String())
	p = NewProblem("to mend it: `ALTER TABLE a ATTACH PARTITION b DEFAULT;` then `outboxctl status`; see `a`")
	require.Equal(t, []string{"ALTER TABLE a ATTACH PARTITION b DEFAULT;", "outboxctl status"}, p.Cures, "in the order in which they are run")
	p = NewProblem("attach it: `SET lock_timeout = '2s'; ALTER TABLE a DETACH PARTITION b FINALIZE` and look")
	require.Equal(t, []string{"SET lock_timeout = '2s'; ALTER TABLE a DETACH PARTITION b FINALIZE"}, p.Cures)
}

func TestAProblemOfAnErrorHasItsCode(t *testing.T) {
	p := ProblemOf(&cdc.StartError{Code: "NO_PARTITION", What: "none of today", Cure: "outboxctl partitions maintain"})
	require.Equal(t, "NO_PARTITION", p.Code)
	require.Equal(t, []string{"outboxctl partitions maintain"}, p.Cures)
	require.Equal(t, Problem{What: "x", Cures: []string{}}, ProblemOf(errors.New("x")))
	raised := &pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: "run `outboxctl gap accept X`"}
	p = ProblemOf(fmt.Errorf("read it: %w; `outboxctl status` says more", raised))
	require.Equal(t, []string{"outboxctl status"}, p.Cures, "what a server says is no command of ours")
	require.NotNil(t, Problems(), "JSON shows [] and not null")
}
