package outbox

import (
	_ "github.com/onceward/onceward/internal/outboxdb"
	_ "github.com/onceward/onceward/outbox/outboxtest"
)
