package label

import (
	"reflect"
	"strings"
)

// Foreign is a text that a server, a row or a person wrote, for a text of ours: it has no
// backquotes, since what stands between these is a command of ours.
func Foreign(text string) string { return strings.ReplaceAll(text, "`", "'") }

// Said is what an error says: what others said of it is [Foreign]. Errors of other modules
// are theirs, but what our SQL functions raise (SQLSTATE OW…) is ours.
func Said(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for _, theirs := range foreign(err, nil) {
		text = strings.ReplaceAll(text, theirs, Foreign(theirs))
	}
	return text
}

// foreign collects the texts of an error's tree that others wrote.
func foreign(err error, found []string) []string {
	if theirs(err) {
		return append(found, err.Error())
	}
	switch e := err.(type) { //nolint:errorlint // each error of the tree counts, not the first of a kind
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			found = foreign(one, found)
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			found = foreign(inner, found)
		}
	}
	return found
}

// ours begins the path of each package of ours; texts and joins are of fmt and errors,
// whoever made them.
const ours = "github.com/onceward/onceward"

func theirs(err error) bool {
	t := reflect.TypeOf(err)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch path := t.PkgPath(); {
	case strings.HasPrefix(path, ours), path == "errors", path == "fmt":
		return false
	}
	raised, ok := err.(interface{ SQLState() string })
	return !ok || !strings.HasPrefix(raised.SQLState(), "OW")
}
