package secret

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// File returns what a file holds, without the line end. Errors name field, and the
// path as [Path] shows it.
func File(field, path string) (string, error) {
	data, err := os.ReadFile(path) //nolint:gosec // G304: the operator names the file
	if err != nil {
		if file, ok := errors.AsType[*fs.PathError](err); ok {
			err = file.Err // without the path
		}
		return "", fmt.Errorf("read %s %s: %w", field, Path(path), err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fmt.Errorf("read %s %s: it is empty", field, Path(path))
	}
	return text, nil
}

// Path returns the path of a secret's file as it may be shown: as it is when the
// file is there, or at least the first folder that it names. Everything else may be
// the secret, put where the name of its file belongs.
func Path(path string) string {
	if _, err := os.Lstat(path); err == nil || strings.HasPrefix(path, "./") || strings.HasPrefix(path, "../") {
		return path
	}
	if !strings.ContainsRune(path, filepath.Separator) {
		return "(not shown: the working folder has no file of that name, so it may be the secret itself)"
	}
	for folder := filepath.Dir(path); folder != filepath.Dir(folder) && folder != "."; folder = filepath.Dir(folder) {
		if info, err := os.Stat(folder); err == nil && info.IsDir() {
			return path
		}
	}
	return "(path not shown: no such folder, so it may be the secret itself)"
}

// Argument returns an argument of a command as an error may show it: quoted, unless
// it looks like a connection string.
func Argument(arg string) string {
	if Suspect(arg) {
		return "something that is not shown, because it looks like a connection string"
	}
	return fmt.Sprintf("%q", arg)
}

// Suspect reports whether a text looks like a connection string.
func Suspect(text string) bool { return suspect.MatchString(text) }

var suspect = regexp.MustCompile(`=|://|:.*@`)

// Scrub takes arguments that look like connection strings out of what a program is
// about to say: the parser of its flags repeats them.
func Scrub(text string, args []string) string {
	for _, arg := range args {
		if Suspect(arg) && len(arg) > 2 {
			quoted := strconv.Quote(arg)
			text = strings.NewReplacer(arg, "***", quoted[1:len(quoted)-1], "***").Replace(text)
		}
	}
	return text
}
