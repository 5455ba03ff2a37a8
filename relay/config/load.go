package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"

	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/relay"
)

// envPrefix begins every environment variable of the relay.
const envPrefix = "ONCEWARD_"

// Load reads the file over the defaults, the environment (as os.Environ returns
// it) over the file, and settings of the form key=value, from --set of the command
// line, over both; then it validates. postgres.dsn and postgres.dsn_file are one thing:
// whichever comes later takes the place of both. An unknown key or variable is an
// error that names the nearest known one; the error joins all that is wrong, and says
// of each whether the file, a variable or a setting has it. A setting
// of postgres.dsn is refused: everybody on the machine can read a command line.
func Load(path string, environ []string, settings ...string) (relay.Config, error) {
	cfg, found, err := readFile(path, environ, settings)
	if err != nil {
		return relay.Config{}, err
	}
	if err := found.join(path, cfg.Invalid()); err != nil {
		return relay.Config{}, err
	}
	return cfg, nil
}

// LoadOffline is [Load] for who connects to nothing by the configuration, and wants its
// routes or its days: that it names no database is no error, since the DSN is often in the
// relay's own environment.
func LoadOffline(path string, environ []string, settings ...string) (relay.Config, error) {
	cfg, found, err := readFile(path, environ, settings)
	if err != nil {
		return relay.Config{}, err
	}
	if cfg.Postgres.DSN == "" && cfg.Postgres.DSNFile == "" {
		found.keys = append(found.keys, dsnKey)
	}
	if err := found.join(path, cfg.Invalid()); err != nil {
		return relay.Config{}, err
	}
	return cfg, nil
}

// readFile is [read] of a file. The error is of the file itself.
func readFile(path string, environ, settings []string) (relay.Config, *findings, error) {
	data, err := os.ReadFile(path) //nolint:gosec // G304: the operator names the file
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return relay.Config{}, nil, fmt.Errorf("read config: %w; name the relay's configuration with --config FILE", err)
	case err != nil:
		return relay.Config{}, nil, fmt.Errorf("read config: %w", err)
	}
	cfg, found := read(data, environ, settings)
	return cfg, found, nil
}

// read makes a configuration of what can be read, and says what cannot.
func read(data []byte, environ, settings []string) (relay.Config, *findings) {
	cfg, found := relay.Default(), &findings{origin: make(map[string]string)}
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(data), yaml.Parser()); err != nil {
		found.unread = true
		found.failed(fmt.Errorf("parse YAML: %s", quoted.ReplaceAllString(err.Error(), "a value")))
		return cfg, found
	}
	if k.String(dsnKey) != "" && k.String(dsnFileKey) != "" {
		found.wrong(dsnKey, "the file has postgres.dsn and postgres.dsn_file; give one of them")
	}
	for _, values := range []map[string]any{fromEnvironment(environ, found), fromSettings(settings, found)} {
		oneDSN(k, values, found)
		if err := k.Load(confmap.Provider(values, "."), nil); err != nil {
			found.failed(fmt.Errorf("read environment and settings: %w", err))
		}
	}
	found.checkKeys(k.Raw(), reflect.TypeFor[relay.Config](), "")
	err := k.UnmarshalWithConf("", &cfg, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result: &cfg, TagName: "koanf", WeaklyTypedInput: true,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(durations, mapstructure.TextUnmarshallerHookFunc()),
	}})
	found.notDecoded(err)
	return cfg, found
}

// Two keys for one thing: the DSN, and the file that holds it.
const (
	dsnKey     = "postgres.dsn"
	dsnFileKey = "postgres.dsn_file"
)

// oneDSN lets the database that values name win over the one that is there: either
// key takes the place of both.
func oneDSN(k *koanf.Koanf, values map[string]any, found *findings) {
	dsn, file := values[dsnKey], values[dsnFileKey]
	given := func(v any) bool { return v != nil && v != "" }
	switch {
	case given(dsn) && given(file):
		found.beside("environment: ", "ONCEWARD_POSTGRES_DSN and ONCEWARD_POSTGRES_DSN_FILE are both set; give one of them")
		found.keys = append(found.keys, dsnKey)
	case given(dsn):
		k.Delete(dsnFileKey)
	case given(file):
		k.Delete(dsnKey)
	}
}

