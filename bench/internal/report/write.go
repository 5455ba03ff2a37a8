package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Write leaves results.json, results.md and the charts in a folder, which it makes. Files of the
// same names are replaced.
func (r *Results) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // G301: results are for everybody
		return fmt.Errorf("make the folder of the results: %w", err)
	}
	charts := Charts(r)
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the results as JSON: %w", err)
	}
	files := map[string]string{
		"results.json": string(text) + "\n",
		"results.md":   r.Markdown(slices.Sorted(maps.Keys(charts))),
	}
	maps.Copy(files, charts)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // G306: as above
			return fmt.Errorf("write the results: %w", err)
		}
	}
	return nil
}
