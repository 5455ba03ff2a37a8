//go:build e2e

package e2e

import (
	"reflect"
	"runtime"
	"time"
)

// undo ends a fault at its time. One that is not done yet asks to be called
// again.
type undo struct {
	at time.Time
	do func() (done bool)
}

// String names the function.
func (u undo) String() string { return runtime.FuncForPC(reflect.ValueOf(u.do).Pointer()).Name() }
