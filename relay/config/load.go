package config

import (
	"errors"
	"fmt"
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
	"github.com/xrash/smetrics"

	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/relay"
)

// envPrefix begins every environment variable of the relay.
const envPrefix = "ONCEWARD_"

// Load reads the file over the defaults, the environment (as os.Environ returns
// it) over the file, and settings of the form key=value, from the command line,
// over both; then it validates. postgres.dsn and postgres.dsn_file are one thing:
// whichever comes later takes the place of both. An unknown key or variable is an error that names
// the nearest known one. A setting of postgres.dsn is refused: everybody on the
// machine can read a command line.
func Load(path string, environ []string, settings ...string) (relay.Config, error) {
	data, err := os.ReadFile(path) //nolint:gosec // G304: the operator names the file
	if err != nil {
		return relay.Config{}, fmt.Errorf("read config: %w", err)
	}
	cfg, err := parse(data, environ, settings...)
	if err != nil {
		return relay.Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return cfg, nil
}

func parse(data []byte, environ []string, settings ...string) (relay.Config, error) {
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(data), yaml.Parser()); err != nil {
		return relay.Config{}, fmt.Errorf("parse YAML: %s", quoted.ReplaceAllString(err.Error(), "a value"))
	}
	env, err := fromEnvironment(environ)
	if err != nil {
		return relay.Config{}, err
	}
	set, err := fromSettings(settings)
	if err != nil {
		return relay.Config{}, err
	}
	if k.String(dsnKey) != "" && k.String(dsnFileKey) != "" {
		return relay.Config{}, wrong(dsnKey, "the file has postgres.dsn and postgres.dsn_file; give one of them")
	}
	for _, values := range []map[string]any{env, set} {
		if err := oneDSN(k, values); err != nil {
			return relay.Config{}, err
		}
		if err := k.Load(confmap.Provider(values, "."), nil); err != nil {
			return relay.Config{}, fmt.Errorf("read environment and settings: %w", err)
		}
	}
	if err := checkKeys(k.Raw(), reflect.TypeFor[relay.Config](), ""); err != nil {
		return relay.Config{}, err
	}
	cfg := relay.Default()
	err = k.UnmarshalWithConf("", &cfg, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result: &cfg, TagName: "koanf", WeaklyTypedInput: true,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(wholeSizes, mapstructure.StringToTimeDurationHookFunc(),
			mapstructure.TextUnmarshallerHookFunc()),
	}})
	if err != nil {
		return relay.Config{}, decodeError(err)
	}
	return cfg, cfg.Validate()
}

// Two keys for one thing: the DSN, and the file that holds it.
const (
	dsnKey     = "postgres.dsn"
	dsnFileKey = "postgres.dsn_file"
)

// oneDSN lets the database that values name win over the one that is there: either
// key takes the place of both.
func oneDSN(k *koanf.Koanf, values map[string]any) error {
	dsn, file := values[dsnKey], values[dsnFileKey]
	given := func(v any) bool { return v != nil && v != "" }
	switch {
	case given(dsn) && given(file):
		return wrong(dsnKey, "ONCEWARD_POSTGRES_DSN and ONCEWARD_POSTGRES_DSN_FILE are both set; give one of them")
	case given(dsn):
		k.Delete(dsnFileKey)
	case given(file):
		k.Delete(dsnKey)
	}
	return nil
}

// wrong says what is wrong with a field.
func wrong(field, detail string) error { return &relay.FieldError{Field: field, Detail: detail} }

// quoted is how the parser of YAML repeats a value, which may be a secret.
var quoted = regexp.MustCompile("(?s)`.*`")

// decodeError names the first field whose value does not fit. Its value is left
// out: it may be a secret at the wrong place.
func decodeError(err error) error {
	var decode *mapstructure.DecodeError
	if !errors.As(err, &decode) {
		return fmt.Errorf("decode config: %w", err)
	}
	var unconvertible *mapstructure.UnconvertibleTypeError
	if errors.As(err, &unconvertible) {
		return wrong(decode.Name(), "want "+kindName(unconvertible.Expected.Type())+", not "+kindName(reflect.TypeOf(unconvertible.Value)))
	}
	return wrong(decode.Name(), decode.Unwrap().Error())
}

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

