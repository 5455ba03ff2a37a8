package main

import (
	"bytes"
	"fmt"
	"strings"
)

// schemaURL is where the schema is published.
const schemaURL = "https://raw.githubusercontent.com/onceward/onceward/main/docs/relay.schema.json"

const head = `<!-- Written by internal/cmd/configdoc from relay/config.go; run make generate. -->
# relay.yaml

Every key, with its default. A key that is not in this list is an error that names the nearest one. Every key that holds
one value may also be given as an environment variable, which wins over the file: ` + "`ONCEWARD_`" + ` and the path in capitals with
` + "`_`" + ` for the dots, e.g. ` + "`ONCEWARD_POSTGRES_DSN`" + `; or on the command line of ` + "`relay`" + `, which alone has it, ` + "`--set key=value`" + `, which
wins over both; all but ` + "`postgres.dsn`" + `, which everybody on the machine could read there. A DSN or a file with one, given there, takes the place of the file's ` + "`postgres.dsn`" + ` and ` + "`postgres.dsn_file`" + `.
What is wrong with a value is said with the variable or the ` + "`--set`" + ` that has it.

An editor with a language server for YAML (VS Code's YAML extension, Helix, Neovim and others) completes keys and marks
what is wrong, by the [JSON schema](relay.schema.json) of this page. A line in the file says where that is:

` + "```yaml" + `
# yaml-language-server: $schema=` + schemaURL + `
` + "```" + `

` + "`outboxctl config check --config relay.yaml`" + ` finds more, all at once, and connects to nothing. A file
of a secret that cannot be read where it runs, as in CI, is a note; the exit code is 3 when there is something to mend.

Sizes are whole numbers with KiB, MiB, GiB, kB, MB, GB or nothing (bytes). Durations need a unit: 500ms, 1s, 2m.

| key | kind | default | what it says |
| --- | --- | --- | --- |
`

func markdown(fields []configField) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	writeRows(&b, fields)
	return b.Bytes()
}

func writeRows(b *bytes.Buffer, fields []configField) {
	for _, f := range fields {
		if f.kind != "map" {
			fallback := ""
			if f.fallback != "" {
				fallback = "`" + f.fallback + "`"
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.path, kindInWords(f), fallback, strings.ReplaceAll(f.doc, "|", `\|`))
		}
		writeRows(b, f.children)
	}
}

// kindInWords names the values instead, where there are few.
func kindInWords(f configField) string {
	if len(f.asked.OneOf) == 0 {
		return f.kind
	}
	return "`" + strings.Join(f.asked.OneOf, "`, `") + "`"
}
