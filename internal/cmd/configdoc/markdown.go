package main

import (
	"bytes"
	"fmt"
	"strings"
)

const head = `<!-- Written by internal/cmd/configdoc from relay/config.go; run make generate. -->
# relay.yaml

Every key, with its default. A key that is not in this list is an error that names the nearest one. Every key that holds
one value may also be given as an environment variable, which wins over the file: ` + "`ONCEWARD_`" + ` and the path in capitals with
` + "`_`" + ` for the dots, e.g. ` + "`ONCEWARD_POSTGRES_DSN`" + `; or on the command line, ` + "`--set key=value`" + `, which
wins over both. A DSN or a file with one, given there, takes the place of the file's ` + "`postgres.dsn`" + ` and ` + "`postgres.dsn_file`" + `.

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
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.path, f.kind, fallback, strings.ReplaceAll(f.doc, "|", `\|`))
		}
		writeRows(b, f.children)
	}
}
