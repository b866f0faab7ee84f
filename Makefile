# `make help` lists the targets. Targets that build or test first install missing tools (scripts/deps.sh).

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
DESTDIR ?=
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
MUSL := x86_64-unknown-linux-musl

# Find cargo on the path or in rustup's directory.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

.PHONY: build demo demo-uml test test-long test-pages bench install uninstall deb deb-agent static help
.DEFAULT_GOAL := build

build: ## Builds the release programs into target/release (the default)
	scripts/deps.sh
	cargo build --release -p memtide -p memtide-lab -p memtide-load -p memtide-manual
	$(TARGET_DIR)/release/memtide-manual $(TARGET_DIR)/manual

# The demo and the tests share one build, without the optimisations that take minutes. `build` makes the programs to install.
QUICK := $(TARGET_DIR)/debug
BUILD_QUICK := scripts/step.sh "building memtide and its lab" 300 cargo build -p memtide -p memtide-lab

demo: ## Builds, then runs four real guests on half their memory, without memtide and with it
	scripts/deps.sh --guests
	$(BUILD_QUICK)
	$(QUICK)/memtide-lab demo

demo-uml: ## The same with instances of User Mode Linux: needs no QEMU, KVM or emulation
	scripts/deps.sh
	$(BUILD_QUICK)
	$(QUICK)/memtide-lab demo --vmm uml

test: ## Runs the tests, including those with real guests
	scripts/deps.sh --guests --libvirt
	$(BUILD_QUICK)
	scripts/step.sh "building the tests" 240 cargo test --workspace --no-run
	scripts/test.sh

test-long: ## Runs the long tests with real guests (minutes each)
	scripts/deps.sh --guests
	$(BUILD_QUICK)
	cargo test -p memtide-lab --test guests -- --ignored

test-pages: ## Runs the tests of the page (`memtide web`, Cockpit) in Chromium, with axe-core
	scripts/deps.sh --pages
	scripts/axe.sh
	scripts/step.sh "building the tests" 240 cargo test -p memtide --test web --no-run
	cargo test -p memtide --test web

bench: ## Measures the policy, the daemon with 100 stand-in guests, the agent, and the exerciser
	scripts/deps.sh --bench
	cargo bench -p memtide-policy --bench decide
	cargo bench -p memtide-load --bench load
	cargo bench -p memtide --bench daemon
	cargo bench -p memtide-agent --bench agent

# The files that `install` installs below $(DESTDIR).
BIN := $(DESTDIR)$(PREFIX)/bin
MAN := $(DESTDIR)$(PREFIX)/share/man
BASH_COMPLETION := $(DESTDIR)$(PREFIX)/share/bash-completion/completions/memtide
ZSH_COMPLETION := $(DESTDIR)$(ZSHDIR)/_memtide
FISH_COMPLETION := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/memtide.fish
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system
UNIT_FILES := memtide.service memtide-journal.socket memtide-journal@.service memtide-reclaim.socket memtide-reclaim@.service memtide-split.socket memtide-split@.service \
	memtide-ksm.socket memtide-ksm@.service memtide-tier.socket memtide-tier@.service memtide-knocks.socket memtide-knocks@.service memtide-metrics.socket memtide-metrics@.service
