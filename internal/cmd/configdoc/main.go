// Command configdoc writes docs/configuration.md and docs/relay.schema.json from
// the configuration's structs: names and types from their tags, words from their
// doc comments, defaults from relay.Default. With -check it writes nothing and
// fails when the files are not what they would be.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "configdoc:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	fields, err := readFields(filepath.Join("relay", "config.go"))
	if err != nil {
		return err
	}
	schema, err := jsonSchema(fields)
	if err != nil {
		return err
	}
	var errs []error
	for path, want := range map[string][]byte{
		filepath.Join("docs", "configuration.md"):  markdown(fields),
		filepath.Join("docs", "relay.schema.json"): schema,
	} {
		if !check {
			errs = append(errs, os.WriteFile(path, want, 0o644)) //nolint:gosec // G306: documents are for everybody
			continue
		}
		have, err := os.ReadFile(path) //nolint:gosec // G304: one of the two above
		if err != nil || !bytes.Equal(have, want) {
			errs = append(errs, fmt.Errorf("%s is stale; run make generate", path))
		}
	}
	return errors.Join(errs...)
}
