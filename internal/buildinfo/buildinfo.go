// Package buildinfo says which build of a program runs. Pure but for Describe, which
// reads what the Go linker wrote into this one; safe for concurrent use.
package buildinfo

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// unset is what a version is that no build has set.
const unset = "dev"

// Describe returns the version that the build has set, else that of the module, with
// the commit and the Go that it was built of: "v0.1.0 (commit 1a2b3c4d5e6f, go1.26.8)".
func Describe(version string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version
	}
	return describe(version, info)
}

func describe(version string, info *debug.BuildInfo) string {
	if version == unset && info.Main.Version != "" && info.Main.Version != "(devel)" {
		version = info.Main.Version
	}
	var of []string
	settings := make(map[string]string, len(info.Settings))
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if commit := settings["vcs.revision"]; commit != "" {
		of = append(of, "commit "+commit[:min(12, len(commit))])
	}
	if settings["vcs.modified"] == "true" {
		of = append(of, "with changes")
	}
	return fmt.Sprintf("%s (%s)", version, strings.Join(append(of, info.GoVersion), ", "))
}
