// Package watch asks again and again, and shows each answer: at a terminal in the place of
// the one before, elsewhere after it.
//
// It runs in the goroutine of its caller, starts none, and keeps nothing between two runs.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Answer is what one look found.
type Answer struct {
	Text string // whole lines
	Err  error  // how a command ends whose last look this was
	Over bool   // no other look does better, as after a wrong call: it ends with Err, and Text is not shown
}

// Watch says how an answer is asked for.
type Watch struct {
	To       io.Writer
	Every    time.Duration // the pause between two looks
	Patience time.Duration // of one look
	// Lines is how many lines the terminal has, asked before each answer is shown; 0: each
	// comes after the one before.
	Lines func() int
}

// Run looks until ctx ends, and returns the error of the last whole look; without one that
// of ctx. It blocks until then. A look that failed is shown, and the next one tries again.
func (w Watch) Run(ctx context.Context, look func(context.Context) Answer) (err error) {
	var last *Answer
	there := false // on the other screen
	defer func() {
		if there {
			_, failed := io.WriteString(w.To, leave+last.Text) // the last answer stays, whole
			err = errors.Join(err, failed)
		}
	}()
	for {
		answer := w.once(ctx, look)
		switch {
		case ctx.Err() != nil && last == nil:
			return ctx.Err()
		case ctx.Err() != nil: // an interrupted look found nothing
			return last.Err
		case answer.Over:
			return answer.Err
		}
		last = &answer
		text := answer.Text
		if lines := w.Lines(); lines > 0 || there {
			text = drawn(text, lines)
			if !there {
				text, there = enter+text, true
			}
		}
		if _, err := io.WriteString(w.To, text); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
		if !w.pause(ctx) {
			return answer.Err
		}
	}
}

// once bounds a look: an answer that is old would be taken for how things are.
func (w Watch) once(ctx context.Context, look func(context.Context) Answer) Answer {
	limited, cancel := context.WithTimeout(ctx, w.Patience)
	defer cancel()
	return look(limited)
}

// pause tells whether it lasted.
func (w Watch) pause(ctx context.Context) bool {
	timer := time.NewTimer(w.Every)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// What a terminal is told, by the names of xterm's control sequences. The other screen
// keeps what was on this one, and nothing of it can be scrolled back to. Lines that are too
// long are cut there: a line that goes on below would move the others.
const (
	enter      = "\x1b[?1049h\x1b[?7l\x1b[2J"
	leave      = "\x1b[?7h\x1b[?1049l"
	home       = "\x1b[H"
	eraseRest  = "\x1b[K"
	eraseBelow = "\x1b[J"
)

// fewest lines are drawn, however small a terminal says that it is.
const fewest = 3

// drawn is a text from the top of a terminal of so many lines on. The last one stays empty:
// behind it a terminal scrolls.
func drawn(text string, lines int) string {
	rows := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if room := max(lines, fewest) - 1; len(rows) > room {
		left := len(rows) - room + 1
		rows = append(rows[:room-1:room-1], fmt.Sprintf("… and %d lines more, for which the terminal is too small", left))
	}
	return home + strings.Join(rows, eraseRest+"\r\n") + eraseRest + "\r\n" + eraseBelow
}
