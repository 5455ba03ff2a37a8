package profile_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/relay/internal/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server with the pages, and with a limit for answers that a CPU profile exceeds.
func serve(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	profile.Register(mux)
	server := httptest.NewUnstartedServer(mux)
	server.Config.WriteTimeout = 500 * time.Millisecond
	server.Start()
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, server *httptest.Server, page string) (int, string) {
	t.Helper()
	status, body, err := ask(server, page)
	require.NoError(t, err)
	return status, body
}

func ask(server *httptest.Server, page string) (int, string, error) {
	resp, err := server.Client().Get(server.URL + profile.Prefix + page)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// gzipped is how a profile begins.
const gzipped = "\x1f\x8b"

func TestProfiles(t *testing.T) {
	server := serve(t)
	for _, name := range []string{"heap", "allocs", "goroutine", "mutex", "block", "threadcreate"} {
		status, body := get(t, server, name)
		require.Equal(t, 200, status, name)
		require.Equal(t, gzipped, body[:2], name)
	}
	status, body := get(t, server, "goroutine?debug=2")
	require.Equal(t, 200, status)
	require.Contains(t, body, "goroutine ")
	for page, want := range map[string]int{
		"nothing": 404, "heap?debug=3": 400, "heap?debug=x": 400,
		"profile?seconds=0": 400, "profile?seconds=121": 400, "profile?seconds=x": 400,
	} {
		status, _ := get(t, server, page)
		require.Equal(t, want, status, page)
	}
	resp, err := server.Client().Post(server.URL+profile.Prefix+"heap", "", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 405, resp.StatusCode)
}

// A CPU profile takes longer than the server gives its pages, and there is one at a time.
func TestCPUProfile(t *testing.T) {
	server := serve(t)
	type answer struct {
		status int
		body   string
		err    error
	}
	answers := make(chan answer)
	for range 2 {
		go func() {
			status, body, err := ask(server, "profile?seconds=1")
			answers <- answer{status, body, err}
		}()
	}
	first, second := <-answers, <-answers
	require.NoError(t, errors.Join(first.err, second.err))
	require.ElementsMatch(t, []int{200, 409}, []int{first.status, second.status})
	if first.status != 200 {
		first = second
	}
	require.Equal(t, gzipped, first.body[:2])
}
