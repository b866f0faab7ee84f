# What can be done here; `make help` lists it. Every target installs what the machine lacks first (scripts/deps.sh).

PREFIX ?= /usr/local
DESTDIR ?=
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

# Cargo is found on the path or where rustup puts it.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

.PHONY: build demo test bench install help
.DEFAULT_GOAL := build

build: ## Builds the release programs into target/release (the default)
	scripts/deps.sh
	cargo build --release -p memtide -p memtide-lab -p memtide-load

demo: build ## Builds, then shows four real guests on half their memory, without memtide and with it
	scripts/deps.sh --guests
	$(TARGET_DIR)/release/memtide-lab demo

test: ## Runs all tests, those with real guests included
	scripts/deps.sh --guests
	cargo build --release -p memtide -p memtide-lab
	cargo test --workspace

bench: ## Measures the policy and the exerciser
	scripts/deps.sh --bench
	cargo bench -p memtide-policy --bench decide
	cargo bench -p memtide-load --bench load

install: ## Installs what was built below $(DESTDIR)$(PREFIX); run `make build` first
	@test -x $(TARGET_DIR)/release/memtide || { echo "nothing is built yet; run: make build" >&2; exit 1; }
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin $(TARGET_DIR)/release/memtide $(TARGET_DIR)/release/memtide-load

help: ## Shows this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)$$/make \1\t\2/p' Makefile | expand -t 16
