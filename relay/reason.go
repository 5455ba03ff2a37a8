package relay

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/retry"
)

// Codes of what the health pages say, beside those of a [cdc.StartError].
const (
	codeDSN     = "DSN"
	codeSession = "SESSION_ENDED"
	codeDecode  = "DECODE"
	codeRival   = "RIVAL"

	// CodeKafka: no broker lets a session begin, or the producer gave up.
	CodeKafka = "KAFKA"
	// CodePostgres: no server answers, or with an error that has no code of ours.
	CodePostgres = "POSTGRES"
	// CodeConfig: a setting is wrong, which a [*FieldError] names.
	CodeConfig = "CONFIG"
	// CodeMaintenance: the login that makes partitions may not.
	CodeMaintenance = "MAINTENANCE_RIGHTS"
	// CodeMaintenanceElsewhere: it leads to another database than the relay's.
	CodeMaintenanceElsewhere = "MAINTENANCE_ELSEWHERE"
	// CodeHalted: an operator has to decide about an event or a topic.
	CodeHalted = "HALTED"
	// CodeCheckpointTopic: the topic of exactly-once mode is not as it must be.
	CodeCheckpointTopic = "CHECKPOINT_TOPIC"
)

// CodePartitionFilled: a partition held rows when it was attached. Nothing of them
// is in the log of the outbox.
const CodePartitionFilled = beginning.CodePartitionFilled

// maxReason bounds the text of a reason, in bytes.
const maxReason = 2000

// reason is what the health pages, which need no login, say of an error: a code and
// words of ours. What a driver, a server or the system said is in the log only.
func reason(state State, err error) (code, text string) {
	var start *cdc.StartError
	var field *FieldError
	var dsn *secret.DSNError
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	var rival *retry.RivalError
	var decode *cdc.DecodeError
	var topic *publisher.CheckpointError
	var file *fileError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &start):
		return start.Code, label.Clip(start.What+". To mend it: "+start.Cure, maxReason)
	case errors.As(err, &field):
		return CodeConfig, label.Clip(field.Error(), maxReason)
	case errors.As(err, &topic):
		return CodeCheckpointTopic, label.Clip(topic.Error(), maxReason)
	case errors.As(err, &file):
		return file.code, file.key + " cannot be read or used; the log has the file and the reason"
	case errors.As(err, &dsn):
		return codeDSN, dsn.Error()
	case errors.As(err, &pg):
		return CodePostgres, fmt.Sprintf("PostgreSQL answered with SQLSTATE %s; the log has its words", pg.Code)
	case errors.As(err, &connect):
		return CodePostgres, "no connection to PostgreSQL; the log has the address and the reason"
	case errors.As(err, &rival):
		return codeRival, "another relay publishes with this one's transactional id; the log says what to do"
	case errors.As(err, &decode):
		return codeDecode, "the stream cannot be decoded; the log has the position and the reason"
	case state == StateHalted: // an event or a topic that an operator decides about
		return CodeHalted, label.Clip(label.Said(err), maxReason)
	case errors.Is(err, publisher.ErrFailed), errors.Is(err, publisher.ErrFenced):
		return CodeKafka, "the producer gave up; the log has the reason"
	}
	return codeSession, "the last session ended with an error; the log has it"
}

// CodeOf is the code that a relay's health pages have for an error that ends its session
// or halts it, of docs/troubleshooting.md.
func CodeOf(err error) string {
	code, _ := reason(StateBackoff, err)
	return code
}

// permanent reports whether trying again cannot mend the error, so that an
// operator must be told at once: a precondition that is not met, a wrong
// configuration, an event that cannot be published, or an SQLSTATE that says
// refused (28: login, 42: rights and names, 3D: no such database, 58P01: log
// removed). Everything else is tried again for ever.
func permanent(err error) bool {
	var start *cdc.StartError
	var field *FieldError
	var decode *cdc.DecodeError
	var layout *cdc.LayoutError
	var rival *retry.RivalError
	if errors.As(err, &start) {
		return !start.Passing
	}
	if errors.As(err, &field) || errors.As(err, &decode) || errors.As(err, &layout) || errors.As(err, &rival) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) < 2 {
		return false
	}
	switch pg.Code[:2] {
	case "28", "42", "3D", "3F":
		return true
	}
	return pg.Code == "58P01"
}