// wholeSizes refuses a duration without a unit, which would be taken for
// nanoseconds.
func wholeSizes(from, to reflect.Type, value any) (any, error) {
	if to == reflect.TypeFor[time.Duration]() && from.Kind() != reflect.String {
		if from.Kind() == reflect.Map || from.Kind() == reflect.Slice {
			return value, nil // refused by what follows
		}
		return nil, fmt.Errorf("duration %v has no unit; write e.g. 500ms, 1s, 2m", value)
	}
	return value, nil
}

// fromEnvironment maps ONCEWARD_POSTGRES_DSN to postgres.dsn and so on.
func fromEnvironment(environ []string) (map[string]any, error) {
	paths := make(map[string]string)
	for _, p := range scalarPaths(reflect.TypeFor[relay.Config](), "") {
		paths[envPrefix+strings.ToUpper(strings.ReplaceAll(p, ".", "_"))] = p
	}
	values := make(map[string]any)
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		p, ok := paths[name]
		if !ok {
			return nil, fmt.Errorf("environment variable %s is not known; did you mean %s?", name, nearest(name, keysOf(paths)))
		}
		values[p] = value
	}
	return values, nil
}

// fromSettings maps key=value to paths.
func fromSettings(settings []string) (map[string]any, error) {
	known := scalarPaths(reflect.TypeFor[relay.Config](), "")
	values := make(map[string]any)
	for _, pair := range settings {
		path, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("setting %s: want key=value", secret.Argument(pair))
		case path == "postgres.dsn":
			return nil, errors.New("setting postgres.dsn: everybody on the machine can read it; use postgres.dsn_file or ONCEWARD_POSTGRES_DSN")
		case !slices.Contains(known, path):
			return nil, fmt.Errorf("setting %s is not known, or not a single value; did you mean %s?", secret.Argument(path), nearest(path, known))
		}
		values[path] = value
	}
	return values, nil
}

// scalarPaths lists the paths of the fields that one text can set.
func scalarPaths(t reflect.Type, prefix string) []string {
	var paths []string
	for f := range t.Fields() {
		path := prefix + f.Tag.Get("koanf")
		switch f.Type.Kind() {
		case reflect.Struct:
			paths = append(paths, scalarPaths(f.Type, path+".")...)
		case reflect.Slice, reflect.Map:
		default:
			paths = append(paths, path)
		}
	}
	return paths
}

// checkKeys refuses keys that no field has.
func checkKeys(raw map[string]any, t reflect.Type, prefix string) error {
	fields := make(map[string]reflect.Type)
	for f := range t.Fields() {
		fields[f.Tag.Get("koanf")] = f.Type
	}
	names := keysOf(raw)
	slices.Sort(names)
	for _, name := range names {
		field, ok := fields[name]
		if !ok {
			return wrong(prefix+name, fmt.Sprintf("unknown key; did you mean %s?", prefix+nearest(name, keysOf(fields))))
		}
		if err := checkValue(raw[name], field, prefix+name); err != nil {
			return err
		}
	}
	return nil
}

func checkValue(value any, t reflect.Type, path string) error {
	switch {
	case t.Kind() == reflect.Struct:
		if value == nil {
			return nil
		}
		m, ok := value.(map[string]any)
		if !ok {
			return wrong(path, "want a map of keys, see the configuration reference")
		}
		return checkKeys(m, t, path+".")
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		list, ok := value.([]any)
		if !ok {
			return wrong(path, "want a list")
		}
		for i, v := range list {
			if err := checkValue(v, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func keysOf[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// nearest returns the known name with the smallest edit distance. It is never one
// that switches security off: nobody should do so because a program proposed it.
func nearest(name string, known []string) string {
	slices.Sort(known)
	best, bestDistance := "", 1<<30
	for _, k := range known {
		if strings.Contains(strings.ToLower(k), "insecure") {
			continue
		}
		if d := smetrics.WagnerFischer(name, k, 1, 1, 1); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}
