package main

import (
	"io"
	"sync/atomic"
	"time"
)

// What waits to be written to a log that nobody reads is at most so much.
const (
	logBytes = 1 << 20
	logLines = 4096
)

// flushLimit is how long the end of the process waits for its last lines.
const flushLimit = time.Second

// logWriter writes lines to a writer that may stand still, in a goroutine of its
// own: a full pipe must not stop what is logged about. What does not fit is
// dropped and counted. The zero value is of no use; see newLogWriter.
type logWriter struct {
	out     io.Writer
	lines   chan []byte
	held    atomic.Int64 // bytes in lines
	dropped atomic.Int64 // lines, not said yet
	quit    chan struct{}
	done    chan struct{}
	events  atomic.Pointer[logEvents]
}

// logEvents is what happens to a log beside its lines.
type logEvents struct {
	dropped func()                           // one line was dropped
	drained func(out io.Writer, lines int64) // it can be written again; so many are missing
}

func newLogWriter(out io.Writer) *logWriter {
	w := &logWriter{out: out, lines: make(chan []byte, logLines), quit: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

// notify sets what is called. Drained is called in the writer's goroutine.
func (w *logWriter) notify(events logEvents) { w.events.Store(&events) }

// Write implements io.Writer. It never waits and never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	size := int64(len(line))
	if w.held.Add(size) > logBytes {
		w.held.Add(-size)
		w.drop()
		return len(line), nil
	}
	select {
	case w.lines <- append([]byte(nil), line...):
	default:
		w.held.Add(-size)
		w.drop()
	}
	return len(line), nil
}

func (w *logWriter) drop() {
	w.dropped.Add(1)
	if events := w.events.Load(); events != nil {
		events.dropped()
	}
}

func (w *logWriter) run() {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.write(line)
		case <-w.quit:
			w.rest()
			return
		}
	}
}

// rest writes what was there when the end came.
func (w *logWriter) rest() {
	for {
		select {
		case line := <-w.lines:
			w.write(line)
		default:
			return
		}
	}
}

func (w *logWriter) write(line []byte) {
	_, err := w.out.Write(line)
	w.held.Add(-int64(len(line)))
	if err != nil {
		w.drop() // whoever read the log is gone
		return
	}
	if events := w.events.Load(); events != nil && w.dropped.Load() > 0 {
		events.drained(w.out, w.dropped.Swap(0))
	}
}

// close writes what is there, if that takes no longer than flushLimit. What is written after
// it is lost.
func (w *logWriter) close() {
	close(w.quit)
	select {
	case <-w.done:
	case <-time.After(flushLimit):
	}
}
