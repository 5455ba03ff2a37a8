package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

// relaySettings are what relay.yaml has of this stack.
type relaySettings struct {
	Schema  string // where it is for whoever reads relay.yaml
	Name    string
	DSNFile string
	Brokers []string
	Admin   string // of health and metrics
}

// relayTemplate quotes every value as a Go string, which is one of YAML's
// double-quoted strings for the paths and addresses that stand here.
var relayTemplate = template.Must(template.New("relay.yaml").
	Funcs(template.FuncMap{"quote": strconv.Quote}).
	Parse(`# yaml-language-server: $schema={{.Schema}}
# Written by make stack: docs/configuration.md has every key. Both servers listen on
# loopback only and speak no TLS, which is why insecure is said of them.
name: {{quote .Name}}
postgres:
  dsn_file: {{quote .DSNFile}}
  insecure: true
outbox:
  start: all                                # what was written before the relay's first start is published, too
kafka:
  brokers: [{{range $i, $b := .Brokers}}{{if $i}}, {{end}}{{quote $b}}{{end}}]
  insecure: true
routes:
  - topic: "{namespace}.{aggregate_type}"   # payments.invoice, and whatever else you write
topics:
  create: true
  partitions: 3
  replication_factor: 1                     # there is one broker
admin:
  listen: {{quote .Admin}}                 # /healthz, /readyz, /metrics
log:
  format: text
`))

// relayConfig returns the text of relay.yaml. Pure.
func relayConfig(settings relaySettings) (string, error) {
	var text strings.Builder
	if err := relayTemplate.Execute(&text, settings); err != nil {
		return "", fmt.Errorf("write relay.yaml: %w", err)
	}
	return text.String(), nil
}

// schemaFrom returns where the schema is for an editor of a file in dir, when the
// program runs in the project's folder.
func schemaFrom(dir string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("look for the schema: %w", err)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("look for the schema: %w", err)
	}
	path, err := filepath.Rel(dir, filepath.Join(here, "docs", "relay.schema.json"))
	return filepath.ToSlash(path), err
}
