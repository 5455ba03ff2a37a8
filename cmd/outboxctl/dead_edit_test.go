package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/letters"
)

func TestEditedHeadersKeepToTheContract(t *testing.T) {
	for text, want := range map[string]string{
		`{"tenant": "t1"}`: "", `{}`: "", `{"a": 1}`: "no JSON object of strings", `null`: "no JSON object", `[]`: "no JSON object", ``: "no JSON object",
		`{"": "x"}`: "1 to 255 bytes", `{"` + strings.Repeat("n", 256) + `": "x"}`: "1 to 255 bytes",
		`{"idempotency-key": "x"}`: "reserved", `{"ce_id": "x"}`: "reserved", `{"a": "` + strings.Repeat("v", letters.MaxHeaders) + `"}`: "more than 64.0 KiB",
		`{"a": "` + strings.Repeat("v", 2*letters.MaxHeaders) + `"}`: "more than 128.0 KiB",
	} {
		path := filepath.Join(t.TempDir(), "headers.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		data, err := readHeaders(path)
		if want == "" {
			require.NoError(t, err)
			require.JSONEq(t, text, string(data))
			continue
		}
		require.ErrorContains(t, err, want, "%.40s", text)
	}
	_, err := readHeaders("/nowhere")
	require.ErrorContains(t, err, "read --headers-file")
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	data, err := readFile("payload-file", empty, 1)
	require.NoError(t, err)
	require.NotNil(t, data, "an empty payload is no tombstone")
}
