# onioncell: `make demo` shows it, `make test` proves it. Both install what they need.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
# What a run needs (chromium and a font), what the lab needs (tor, ip, a screen), what a build needs (a C compiler).
PACKAGES := chromium fonts-liberation tor iproute2 util-linux xvfb gcc libc6-dev
BINARY := target/release/onioncell

.PHONY: help setup build demo test check lab run bench deny clean

help: ## This list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | column -t -s "$$(printf '\t')"

setup: ## Install Chromium, tor and what the tests need, where missing (Debian)
	@scripts/setup $(PACKAGES)

build: setup ## Build the program: target/release/onioncell
	@echo "== building onioncell (release)"
	@$(CARGO) build --release --locked

demo: setup ## A page over a Tor network of this machine's own, an onion site, a picture, the ledger, the leak verdict
	@echo "== building onioncell and the lab"
	@$(CARGO) build --locked --bin onioncell --example lab
	@target/debug/examples/lab -- scripts/demo

test: setup check ## Everything: format, lints, unit, lab, escape and leak tests
	@echo "== testing with real Chromium, Tor and packet captures"
	@$(CARGO) test --locked --no-fail-fast

check:
	@echo "== format and lints"
	@$(CARGO) fmt --check
	@$(CARGO) clippy --locked --all-targets -- -D warnings

lab: setup ## Start the lab by hand; prints how to point onioncell at it
	@$(CARGO) build --locked --bin onioncell --example lab
	@target/debug/examples/lab

run: build ## One page over the real Tor network: make run URL=https://check.torproject.org/
	@test -n "$(URL)" || { echo "say which page: make run URL=https://…"; exit 2; }
	@$(BINARY) --allow-public-web --ephemeral extract_text --url "$(URL)"

bench: build ## Ratios against peers in one run
	@$(CARGO) bench --locked

deny: ## Licences and advisories of the dependencies
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	@$(CARGO) deny check

clean: ## Remove what was built
	@$(CARGO) clean
