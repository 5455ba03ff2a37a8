package relay

import "time"

func wait() { time.Sleep(1) } // not a test