SYSUSERS := $(DESTDIR)$(PREFIX)/lib/sysusers.d/memtide.conf
CONFIGURATION := $(DESTDIR)$(SYSCONFDIR)/memtide/memtide.toml
SCENARIOS := $(DESTDIR)$(PREFIX)/share/memtide/scenarios
PROMETHEUS := $(DESTDIR)$(PREFIX)/share/memtide/prometheus
PROMETHEUS_FILES := memtide.rules.yml memtide-scrape.yml memtide-dashboard.json
# The page in Cockpit.
COCKPIT := $(DESTDIR)$(PREFIX)/share/cockpit/memtide
COCKPIT_FILES := $(notdir $(wildcard crates/web/page/*)) palette.css names.js
DIRECTORIES := $(BIN) $(MAN)/man1 $(MAN)/man5 $(SCENARIOS) $(PROMETHEUS) $(COCKPIT) \
	$(dir $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) $(UNITS)/. $(SYSUSERS) $(CONFIGURATION))
# A list of the directories that `install` created: `uninstall` removes only these, and only if they are empty.
MADE := $(TARGET_DIR)/installed-directories

install: ## Installs programs, man pages, completions, service and configuration below $(DESTDIR)$(PREFIX); run `make build` first
	@test -x $(TARGET_DIR)/release/memtide -a -d $(TARGET_DIR)/manual || { echo "nothing is built yet; run: make build" >&2; exit 1; }
	@{ cat $(MADE) 2>/dev/null; for dir in $(DIRECTORIES:/=); do \
		while test ! -d $$dir; do echo $$dir; dir=$$(dirname $$dir); done; done; } | sort -u > $(MADE).new
	@mv -f $(MADE).new $(MADE)
	install -D -m 0755 -t $(BIN) $(TARGET_DIR)/release/memtide $(TARGET_DIR)/release/memtide-load
	install -D -m 0644 -t $(MAN)/man1 $(TARGET_DIR)/manual/*.1 packaging/man/*.1
	install -D -m 0644 -t $(MAN)/man5 packaging/man/*.5
	install -D -m 0644 $(TARGET_DIR)/manual/memtide.bash $(BASH_COMPLETION)
	install -D -m 0644 $(TARGET_DIR)/manual/_memtide $(ZSH_COMPLETION)
	install -D -m 0644 $(TARGET_DIR)/manual/memtide.fish $(FISH_COMPLETION)
	install -D -m 0644 -t $(UNITS) $(addprefix packaging/,$(UNIT_FILES))
	sed -i 's|/usr/bin/memtide|$(PREFIX)/bin/memtide|' $(addprefix $(UNITS)/,$(UNIT_FILES))
	install -D -m 0644 packaging/memtide.sysusers $(SYSUSERS)
	install -D -m 0644 -t $(SCENARIOS) scenarios/*.toml
	install -D -m 0644 -t $(PROMETHEUS) $(addprefix packaging/prometheus/,$(PROMETHEUS_FILES))
	sed -i 's|/usr/share/|$(PREFIX)/share/|' $(PROMETHEUS)/memtide-scrape.yml
	install -D -m 0644 -t $(COCKPIT) $(addprefix $(TARGET_DIR)/manual/cockpit/,$(COCKPIT_FILES))
	test -e $(CONFIGURATION) || install -D -m 0644 packaging/memtide.toml $(CONFIGURATION)

uninstall: ## Removes the files of `make install` and the directories that it created, except the configuration
	rm -f $(BIN)/memtide $(BIN)/memtide-load $(MAN)/man1/memtide.1 $(MAN)/man1/memtide-*.1 $(MAN)/man5/memtide.toml.5
	rm -f $(addprefix $(COCKPIT)/,$(COCKPIT_FILES))
	rm -f $(addprefix $(SCENARIOS)/,$(notdir $(wildcard scenarios/*.toml)))
	rm -f $(addprefix $(PROMETHEUS)/,$(PROMETHEUS_FILES))
	rm -f $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) $(addprefix $(UNITS)/,$(UNIT_FILES)) $(SYSUSERS)
	@test ! -e $(MADE) || sort -r $(MADE) | xargs -r rmdir --ignore-fail-on-non-empty 2>/dev/null || true
	@rm -f $(MADE)

deb: ## Builds the Debian package target/deb/memtide_VERSION_ARCH.deb
	scripts/deps.sh --deb
	cargo build --release --locked -p memtide -p memtide-load -p memtide-manual
	rm -rf $(TARGET_DIR)/manual
	$(TARGET_DIR)/release/memtide-manual $(TARGET_DIR)/manual
	packaging/deb.sh

deb-agent: ## Builds the Debian package for guests target/deb/memtide-agent_VERSION_ARCH.deb, with a static program
	scripts/deps.sh --deb
	scripts/deps.sh --static
	cargo build --profile guest --locked --target $(MUSL) -p memtide-agent
	packaging/agent/deb.sh $(TARGET_DIR)/$(MUSL)/guest/memtide-agent

static: ## Builds static programs for any Linux on x86-64 into target/x86_64-unknown-linux-musl/release
	scripts/deps.sh --static
	cargo build --release --locked --target $(MUSL) -p memtide -p memtide-load

help: ## Shows this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)$$/make \1\t\2/p' Makefile | expand -t 16
