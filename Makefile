# Everything a person or a machine runs in this repository. `make help` lists it.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

CARGO ?= cargo
NPM ?= npm
# Given to the program by `make up`: make up ARGS="--listen 127.0.0.1:5000"
ARGS ?=

UI := console-ui
UI_SOURCES := $(UI)/package.json $(UI)/package-lock.json $(UI)/index.html $(UI)/vite.config.ts $(UI)/tsconfig.json \
	$(UI)/openapi.json $(wildcard $(UI)/public/*) $(shell find $(UI)/src -type f 2>/dev/null)
UI_MODULES := $(UI)/node_modules/.package-lock.json
UI_DIST := $(UI)/dist/index.html

.PHONY: help build up test lint console console-test sqlx openapi acceptance acceptance-long benchmark-router benchmark-decision clean need-cargo need-npm

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-19s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

build: need-cargo $(UI_DIST) ## Build target/release/lifeboat with the console inside
	$(CARGO) build --release --locked --package lifeboat

up: build ## Build, then serve a model: make up, or make up ARGS="hf:owner/repo:Q4_K_M"
	./target/release/lifeboat up $(ARGS)

test: lint console-test ## Install what the tests need and run all of them
	$(CARGO) test --workspace --locked

# Lints are kept clean with this compiler; what a newer one dislikes is shown, and fails nothing.
LINTED_WITH := rustc 1.95.
LINTS = $(if $(findstring $(LINTED_WITH),$(shell rustc --version)),--deny warnings,--cap-lints warn)

lint: need-cargo $(UI_DIST) ## Formatting and lints of the Rust code
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- $(LINTS)

console: $(UI_DIST) ## Build the console into console-ui/dist

console-test: $(UI_MODULES) ## Types and tests of the console
	cd $(UI) && $(NPM) run --silent check && $(NPM) run --silent test

$(UI_MODULES): $(UI)/package.json $(UI)/package-lock.json | need-npm
	cd $(UI) && $(NPM) ci --no-audit --no-fund
	@touch $@

$(UI_DIST): $(UI_MODULES) $(UI_SOURCES)
	cd $(UI) && $(NPM) run --silent build
	@touch $@

sqlx: need-cargo ## Check every SQL statement against migrations/ and refresh .sqlx/
	@mkdir -p target && rm -rf .sqlx target/sqlx.db && mkdir .sqlx
	@python3 -c 'import glob, sqlite3; db = sqlite3.connect("target/sqlx.db"); \
		[db.executescript(open(file).read()) for file in sorted(glob.glob("migrations/*.sql"))]'
	@touch control-plane/src/lib.rs
	SQLX_OFFLINE=false DATABASE_URL='sqlite://$(CURDIR)/target/sqlx.db' $(CARGO) check --locked --package lifeboat

openapi: need-cargo $(UI_MODULES) ## Write console-ui/openapi.json from the code, and the console's types from it
	LIFEBOAT_WRITE_OPENAPI=1 $(CARGO) test --locked --package lifeboat --test it openapi
	cd $(UI) && $(NPM) run --silent generate

acceptance: build ## Measure a release build: cached start, memory, throughput, a full disk (wants an idle machine)
	cd control-plane/tests/acceptance && for script in cached_start memory throughput disk_full; do \
		echo "== $$script"; python3 $$script.py || failed="$$failed $$script"; done; \
		if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

acceptance-long: build ## Two real engines: tokens saved, 5 minutes of kill -9; simulated ones: half an hour of everything
	cd control-plane/tests/acceptance && python3 conversations.py && python3 killing.py 300 && python3 soak.py

benchmark-router: build ## Compare the router with nginx, sglang-router and vllm-router (installs them; wants an idle machine)
	$(CARGO) build --release --locked --package lifeboat-bench
	benchmark/comparison/setup.sh target/peers
	python3 benchmark/comparison/router.py $(ARGS)

benchmark-decision: need-cargo ## Time one routing decision at 8, 64 and 1000 rows (wants an idle machine)
	$(CARGO) bench --locked --package lifeboat-bench --bench decision -- $(ARGS)

clean: ## Remove what was built
	rm -rf $(UI)/dist $(UI)/node_modules
	$(CARGO) clean

need-cargo:
	@command -v $(CARGO) >/dev/null 2>&1 || { \
		echo 'error: cargo was not found' >&2; \
		echo 'hint: install Rust 1.90 or newer (rustup, or your system'"'"'s package), then run make again' >&2; exit 1; }
	@command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 || { \
		echo 'error: no C compiler was found' >&2; \
		echo 'hint: install one (Debian, Ubuntu: build-essential; Fedora: gcc; macOS: xcode-select --install)' >&2; exit 1; }

need-npm:
	@command -v node >/dev/null 2>&1 && command -v $(NPM) >/dev/null 2>&1 || { \
		echo 'error: Node with npm was not found; the console is built with it' >&2; \
		echo 'hint: install Node 20 or newer with npm, then run make again' >&2; exit 1; }
	@node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)' || { \
		echo "error: Node $$(node --version) is too old; the console needs 20 or newer" >&2; \
		echo 'hint: install Node 20 or newer, then run make again' >&2; exit 1; }
