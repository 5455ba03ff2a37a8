package aside

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// call calls f aside, waits for it, and returns the name of its goroutine.
func call(t *testing.T, f func()) (goroutine string) {
	t.Helper()
	done := make(chan string, 1)
	Go(func() {
		buf := make([]byte, 64)
		id, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "[")
		defer func() { done <- id }()
		f()
	})
	return <-done
}

// One goroutine after the other is not a new one each time.
func TestGoroutinesAreUsedAgain(t *testing.T) {
	used := make(map[string]bool)
	for range 1000 {
		used[call(t, func() {})] = true
	}
	require.Less(t, len(used), 100)
}

// What does not return, or ends its goroutine, keeps nobody waiting.
func TestEndedAndStuck(t *testing.T) {
	stuck, over := make(chan struct{}), make(chan struct{})
	for range 10 {
		Go(func() { <-stuck; over <- struct{}{} })
		call(t, runtime.Goexit)
		call(t, func() {})
	}
	close(stuck)
	for range 10 {
		<-over
	}
}
