package record

import (
	_ "github.com/onceward/onceward/outbox"
	_ "github.com/onceward/onceward/publisher"
)
