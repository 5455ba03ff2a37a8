package terminal

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const hostile = "a\x1b[31mred\x1b]0;title\x07\r\n\tb\x7f\u009b1mc\u0085\u2028\u202edcba\u2066\u00ad\ufeff\x9b\xff\U000e0001ü€😀\\"

func TestEscape(t *testing.T) {
	require.Equal(t, `a\x1b[31mred\x1b]0;title\a\r\n\tb\x7f\u009b1mc\u0085\u2028\u202edcba\u2066\u00ad\ufeff\x9b\xff\U000e0001ü€😀\`, Escape(hostile))
	require.Equal(t, "ü€😀 \\x", Escape("ü€😀 \\x"), "what is printable stays as it is")
	require.Equal(t, Escape(hostile), Escape(Escape(hostile)), "twice is once")
	require.Equal(t, "a\\r\nb\n", Lines("a\r\nb\n"))
}

func TestJSONMeansTheSame(t *testing.T) {
	in := map[string]string{"x" + strings.ToValidUTF8(hostile, "?"): strings.ToValidUTF8(hostile, "?")}
	document, err := json.MarshalIndent(in, "", "  ")
	require.NoError(t, err)
	safe := JSON(document)
	var out map[string]string
	require.NoError(t, json.Unmarshal(safe, &out))
	require.Equal(t, in, out)
	require.Equal(t, string(safe), Lines(string(safe)))
	require.True(t, utf8.Valid(safe))
	require.Equal(t, []byte("{}\n"), JSON([]byte("{}\n")))
}

func TestWordsOfACommand(t *testing.T) {
	require.Equal(t, "billing --flag 'order.*' 'it'\\''s' '' $'\\033[31m\\\\ \\'\\302\\205ü'",
		strings.Join([]string{Word("billing"), Word("--flag"), Word("order.*"), Word("it's"), Word(""), Word("\x1b[31m\\ '\u0085ü")}, " "))
	require.Equal(t, "shop 'order.*'", Arguments("shop", "order.*"))
	require.Equal(t, "-- shop '-*'", Arguments("shop", "-*"))
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	for _, text := range []string{"billing", "it's", `a "b" $HOME ` + "`id` \\ !x", "~", "-x", "a=b", "ü€😀 x", hostile, ""} {
		require.Equal(t, Word(text), Escape(Word(text)), "a terminal shows it as it is")
		out, err := exec.CommandContext(t.Context(), bash, "-c", "printf %s "+Word(text)).Output()
		require.NoError(t, err)
		require.Equal(t, text, string(out))
	}
}

func FuzzEscape(f *testing.F) {
	f.Add(hostile)
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range Escape(text) {
			require.False(t, r < 0x20 || r >= 0x7f && r <= 0x9f || r >= 0x200e && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069, "%q", text)
		}
		require.True(t, utf8.ValidString(Escape(text)))
		require.NotContains(t, strings.ReplaceAll(Lines(text), "\n", ""), "\r")
	})
}
