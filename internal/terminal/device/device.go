// Package device tells what an answer is written to: whether that is a terminal, how
// wide and high it is, and whether it shows colours. It reads the environment, and asks the system.
package device

import (
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"github.com/onceward/onceward/internal/terminal"
)

// IsTerminal tells whether a stream is one that a person sits at.
func IsTerminal(stream any) bool {
	file, ok := stream.(interface{ Stat() (fs.FileInfo, error) })
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&fs.ModeCharDevice != 0
}

// Of looks at a stream. What is no terminal has no width and no colours.
func Of(stream any) terminal.Screen {
	if !IsTerminal(stream) {
		return terminal.Screen{}
	}
	width, _ := asked(stream)
	return of(width, os.Getenv)
}

// Lines is how many lines a terminal has in which a text can be written over; 0: the
// stream is none, or does not say. LINES wins over what it says.
func Lines(stream any) int {
	if !IsTerminal(stream) || os.Getenv("TERM") == "dumb" {
		return 0
	}
	if told, err := strconv.Atoi(os.Getenv("LINES")); err == nil && told > 0 {
		return told
	}
	_, lines := asked(stream)
	return lines
}

func asked(stream any) (columns, lines int) {
	if conn, ok := stream.(syscall.Conn); ok {
		return size(conn)
	}
	return 0, 0
}

// of is a terminal of that width; 0: it does not say. COLUMNS wins over what it says,
// NO_COLOR is as no-color.org has it, and a dumb terminal shows no colours.
func of(width int, env func(string) string) terminal.Screen {
	if told, err := strconv.Atoi(env("COLUMNS")); err == nil && told > 0 {
		width = told
	}
	return terminal.Screen{Width: width, Colour: env("NO_COLOR") == "" && env("TERM") != "dumb", Watched: true}
}
