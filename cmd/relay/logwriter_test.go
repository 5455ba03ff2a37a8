package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pipe is a writer that may be full.
type pipe struct {
	mu   sync.Mutex
	full chan struct{} // closed: it is read again
	text bytes.Buffer
	err  error
}

func (p *pipe) Write(b []byte) (int, error) {
	if p.full != nil {
		<-p.full
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	return p.text.Write(b)
}

// A log that nobody reads costs a bounded amount of memory and no time; what is
// missing is counted, and said once it is read again.
func TestLogWriterNeverWaits(t *testing.T) {
	for size, fits := range map[int]int{1024: logBytes / 1024, 10: logLines} {
		neverWaits(t, size, fits)
	}
}

func neverWaits(t *testing.T, size, fits int) {
	synctest.Test(t, func(t *testing.T) {
		out := &pipe{full: make(chan struct{})}
		w := newLogWriter(out)
		counted, said := 0, []int64{}
		w.notify(logEvents{
			dropped: func() { counted++ },
			drained: func(out io.Writer, lines int64) {
				said = append(said, lines)
				_, _ = fmt.Fprintf(out, "dropped %d\n", lines)
			},
		})
		line := []byte(strings.Repeat("x", size-1) + "\n")
		for range 5000 {
			n, err := w.Write(line)
			require.NoError(t, err)
			require.Equal(t, size, n)
		}
		require.LessOrEqual(t, w.held.Load(), int64(logBytes))
		require.InDelta(t, 5000-fits, counted, 1, "one may be under way")
		close(out.full)
		synctest.Wait()
		require.Equal(t, []int64{int64(counted)}, said)
		_, _ = w.Write([]byte("last\n"))
		w.close()
		require.Equal(t, 5000-counted+2, strings.Count(out.text.String(), "\n"))
		require.True(t, strings.HasSuffix(out.text.String(), "last\n"), "the end is flushed")
	})
}

func TestLogWriterEndsThoughNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &pipe{full: make(chan struct{})}
		w := newLogWriter(out)
		_, _ = w.Write([]byte("x"))
		began := time.Now()
		w.close()
		require.Equal(t, flushLimit, time.Since(began))
		close(out.full)
	})
}

func TestLogWriterOutlivesItsReader(t *testing.T) {
	out := &pipe{err: errors.New("broken pipe")}
	w := newLogWriter(out)
	_, err := w.Write([]byte("x"))
	require.NoError(t, err)
	w.close()
	require.EqualValues(t, 1, w.dropped.Load())
}

// The last line says why the process ends: it comes while the one before is written.
func TestTheLastLineIsWritten(t *testing.T) {
	for range 50_000 {
		out := &pipe{}
		w := newLogWriter(out)
		for _, line := range []string{"halted\n", "relay: why\n"} {
			_, err := io.WriteString(w, line)
			require.NoError(t, err)
			runtime.Gosched()
		}
		w.close()
		require.Equal(t, "halted\nrelay: why\n", out.text.String())
	}
}
