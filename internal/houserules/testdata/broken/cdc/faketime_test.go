package cdc_test

import (
	_ "testing/synctest"
	"time"
)

func advance() { time.Sleep(1) }