// quoted is how the parser of YAML repeats a value, which may be a secret.
var quoted = regexp.MustCompile("(?s)`.*`")

// kindName is what YAML calls a value of the type.
func kindName(t reflect.Type) string {
	switch {
	case t == nil:
		return "nothing"
	case t == reflect.TypeFor[time.Duration]():
		return "a duration, such as 1s"
	case t == reflect.TypeFor[relay.Bytes]():
		return "a size, such as 1MiB"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a map of keys"
	default:
		return "a number"
	}
}

// durations reads a duration, and refuses one without a unit, which would be taken for
// nanoseconds.
func durations(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() || from.Kind() == reflect.Map || from.Kind() == reflect.Slice {
		return value, nil // of those two, what follows refuses a wrong one
	}
	if from.Kind() != reflect.String {
		return nil, fmt.Errorf("duration %v has no unit; write e.g. 500ms, 1s, 2m", value)
	}
	d, err := time.ParseDuration(reflect.ValueOf(value).String())
	if err != nil {
		return nil, errors.New("want a duration with its unit, e.g. 500ms, 1s, 2m")
	}
	return d, nil
}

// fromEnvironment maps ONCEWARD_POSTGRES_DSN to postgres.dsn and so on.
func fromEnvironment(environ []string, found *findings) map[string]any {
	variable := func(path string) string { return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_")) }
	scalars, lists := settable(reflect.TypeFor[relay.Config](), "")
	paths := make(map[string]string)
	for _, p := range slices.Concat(scalars, lists) {
		paths[variable(p)] = p
	}
	values := make(map[string]any)
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		p, ok := paths[name]
		switch {
		case !ok:
			meant := terminal.Nearest(name, keysOf(paths))
			found.beside("environment variable "+name, " is not known; did you mean "+meant+"?"+ofTheFile(paths[meant], lists))
			found.mean(name, meant, paths[meant])
		case slices.Contains(lists, p):
			found.beside("environment variable "+name, ": "+p+" is a list, which only the file can have")
		default:
			values[p] = value
			found.origin[p] = "environment variable " + name + ": "
		}
	}
	return values
}

// ofTheFile ends the question for a key that no variable and no setting can give.
func ofTheFile(path string, lists []string) string {
	if !slices.Contains(lists, path) {
		return ""
	}
	return " " + path + " is a list, which only the file can have"
}

// fromSettings maps key=value to paths.
func fromSettings(settings []string, found *findings) map[string]any {
	known, lists := settable(reflect.TypeFor[relay.Config](), "")
	values := make(map[string]any)
	for _, pair := range settings {
		path, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			found.beside("--set ", secret.Argument(pair)+": want key=value")
		case path == dsnKey:
			found.beside("--set ", "postgres.dsn: everybody on the machine can read it; use postgres.dsn_file or ONCEWARD_POSTGRES_DSN")
		case slices.Contains(lists, path):
			found.beside("--set ", path+" is a list, which only the file can have")
		case !slices.Contains(known, path):
			meant := terminal.Nearest(path, slices.Concat(known, lists))
			found.beside("--set ", secret.Argument(path)+" is not known; did you mean "+meant+"?"+ofTheFile(meant, lists))
		default:
			values[path] = value
			found.origin[path] = "--set "
		}
	}
	return values
}

// settable lists the paths of the fields that one text can set, and of those that are
// lists, which only a file can have.
func settable(t reflect.Type, prefix string) (scalars, lists []string) {
	for f := range t.Fields() {
		path := prefix + f.Tag.Get("koanf")
		switch f.Type.Kind() {
		case reflect.Struct:
			s, l := settable(f.Type, path+".")
			scalars, lists = append(scalars, s...), append(lists, l...)
		case reflect.Slice, reflect.Map:
			lists = append(lists, path)
		default:
			scalars = append(scalars, path)
		}
	}
	return scalars, lists
}

func keysOf[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
