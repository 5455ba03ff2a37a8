package relay

import (
	_ "github.com/onceward/onceward/cdc"
	_ "github.com/onceward/onceward/publisher"
)
