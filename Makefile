# Everything a developer of Onceward runs. `make` alone lists it.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash

GO      ?= go
TOOLS   := .bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# A run of some of the end-to-end tests: make e2e RUN='TestMainJob|TestRestart'
RUN     ?=
# How long the end-to-end tests of one package may take: ./e2e/ takes 40 minutes on
# two cores. A test that hangs is named by this limit before whoever runs all of
# them loses patience.
LIMIT   ?= 75m
# Brokers of another version, on which the transactions are tried as well.
OTHER_KAFKA ?= 4.3.1
# How long each fuzz test runs.
FUZZTIME ?= 20s
# How the programs are built, and installed.
BUILD = -ldflags '-X main.version=$(VERSION)'
# Where man pages are written.
MANDIR ?= bin/man
# The packages with tests that need real servers, the longest first.
E2E = ./e2e/ $(filter-out ./e2e/,$(sort $(dir $(shell grep -rl --include='*_test.go' '^//go:build.*\be2e\b' .))))
# The modules of go.work, and the packages of all of them: ./... alone stops where the
# next module begins.
MODULES  := $(shell sed -n 's/^\t\(\.[^ ]*\)$$/\1/p' go.work)
PACKAGES := $(addsuffix /...,$(MODULES))
# The oldest Go that outbox can be built with.
OLDEST   := go$(shell sed -n 's/^go //p' outbox/go.mod)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## check, install and fetch what the targets below need (demo needs nothing)
	@scripts/deps.sh

.PHONY: build
build: ## build bin/relay and bin/outboxctl
	$(GO) build $(BUILD) -o bin/ ./cmd/...

.PHONY: install
install: ## go install relay and outboxctl, into $GOBIN or $GOPATH/bin
	$(GO) install -trimpath $(BUILD) ./cmd/...

.PHONY: man
man: build ## write man pages of both, to bin/man; MANDIR=/usr/local/share/man installs them
	@mkdir -p $(MANDIR)/man1
	@for program in relay outboxctl; do bin/$$program man > $(MANDIR)/man1/$$program.1 || exit; done
	@echo "man -M $(abspath $(MANDIR)) outboxctl"

.PHONY: generate
generate: deps ## write the Go code of the SQL queries, and the configuration reference
	$(TOOLS)/sqlc generate
	$(GO) run ./internal/cmd/configdoc

.PHONY: tidy
tidy: ## go mod tidy in each module
	@for module in $(MODULES); do scripts/alone.sh $$module mod tidy || exit; done

.PHONY: lint
lint: ## gofmt, go vet and golangci-lint
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	$(GO) vet $(PACKAGES)
	$(GO) vet -tags e2e $(PACKAGES)
	$(TOOLS)/golangci-lint run --build-tags e2e --allow-parallel-runners $(PACKAGES)

.PHONY: check-generated
check-generated: ## fail when generated code or go.mod is not what it would be
	$(TOOLS)/sqlc diff
	$(GO) run ./internal/cmd/configdoc -check
	@for module in $(MODULES); do scripts/alone.sh $$module mod tidy -diff || exit; done

.PHONY: test-unit
test-unit: ## tests without servers, with the race detector; outbox also by itself, with all at the oldest
	$(GO) test -race $(PACKAGES)
	TOOLCHAIN=$(OLDEST) scripts/alone.sh outbox test ./...
	TOOLCHAIN=$(OLDEST) scripts/alone.sh outbox/outboxotel test ./...

.PHONY: cover
cover: ## what the tests without servers reach: coverage.out, and a line a package
	$(GO) test -coverprofile=coverage.out $(PACKAGES) | grep -v 'no test files'
	@$(GO) tool cover -func=coverage.out | tail -1

.PHONY: fuzz
fuzz: ## each fuzz test for FUZZTIME
	@set -e; grep -rho --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . -H | sed 's|/[^/]*:func | |' | while read -r folder name; do \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$folder"; done

.PHONY: e2e
e2e: ## tests on real servers; RUN='TestName' runs some
	$(GO) test -tags e2e -count=1 -parallel 3 -timeout $(LIMIT) $(E2E) $(if $(RUN),-run '$(RUN)')

.PHONY: e2e-full
e2e-full: ## the same with the long forms: what is run before an issue is closed
	E2E_FULL=1 $(MAKE) e2e LIMIT=3h
	ONCEWARD_TEST_POSTGRES=18 $(GO) test -tags e2e -count=1 -timeout $(LIMIT) ./consumer/
	$(GO) run ./internal/cmd/fetch -kafka $(OTHER_KAFKA)
	E2E_FULL=1 ONCEWARD_TEST_KAFKA=$(OTHER_KAFKA) $(GO) test -tags e2e -count=1 -timeout $(LIMIT) ./publisher/ ./consumer/saramagroup/

.PHONY: test
test: deps lint check-generated test-unit e2e ## everything that CI runs

# What bench measures: make bench QUICK=1 is a look in ten minutes; GROWTH=1 is the curves
# instead, what an event costs while something grows; BUSY=1 is for a machine that has other
# work; ARGS='-workloads single' and the like, bin/bench -help.
QUICK  ?=
GROWTH ?=
BUSY   ?=
ARGS   ?=

.PHONY: bench
bench: build ## measure relay, producer and consumer beside others, an hour or two; QUICK=1: ten minutes
	@scripts/deps.sh stack
	$(GO) build $(BUILD) -o bin/ ./bench
	bin/bench -relay bin/relay $(if $(QUICK),-quick) $(if $(GROWTH),-workloads growth) $(if $(BUSY),-busy yes) $(ARGS)

.PHONY: demo
demo: ## the main job in half a minute; needs Go and make only
	$(GO) run ./examples/orders/demo

.PHONY: stack
stack: ## start a PostgreSQL and a Kafka to work with; it ends with an event that has arrived, and says what to try
	@scripts/deps.sh stack
	@echo "building bin/relay and bin/outboxctl: a minute or two the first time"
	@$(MAKE) --no-print-directory -s build
	@$(GO) run ./internal/cmd/stack up

.PHONY: stack-down
stack-down: ## stop them and remove their data
	@$(GO) run ./internal/cmd/stack down

.PHONY: clean
clean: ## remove what was built; the cache of deps and a running stack stay
	rm -rf bin $(TOOLS) coverage.out
