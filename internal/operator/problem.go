package operator

import (
	"errors"
	"regexp"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
)

// Problem is what an operator should act on, or why nothing was done.
type Problem struct {
	Check string   `json:"check,omitempty"` // what looked, by a name that stays
	Code  string   `json:"code,omitempty"`  // of docs/troubleshooting.md
	Relay string   `json:"relay,omitempty"`
	Slot  string   `json:"slot,omitempty"`
	What  string   `json:"what"`  // as a person reads it, with all else that is here
	Cures []string `json:"cures"` // commands of outboxctl, or SQL, that it names; where there are several they may be a choice
}

// NewProblem is of a text that says what is wrong and, between backquotes, what to run. What
// others wrote is in it as [label.Foreign].
func NewProblem(what string) Problem {
	p := Problem{What: what, Cures: []string{}}
	for _, found := range printedCommand.FindAllStringSubmatch(what, -1) {
		p.Cures = append(p.Cures, found[1])
	}
	return p
}

var printedCommand = regexp.MustCompile("`((?:outboxctl|ALTER|SET) [^`]*)`")

// ProblemOf is of an error, of which what others said is no command, and whose code and
// cure it has where that has some.
func ProblemOf(err error) Problem {
	p := NewProblem(label.Said(err))
	var start *cdc.StartError
	if errors.As(err, &start) {
		p.Code = start.Code
		if len(p.Cures) == 0 && start.Cure != "" {
			p.Cures = []string{start.Cure}
		}
	}
	return p
}

// Of says by which check it was found, and of which relay it is, where it is of one.
func (p Problem) Of(check, relay, slot string) Problem {
	p.Check, p.Relay, p.Slot = check, relay, slot
	return p
}

// String is what a person reads.
func (p Problem) String() string { return p.What }

// Problems are those of texts; never nil.
func Problems(texts ...string) []Problem {
	out := []Problem{}
	for _, text := range texts {
		out = append(out, NewProblem(text))
	}
	return out
}
