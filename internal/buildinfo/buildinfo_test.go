package buildinfo

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDescribe(t *testing.T) {
	built := func(settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "v0.1.0"}, Settings: settings}
	}
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "1a2b3c4d5e6f7a8b9c0d"}
	require.Equal(t, "v0.2.0 (commit 1a2b3c4d5e6f, go1.26.8)", describe("v0.2.0", built(commit)))
	require.Equal(t, "v0.1.0 (go1.26.8)", describe(unset, built()), "go install")
	require.Equal(t, "v0.2.0 (commit 1a2b3c4d5e6f, with changes, go1.26.8)",
		describe("v0.2.0", built(commit, debug.BuildSetting{Key: "vcs.modified", Value: "true"})))
	devel := built()
	devel.Main.Version = "(devel)"
	require.Equal(t, "dev (go1.26.8)", describe(unset, devel))
	require.Contains(t, Describe("v9"), "v9 (")
}
