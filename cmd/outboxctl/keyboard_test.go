package main

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// keyboard is a terminal with somebody at it who types the text.
type keyboard struct{ strings.Reader }

func (*keyboard) Stat() (fs.FileInfo, error) { return tty{}, nil }

// screen is a terminal that keeps what was written.
type screen struct{ strings.Builder }

func (*screen) Stat() (fs.FileInfo, error) { return tty{}, nil }

// tty is what a terminal says of itself.
type tty struct{ fs.FileInfo }

func (tty) Mode() fs.FileMode { return fs.ModeDevice | fs.ModeCharDevice }

func client(t *testing.T, cluster *kfake.Cluster) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}
