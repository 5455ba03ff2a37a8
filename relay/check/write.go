package check

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// Write prints the verdicts as a table for people or as JSON; format is "table"
// or "json". Cures stand below their verdict.
func Write(w io.Writer, verdicts []Verdict, format string) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(verdicts)
	case "table":
		return table(w, verdicts)
	}
	return fmt.Errorf("output %q: want table or json", format)
}

func table(w io.Writer, verdicts []Verdict) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range verdicts {
		detail := v.Detail
		if v.Code != "" {
			detail = v.Code + ": " + detail
		}
		if _, err := fmt.Fprintf(t, "%s\t%s\t%s\n", v.Status, v.Name, detail); err != nil {
			return err
		}
		if v.Cure != "" {
			if _, err := fmt.Fprintf(t, "\t\t-> %s\n", v.Cure); err != nil {
				return err
			}
		}
	}
	return t.Flush()
}
