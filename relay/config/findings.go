package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"

	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/relay"
)

// findings is what is wrong with a configuration before its values are looked at.
type findings struct {
	errs   []error
	unread bool     // it is no YAML: nothing else is known
	keys   []string // what is said of already: by its name, or as what a mistyped one meant
	// origin is where the value of a key comes from, as a message begins; none: the file, or
	// the default.
	origin map[string]string
}

// besideError is what is wrong with what the file does not have.
type besideError struct {
	origin string
	what   string
	err    error // may be nil
}

func (e *besideError) Error() string { return e.origin + e.what }
func (e *besideError) Unwrap() error { return e.err }

// join is all that is wrong: what the values' errors say, too. The file is named for what it has.
func (f *findings) join(path string, values []error) error {
	var ofFile, others []error
	for _, err := range slices.Concat(f.errs, f.beyond(values)) {
		var beside *besideError
		if errors.As(err, &beside) {
			others = append(others, err)
		} else {
			ofFile = append(ofFile, err)
		}
	}
	if len(ofFile) > 0 {
		others = slices.Insert(others, 0, fmt.Errorf("%s: %w", path, errors.Join(ofFile...)))
	}
	return errors.Join(others...)
}

// beside notes what is wrong with a variable or a setting.
func (f *findings) beside(origin, what string) {
	f.failed(&besideError{origin: origin, what: what})
}

// traced is an error of a value, which names where the value comes from.
func (f *findings) traced(err error) error {
	var field *relay.FieldError
	var dsn *secret.DSNError
	key := ""
	switch {
	case errors.As(err, &field):
		key = field.Field
	case errors.As(err, &dsn):
		key = dsn.Field
	}
	origin, ok := f.origin[key]
	if !ok {
		return err
	}
	return &besideError{origin: origin, what: problem(err), err: err}
}

// failed notes what is wrong with no key.
func (f *findings) failed(err error) { f.errs = append(f.errs, err) }

// wrong notes what is wrong with a key, once.
func (f *findings) wrong(key, detail string) {
	if f.explain(key) {
		return
	}
	f.failed(&relay.FieldError{Field: key, Detail: detail})
	f.keys = append(f.keys, key)
}

// mean notes which key a name stands for that is not known, if it is like that one's or
// begins it: then the key is not also missing.
func (f *findings) mean(name, like, key string) {
	if terminal.Resembles(name, like) || strings.HasPrefix(like, name) {
		f.keys = append(f.keys, key)
		if key == dsnFileKey {
			f.keys = append(f.keys, dsnKey) // which is where a missing one is told
		}
	}
}

// beyond is what of the values' errors is said of no key yet. Of what is no YAML nothing
// is known.
func (f *findings) beyond(wrong []error) (rest []error) {
	if f.unread {
		return nil
	}
	for _, err := range wrong {
		var field *relay.FieldError
		if !errors.As(err, &field) || !f.explain(field.Field) {
			rest = append(rest, f.traced(err))
		}
	}
	return rest
}

// explain reports whether what is wrong with a key is said, or follows from what is.
func (f *findings) explain(key string) bool {
	return slices.ContainsFunc(f.keys, func(said string) bool {
		return key == said || strings.HasPrefix(key, said+".") || strings.HasPrefix(key, said+"[") ||
			strings.HasPrefix(said, key+"[")
	})
}

// checkKeys finds keys that no field has.
func (f *findings) checkKeys(raw map[string]any, t reflect.Type, prefix string) {
	fields := make(map[string]reflect.Type)
	for field := range t.Fields() {
		fields[field.Tag.Get("koanf")] = field.Type
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		field, ok := fields[name]
		if ok {
			f.checkValue(raw[name], field, prefix+name)
			continue
		}
		meant := terminal.Nearest(name, keysOf(fields))
		f.wrong(prefix+name, fmt.Sprintf("unknown key; did you mean %s?", prefix+meant))
		f.mean(name, meant, prefix+meant)
	}
}

func (f *findings) checkValue(value any, t reflect.Type, path string) {
	switch {
	case t.Kind() == reflect.Struct:
		if value == nil {
			return
		}
		m, ok := value.(map[string]any)
		if !ok {
			f.wrong(path, "want a map of keys, see the configuration reference")
			return
		}
		f.checkKeys(m, t, path+".")
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		list, ok := value.([]any)
		if !ok {
			f.wrong(path, "want a list")
			return
		}
		for i, v := range list {
			f.checkValue(v, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

// notDecoded names the fields whose values do not fit. The values are left out: each may
// be a secret at the wrong place.
func (f *findings) notDecoded(err error) {
	switch e := err.(type) { //nolint:errorlint // each error of the tree counts, not the first of a kind
	case nil:
	case *mapstructure.DecodeError:
		f.notFit(e)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			f.notDecoded(one)
		}
	case interface{ Unwrap() error }:
		f.notDecoded(e.Unwrap())
	default:
		f.failed(fmt.Errorf("decode config: %w", err))
	}
}

func (f *findings) notFit(decode *mapstructure.DecodeError) {
	var otherKind *mapstructure.UnconvertibleTypeError
	var unreadable *mapstructure.ParseError
	detail := decode.Unwrap().Error()
	switch {
	case errors.As(decode, &otherKind):
		detail = "want " + kindName(otherKind.Expected.Type()) + ", not " + kindName(reflect.TypeOf(otherKind.Value))
	case errors.As(decode, &unreadable): // the parser's words are Go's
		detail = "want " + kindName(unreadable.Expected.Type())
	}
	if key := decode.Name(); !f.explain(key) {
		f.failed(f.traced(&relay.FieldError{Field: key, Detail: detail}))
		f.keys = append(f.keys, key)
	}
}
