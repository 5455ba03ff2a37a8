#!/usr/bin/env bash
# scripts/alone.sh DIR ARGS…: runs `go ARGS` in the module in DIR without the
# workspace, in the versions that its own go.mod says. Our modules require one another
# in versions that exist only once they are released, so they are taken from this
# tree, by replacements in a copy of go.mod: none is ever committed. What `mod tidy`
# changes is brought back. TOOLCHAIN=go1.24.0 does it with that version of Go.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly dir=$1
shift

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp "$dir/go.mod" "$dir/go.sum" "$copy"
self=$(sed -n 's/^module //p' "$dir/go.mod")
others=$(go list -m -f "{{if ne .Path \"$self\"}}{{.Path}}={{.Dir}}{{end}}")
for other in $others; do go mod edit -replace "$other" "$copy/go.mod"; done

GOWORK=off GOTOOLCHAIN=${TOOLCHAIN:-$(go env GOTOOLCHAIN)} GOFLAGS="$(go env GOFLAGS) -modfile=$copy/go.mod" go -C "$dir" "$@"

if [ "$*" = "mod tidy" ]; then
  for other in $others; do go mod edit -dropreplace "${other%%=*}" "$copy/go.mod"; done
  cp "$copy/go.mod" "$copy/go.sum" "$dir"
fi
