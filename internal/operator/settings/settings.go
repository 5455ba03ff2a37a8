// Package settings is a relay's configuration as an operator may see it.
package settings

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/relay"
)

// Shown is a configuration under the names that its file uses, with secrets masked.
func Shown(cfg relay.Config) map[string]any {
	values, _ := effective(reflect.ValueOf(cfg), "").(map[string]any)
	return values
}

// effective turns a configuration into maps, lists and scalars under the names
// that the file uses, with secrets masked.
func effective(v reflect.Value, name string) any {
	if d, ok := reflect.TypeAssert[time.Duration](v); ok {
		return d.String()
	}
	switch v.Kind() {
	case reflect.Struct:
		out := make(map[string]any, v.NumField())
		for i := range v.NumField() {
			if tag := v.Type().Field(i).Tag.Get("koanf"); tag != "" {
				out[tag] = effective(v.Field(i), tag)
			}
		}
		return out
	case reflect.Slice:
		out := make([]any, 0, v.Len())
		for i := range v.Len() {
			out = append(out, effective(v.Index(i), name))
		}
		return out
	case reflect.String:
		return mask(name, v.String())
	case reflect.Int, reflect.Int32, reflect.Int64:
		return v.Int()
	default:
		return v.Interface()
	}
}

// mask hides a value whose name says that it is or holds a secret. The path of a
// file that holds one is shown when it is one.
func mask(name, value string) string {
	const hidden = "***"
	switch {
	case value == "":
		return value
	case strings.HasSuffix(name, "_file"):
		return secret.Path(value)
	case name == "dsn" || strings.HasSuffix(name, "_dsn"):
		conf, err := pgconn.ParseConfig(value)
		if err != nil {
			return hidden
		}
		return fmt.Sprintf("host=%s port=%d user=%s dbname=%s password=%s", secret.Host(conf.Host), conf.Port, secret.Name(conf.User), secret.Name(conf.Database), hidden)
	case strings.Contains(name, "password") || strings.Contains(name, "token") || strings.Contains(name, "secret"):
		return hidden
	}
	return value
}
