package pgserver

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/cachedir"
)

// TestMirror: archives come from the mirror that the environment names, and its password is
// told to nobody.
func TestMirror(t *testing.T) {
	asked := make(chan string, 9)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		asked <- password + " " + r.URL.Path
		http.NotFound(w, r)
	}))
	mirror := strings.Replace(server.URL, "//", "//ann:pa55word@", 1) + "/central/"
	t.Setenv(Repository, mirror)
	t.Setenv(cachedir.Variable, t.TempDir())
	_, err := Fetch(t.Context(), 17)
	require.ErrorContains(t, err, "TESTSERVER_REPOSITORY")
	require.ErrorContains(t, err, "no version found matching 17")
	require.Regexp(t, `^pa55word /central/io/zonky/test/postgres/embedded-postgres-binaries-.*/17[0-9.]*/embedded-postgres-binaries-.*jar$`, <-asked)

	server.Close()
	for _, url := range []string{mirror, "pa55word", "ftp://ann:pa55word@host/", "http://ann:pa55word@ho st"} {
		t.Setenv(Repository, url)
		_, err = Fetch(t.Context(), 17)
		require.ErrorContains(t, err, "TESTSERVER_REPOSITORY")
		require.NotContains(t, err.Error(), "pa55word")
	}
	left, err := os.ReadDir(os.Getenv(cachedir.Variable) + "/postgres")
	require.NoError(t, err)
	require.Empty(t, left)
}
