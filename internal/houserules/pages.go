package houserules

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Block is a fenced block of a page.
type Block struct {
	Page     string // relative to the root, with the line
	Language string
	Text     string
	Test     string // the name of what runs it, from the line `<!-- test: … -->` before it
}

// Call is a program that a page calls, with its arguments as bash hands them over.
type Call struct {
	Page string
	Args []string // the program's name first
	// Part says that a sentence names a command and need not say all that it takes: there
	// is nothing behind the command's name, or "…" at its end.
	Part bool
}

// String is the call as a list shows it.
func (c Call) String() string { return c.Page + ": " + strings.Join(c.Args, " ") }

var (
	fenced     = regexp.MustCompile("(?m)^(?:<!-- test: (.*) -->\n)?```(.*)\n((?:.*\n)*?)```$")
	inline     = regexp.MustCompile("`((?:[^`\n]|\n[^`\n])+)`")
	calling    = regexp.MustCompile(`^(?:(?:bin/)?(?:outboxctl|relay)|make|go) `)
	unnamed    = regexp.MustCompile(`^(?:(?:` + groups + `) [a-z]+(?: |$)|(?:` + alone + `) --)`)
	namedAlone = regexp.MustCompile(`^(?:(?:outboxctl|relay) )(?:(?:` + groups + `) [a-z]+|[a-z]+)$`)
)

// pages returns the texts of the pages that say how the programs are, by their names.
// CHANGELOG.md and docs/adr say how they were.
func pages(root string) (map[string]string, error) {
	texts := make(map[string]string)
	for _, pattern := range []string{"*.md", "docs/*.md", "*/README.md", "examples/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, fmt.Errorf("list the pages: %w", err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file) //nolint:gosec // G304: a page of the tree that is checked
			if err != nil {
				return nil, fmt.Errorf("read a page: %w", err)
			}
			if name, err := filepath.Rel(root, file); err == nil && name != "CHANGELOG.md" {
				texts[filepath.ToSlash(name)] = string(text)
			}
		}
	}
	return texts, nil
}

// strayFence begins a block that [Blocks] would not see.
var strayFence = regexp.MustCompile("(?m)^[ >]*(?:```|~~~).*$")

// Blocks returns the fenced blocks of the pages. One that does not begin its line is an
// error, because it would be passed over.
func Blocks(root string) (all []Block, err error) {
	texts, err := pages(root)
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		text := texts[page]
		for _, at := range fenced.FindAllStringSubmatchIndex(text, -1) {
			b := Block{Page: place(page, text, at[4]), Language: text[at[4]:at[5]], Text: text[at[6]:at[7]]}
			if at[2] >= 0 {
				b.Test = text[at[2]:at[3]]
			}
			all = append(all, b)
		}
		if stray := strayFence.FindString(fenced.ReplaceAllString(text, "")); stray != "" {
			err = errors.Join(err, fmt.Errorf("%s: %q: write it as three backquotes at the beginning of a line", page, stray))
		}
	}
	return all, err
}

// Spans returns what stands in backquotes in the sentences of the pages, as blocks
// without a language.
func Spans(root string) (all []Block, err error) {
	texts, err := pages(root)
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		text := texts[page]
		text = fenced.ReplaceAllStringFunc(text, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
		for _, at := range inline.FindAllStringSubmatchIndex(text, -1) {
			all = append(all, Block{Page: place(page, text, at[0]), Text: strings.ReplaceAll(text[at[2]:at[3]], "\n", " ")})
		}
	}
	return all, err
}

func place(page, text string, offset int) string {
	return fmt.Sprintf("%s:%d", page, 1+strings.Count(text[:offset], "\n"))
}

// programs are what a page may call: ours, make and go, whose calls are checked, and those
// of others, whose are not: a test that did would have to know what they take.
const programs = "outboxctl relay bin/outboxctl bin/relay make go " +
	"cat cd echo git head kafka-acls.sh kafka-configs.sh kafka-topics.sh kill man pip psql python rm sed tr"

// stubbed runs the texts that follow their texts, each in a shell of its own, in which
// the programs only say with what they were called. Folders are made, for what is written
// into them.
const stubbed = `
exec 3>&1 >/dev/null
mkdir=$(type -P mkdir)
PATH=/nowhere
mkdir() { "$mkdir" "$@"; }
for program in $1; do
  eval "$program() { printf '%s\1' \"\$place\" $program \"\$@\" \$'\2' >&3; }"
done
shift
while [ $# -gt 0 ]; do
  place=$1
  (BASH_ARGV0=$place; eval "$2"; wait)
  shift 2
done`

// PageCalls returns what the pages call: in their blocks of shell, and in backquotes where
// that begins with a program of ours, a command of outboxctl, make or go. A program that
// no page may call is an error, and so is what bash cannot read.
func PageCalls(ctx context.Context, root string) (all []Call, err error) {
	blocks, err := Blocks(root)
	if err != nil {
		return nil, err
	}
	spans, err := Spans(root)
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, b := range blocks {
		if b.Language == "sh" {
			texts = append(texts, b.Page, b.Text)
		}
	}
	part := make(map[string]bool)
	for _, s := range spans {
		text := s.Text
		if unnamed.MatchString(text) {
			text = "outboxctl " + text
		}
		if calling.MatchString(text) {
			at := s.Page + " `" + s.Text + "`"
			texts = append(texts, at, text)
			part[at] = text != s.Text || strings.HasSuffix(text, " …") && !strings.Contains(text, " | ") || namedAlone.MatchString(text)
		}
	}
	out, err := typed(ctx, texts)
	if err != nil {
		return nil, err
	}
	for call := range strings.SplitSeq(strings.TrimSuffix(out, "\x02\x01"), "\x02\x01") {
		words := strings.Split(strings.TrimSuffix(call, "\x01"), "\x01")
		words[1] = path.Base(words[1])
		all = append(all, Call{Page: words[0], Args: words[1:], Part: part[words[0]]})
	}
	return all, nil
}

// typed has bash read texts, each behind its place, and returns what the programs said.
func typed(ctx context.Context, texts []string) (string, error) {
	dir, err := os.MkdirTemp("", "pages")
	if err != nil {
		return "", fmt.Errorf("make a folder for the pages: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is in the folder for what is temporary
	args := append([]string{"-c", stubbed, "bash", programs}, texts...)
	bash := exec.CommandContext(ctx, "bash", args...) //nolint:gosec // G204: the pages of the tree that is checked
	bash.Dir = dir
	// A page sets the keys in one block, and uses them in the next.
	bash.Env = []string{"PATH=" + os.Getenv("PATH"), "KEY=KEY", "LARGE=KEY", "AFTER=KEY"}
	var said strings.Builder
	bash.Stderr = &said
	out, err := bash.Output()
	if err == nil && said.Len() > 0 {
		err = errors.New(said.String())
	}
	if err != nil {
		return "", fmt.Errorf("read what the pages call: %w", err)
	}
	return string(out), nil
}
