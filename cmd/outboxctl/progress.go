package main

import (
	"fmt"
	"io"
	"time"

	"github.com/onceward/onceward/internal/terminal/device"
)

// progress is one line on a terminal that is written over; elsewhere it is
// silent. It belongs to one goroutine.
type progress struct {
	out   io.Writer // nil: silent
	verb  string
	total int
	began time.Time
	drawn time.Time
}

// redraw is the least time between two drawings.
const redraw = 100 * time.Millisecond

func newProgress(out io.Writer, verb string, total int) *progress {
	p := &progress{verb: verb, total: total, began: time.Now()}
	if device.IsTerminal(out) {
		p.out = out
	}
	return p
}

// show draws how far it is.
func (p *progress) show(done int) {
	now := time.Now()
	if p.out == nil || done < p.total && now.Sub(p.drawn) < redraw {
		return
	}
	p.drawn = now
	left := ""
	if took := now.Sub(p.began); done > 0 && done < p.total {
		left = fmt.Sprintf(", %s left", (took * time.Duration(p.total-done) / time.Duration(done)).Round(time.Second))
	}
	fmt.Fprintf(p.out, "\r%s %d of %d (%d %%)%s\x1b[K", p.verb, done, p.total, done*100/max(p.total, 1), left) //nolint:errcheck // a terminal that is gone
}

// end leaves the line as it is.
func (p *progress) end() {
	if p.out != nil {
		fmt.Fprintln(p.out) //nolint:errcheck // a terminal that is gone
	}
}
