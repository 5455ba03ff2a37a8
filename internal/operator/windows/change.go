package windows

import "fmt"

// Change is the JSON answer of windows set, raise and retire.
type Change struct {
	Group   string   `json:"group"`
	Class   string   `json:"class,omitempty"`
	Topic   *string  `json:"topic,omitempty"`
	Changed []string `json:"changed"`
	Reason  string   `json:"reason"`
	Notes   []string `json:"notes"`
}

// failed says what of which class did not come about.
func (c *Change) failed(verb string, err error) error {
	return fmt.Errorf("windows %s %s %s: %w", verb, c.Group, c.Class, err)
}

// OfClass is how a class is named behind its group; nothing where it is not one.
func OfClass(class string) string {
	if class == "" {
		return ""
	}
	return " class " + class
}
