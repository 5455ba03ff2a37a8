package cdc_test

import (
	clock "time"

	_ "github.com/onceward/onceward/consumer/saramagroup"
)

func wait() { clock.Sleep(1) }
