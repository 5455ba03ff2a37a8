package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
)

// readLetterSelection checks arguments and filters; it needs no server.
func readLetterSelection(c *cli.Context) (s letters.GroupFilter, err error) {
	if err := checkOutput(c); err != nil {
		return s, err
	}
	var keys []string
	for _, text := range c.Args().Slice() {
		if !strings.Contains(text, "@") {
			keys = append(keys, text)
			continue
		}
		p, err := letters.ParsePlace(text)
		if err != nil {
			return s, err
		}
		if !slices.Contains(s.Places, p) {
			s.Places = append(s.Places, p)
		}
	}
	if s.Selection, err = readSelectionOf(c, keys); err != nil {
		return s, err
	}
	if s.Older, err = readAge(c, "older"); err != nil {
		return s, err
	}
	s.Group, s.Cause, s.Topic = c.String("group"), c.String("cause"), c.String("topic")
	switch {
	case s.Cause != "" && !slices.Contains(states.Causes, s.Cause):
		return s, usage("--cause %q: want one of %s", s.Cause, strings.Join(states.Causes, ", "))
	case len(s.Places) > 0 && (s.Filtered() || s.Narrowed()):
		return s, usage("%s: give PLACEs or filters, not both; --group goes with both", c.Command.HelpName)
	}
	return s, nil
}
