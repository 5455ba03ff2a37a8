package fence

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// ErrTwice: one delivery made two effects of one name, which are one.
var ErrTwice = errors.New("an effect of this name was made in this delivery; give each effect of an event its own Name, e.g. one per recipient")

// ErrUnfinished is the state of an effect whose attempt is under way.
var ErrUnfinished = errors.New("the handler returned before its effect had ended")

// Names are the effects of one delivery, and what became of the last attempt of each. The
// zero value has none. Safe for concurrent use.
type Names struct {
	mu   sync.Mutex
	of   map[string]error
	over bool
}

// Begin takes the name of an effect. One that has failed may be tried again.
func (n *Names) Begin(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	last, begun := n.of[name]
	switch {
	case n.over:
		return ErrUnfinished
	case begun && (last == nil || errors.Is(last, ErrUnfinished)):
		n.of[name] = fmt.Errorf("%w: %q", ErrTwice, name)
		return n.of[name]
	case n.of == nil:
		n.of = make(map[string]error)
	}
	n.of[name] = ErrUnfinished
	return nil
}

// Finish leaves what became of an effect.
func (n *Names) Finish(name string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !errors.Is(n.of[name], ErrTwice) {
		n.of[name] = err
	}
}

// End closes the delivery, and returns what its effects have left.
func (n *Names) End() (effects int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = true
	for _, name := range slices.Sorted(maps.Keys(n.of)) {
		err = errors.Join(err, n.of[name])
	}
	return len(n.of), err
}
