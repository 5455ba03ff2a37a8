package consumertest

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

func encoded(t *testing.T, messages ...pgproto3.FrontendMessage) (b []byte) {
	t.Helper()
	for _, m := range messages {
		var err error
		b, err = m.Encode(b)
		require.NoError(t, err)
	}
	return b
}

// TestStatementsOnTheWire: each statement that runs is seen, by its text, and what prepares
// one or asks whether the server is there is none.
func TestStatementsOnTheWire(t *testing.T) {
	l := &link{prepared: make(map[string]string)}
	sync := &pgproto3.Sync{}
	for _, tc := range []struct {
		messages []pgproto3.FrontendMessage
		want     string
	}{
		{[]pgproto3.FrontendMessage{&pgproto3.Query{String: "BEGIN; SET LOCAL a = 1"}}, "BEGIN; SET LOCAL a = 1"},
		{[]pgproto3.FrontendMessage{&pgproto3.Query{String: "-- ping"}}, ""},
		{[]pgproto3.FrontendMessage{&pgproto3.Parse{Name: "s1", Query: "INSERT 1"}, &pgproto3.Describe{ObjectType: 'S', Name: "s1"}, sync}, ""},
		{[]pgproto3.FrontendMessage{&pgproto3.Bind{PreparedStatement: "s1"}, &pgproto3.Execute{}, sync}, "INSERT 1"},
		{[]pgproto3.FrontendMessage{&pgproto3.Parse{Query: "SELECT 2"}, &pgproto3.Bind{}, &pgproto3.Execute{}, sync}, "SELECT 2"},
		{[]pgproto3.FrontendMessage{&pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Bind{PreparedStatement: "s1"}, &pgproto3.Execute{}, sync}, "INSERT 1"},
		{[]pgproto3.FrontendMessage{&pgproto3.Terminate{}}, ""},
	} {
		require.Equal(t, tc.want, l.asked(encoded(t, tc.messages...)))
	}
	require.Empty(t, l.asked([]byte{'Q', 0xff, 0xff, 0xff, 0xff, 'x'}), "no message")
}

// TestFaultStrikesAtOneStatement: before it nothing reaches the server; behind it the
// server has said all, in however many pieces, and the client has heard nothing.
func TestFaultStrikesAtOneStatement(t *testing.T) {
	query := encoded(t, &pgproto3.Query{String: "commit"})
	for _, answer := range []bool{false, true} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("answer %v, crash %v", answer, crash), func(t *testing.T) {
				n := &network{links: make(map[*link]struct{})}
				join := func() (net.Conn, net.Conn) {
					client, server := net.Pipe()
					joined, err := n.join(t.Context(), nil, client)
					require.NoError(t, err)
					return joined, server
				}
				client, server := join()
				other, _ := join()
				n.arm(fault{at: 2, answer: answer, crash: crash})
				heard := make(chan string, 3)
				go func() {
					for range 2 {
						b := make([]byte, len(query))
						read, _ := server.Read(b)
						heard <- string(b[:read])
						for _, piece := range []string{"C\x00\x00\x00\x0bCOMMIT\x00Z\x00\x00", "\x00\x05I"} {
							if read > 0 {
								_, _ = server.Write([]byte(piece))
							}
						}
					}
				}()
				_, err := client.Write(query)
				require.NoError(t, err)
				for range 2 {
					_, err = client.Read(make([]byte, 64))
					require.NoError(t, err)
				}
				_, err = client.Write(query)
				if answer {
					require.NoError(t, err)
					_, err = client.Read(make([]byte, 64))
				}
				require.ErrorIs(t, err, errCut)
				require.Equal(t, string(query), <-heard)
				require.Equal(t, answer, <-heard == string(query))
				struck, statements := n.disarm()
				require.Equal(t, []string{"COMMIT", "COMMIT"}, statements)
				require.Equal(t, map[bool]string{false: "before COMMIT (statement 2)", true: "after COMMIT (statement 2), whose answer was lost"}[answer], struck)
				_, err = n.join(t.Context(), nil, other)
				require.Equal(t, crash, errors.Is(err, errCut))
				require.Equal(t, crash, len(n.links) == 0)
			})
		}
	}
}

// TestHoldsACommit: the one that was asked for, and no other; nothing is cut.
func TestHoldsACommit(t *testing.T) {
	n := &network{links: make(map[*link]struct{})}
	var held []int
	n.arm(fault{at: 2, hold: func() {
		n.mu.Lock() // others go on
		defer n.mu.Unlock()
		held = append(held, len(n.statements))
	}})
	for _, statement := range []string{"BEGIN", "commit", "begin", "SELECT 1", "COMMIT", "COMMIT"} {
		require.True(t, n.passes(nil, statement))
	}
	require.Equal(t, []int{5}, held)
	struck, statements := n.disarm()
	require.Empty(t, struck)
	require.Len(t, statements, 6)
}

func TestStatementsHaveNames(t *testing.T) {
	for sql, want := range map[string]string{
		"begin isolation level read committed;\nSET LOCAL x = 1": "BEGIN",
		"commit":                                   "COMMIT",
		"COMMIT AND CHAIN":                         "`COMMIT AND CHAIN`",
		"-- name: ClaimEvents :one\n\nWITH c":      "the claim",
		"-- name: ClaimEvent :execrows\nINSERT":    "the claim",
		"-- name: EndEffects :one\nUPDATE":         "Onceward's EndEffects",
		"INSERT INTO a\n\t\tVALUES ($1)":           "`INSERT INTO a VALUES ($1)`",
		"SELECT '" + strings.Repeat("é", 70) + "'": "`SELECT '" + strings.Repeat("é", 52) + "…`",
	} {
		require.Equal(t, want, called(sql))
	}
}

func TestDifferences(t *testing.T) {
	for _, tc := range []struct{ got, want, more, less string }{
		{"", "", "", ""},
		{"b a b", "b b a", "", ""},
		{"a a b", "a b", "a", ""},
		{"a", "a b b", "", "b b"},
		{"a c", "a b", "c", "b"},
	} {
		d := differ(strings.Fields(tc.got), strings.Fields(tc.want))
		require.Equal(t, [2]string{tc.more, tc.less}, [2]string{strings.Join(d.more, " "), strings.Join(d.less, " ")})
		require.Equal(t, tc.more+tc.less == "", d.none())
	}
	long := differ(slices.Repeat([]string{"a"}, 12), []string{"b"}).String()
	require.Equal(t, 10, strings.Count(long, "+ a"))
	require.Contains(t, long, "… and 3 more")
}
