package operator

import (
	"fmt"
)

// UnclearError is an order that does not say what is meant, or means nothing here:
// nothing was done, and it is to be given otherwise.
type UnclearError struct{ msg string }

func (e *UnclearError) Error() string { return e.msg }

// Unclear makes an [unclearError].
func Unclear(format string, args ...any) error {
	return &UnclearError{msg: fmt.Sprintf(format, args...)}
}
