package redisfast_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/redisfast"
)

func TestConfigIsChecked(t *testing.T) {
	at := redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}}
	for want, cfg := range map[string]redisfast.Config{
		"Redis.Addrs is empty":      {},
		"Timeout 10s":               {Redis: at, Timeout: 10 * time.Second},
		"Timeout 1ns":               {Redis: at, Timeout: 1},
		"Prefix of 256 bytes":       {Redis: at, Prefix: strings.Repeat("x", 256)},
		"entries are read where":    {Redis: redis.UniversalOptions{Addrs: at.Addrs, ReadOnly: true}},
		"RouteByLatency or RouteRa": {Redis: redis.UniversalOptions{Addrs: at.Addrs, RouteByLatency: true}},
	} {
		_, err := redisfast.New(cfg)
		require.ErrorContains(t, err, want)
	}
	for name, options := range map[string]redis.UniversalOptions{
		"one server": at, "Sentinel": {Addrs: at.Addrs, MasterName: "main"}, "Cluster": {Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}},
		"Cluster by one address": {Addrs: at.Addrs, IsClusterMode: true},
	} {
		c, err := redisfast.New(redisfast.Config{Redis: options})
		require.NoError(t, err, name)
		require.NoError(t, c.Close(), name)
	}
}

// entries are some to ask for.
var entries = []consumer.CompletedEntry{{Key: "billing:1", Value: "v", Keep: time.Hour}, {Key: "billing:2", Value: "v", Keep: time.Hour}}

// scriptedRedis answers each command of each connection as told, and counts connections. Nil hangs.
func scriptedRedis(t *testing.T, answer func(command string) string) (address string) {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go serve(conn, answer)
		}
	}()
	return listener.Addr().String()
}

// serve reads commands, each an array of bulk strings, and answers them.
func serve(conn net.Conn, answer func(command string) string) {
	defer func() { _ = conn.Close() }()
	if answer == nil {
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	buffer, pending := make([]byte, 1<<16), ""
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		pending += string(buffer[:n])
		for {
			command, rest, ok := next(pending)
			if !ok {
				break
			}
			pending = rest
			if _, err := io.WriteString(conn, answer(command)); err != nil {
				return
			}
		}
	}
}

// next takes one command off the text, in words.
func next(text string) (command, rest string, ok bool) {
	lines := strings.Split(text, "\r\n")
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "*") {
		return "", text, false
	}
	var n int
	for _, digit := range lines[0][1:] {
		n = 10*n + int(digit-'0')
	}
	if len(lines) <= 2*n+1 {
		return "", text, false
	}
	var words []string
	for i := range n {
		words = append(words, lines[2*i+2])
	}
	return strings.Join(words, " "), strings.Join(lines[2*n+1:], "\r\n"), true
}

// TestSilentRedisIsLeftAlone: a server that takes everything and answers nothing is asked five
// times, and then no more for a while.
func TestSilentRedisIsLeftAlone(t *testing.T) {
	cache := newCache(t, scriptedRedis(t, nil), 10*time.Millisecond)
	for range 100 {
		require.Nil(t, cache.Known(t.Context(), entries))
		cache.Remember(t.Context(), entries)
	}
	s := cache.Stats()
	require.LessOrEqual(t, s.Errors, int64(5*len(entries)), "%+v", s)
	require.EqualValues(t, 100*len(entries), s.Errors+s.Unasked)
	require.EqualValues(t, 100*len(entries), s.Forgone)
}

// TestAnswersOfRedis: only the very value is known; a refusal is an answer, which does not end the
// asking.
func TestAnswersOfRedis(t *testing.T) {
	for name, c := range map[string]struct {
		get   string
		known bool
		want  func(s consumer.CompletedStats) int64
	}{
		"the value":            {"$1\r\nv\r\n", true, func(s consumer.CompletedStats) int64 { return s.Hits }},
		"another value":        {"$1\r\nw\r\n", false, func(s consumer.CompletedStats) int64 { return s.Stale }},
		"the beginning":        {"$0\r\n\r\n", false, func(s consumer.CompletedStats) int64 { return s.Stale }},
		"more than the value":  {"$2\r\nvv\r\n", false, func(s consumer.CompletedStats) int64 { return s.Stale }},
		"nothing":              {"$-1\r\n", false, func(s consumer.CompletedStats) int64 { return s.Misses }},
		"a refusal":            {"-NOPERM no\r\n", false, func(s consumer.CompletedStats) int64 { return s.Errors }},
		"another type of data": {"-WRONGTYPE no\r\n", false, func(s consumer.CompletedStats) int64 { return s.Errors }},
	} {
		cache := newCache(t, scriptedRedis(t, func(command string) string {
			switch word, _, _ := strings.Cut(strings.ToUpper(command), " "); word {
			case "GET":
				return c.get
			case "SET":
				return "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
			}
			return "-ERR unknown command\r\n"
		}), 2*time.Second)
		for range 10 {
			require.Equal(t, []bool{c.known, c.known}, cache.Known(t.Context(), entries), name)
			cache.Remember(t.Context(), entries)
		}
		s := cache.Stats()
		require.EqualValues(t, 20, c.want(s), "%s: %+v", name, s)
		require.EqualValues(t, 20, s.Hits+s.Misses+s.Stale+s.Errors, "%s: %+v", name, s)
		require.EqualValues(t, 20, s.Forgone, name)
		require.Zero(t, s.Unasked, name)
	}
}

// TestCallersEndIsNotRedis: deliveries whose session has ended do not end the asking.
func TestCallersEndIsNotRedis(t *testing.T) {
	cache := newCache(t, scriptedRedis(t, func(command string) string {
		if strings.HasPrefix(strings.ToUpper(command), "GET") {
			return "$1\r\nv\r\n"
		}
		return "-ERR unknown command\r\n"
	}), 2*time.Second)
	over, end := context.WithCancel(t.Context())
	end()
	for range 20 {
		require.Nil(t, cache.Known(over, entries))
	}
	require.Equal(t, []bool{true, true}, cache.Known(t.Context(), entries))
	require.Zero(t, cache.Stats().Unasked)
}

func newCache(t *testing.T, address string, timeout time.Duration) *redisfast.Cache {
	t.Helper()
	cache, err := redisfast.New(redisfast.Config{Redis: redis.UniversalOptions{Addrs: []string{address}}, Timeout: timeout,
		Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cache.Close() })
	return cache
}
