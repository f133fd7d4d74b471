# `make` alone prints the targets. Check never writes, format does.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
WORKERS ?= 2
KILLS ?= 10
export PIP_NO_INPUT = 1

.PHONY: help setup demo federation format check test test-slow test-federation bench bench-gpu bench-peers docs all clean

help:  ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

.venv/.runtime: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(PIP) -e .
	@touch $@

.venv/.dev: .venv/.runtime
	$(PIP) -e ".[dev]"
	@touch $@

setup: .venv/.dev  ## environment with everything a developer needs
	@if [ -d .git ] && [ -x $(BIN)/pre-commit ]; then $(BIN)/pre-commit install >/dev/null; fi

demo: .venv/.runtime  ## train across three drawn hospitals and write a report (under 3 minutes)
	$(BIN)/consilia demo

federation: .venv/.dev  ## a coordinator, its door and four hospitals as processes over TLS, and a report
	rm -rf runs/federation
	PATH="$(CURDIR)/$(BIN):$$PATH" deploy/one-machine/run.sh runs/federation

format: .venv/.dev  ## rewrite: ruff format, ruff --fix
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

check: .venv/.dev  ## read only: ruff, mypy strict, import contracts, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

test: .venv/.dev  ## the fast tests
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m "not slow"

test-slow: .venv/.dev  ## studies with tolerances and the long fault tables
	$(BIN)/python -m pytest -q -n $(WORKERS) -m slow

test-federation: .venv/.dev  ## every method, fault and intruder over real processes (over an hour)
	CONSILIA_KILLS=$(KILLS) $(BIN)/python -m pytest -q tests/federation

bench: .venv/.dev  ## ratios against a bare PyTorch loop, on this CPU
	$(BIN)/python -m benchmarks.run

bench-gpu: .venv/.dev  ## the captured step against the eager loop, on this machine's GPU
	$(BIN)/python -m benchmarks.gpu

bench-peers: .venv/.dev  ## the same FedAvg under other frameworks, each in its own environment
	$(BIN)/python -m benchmarks.peers.run --noop && $(BIN)/python -m benchmarks.peers.run

docs: .venv/.dev  ## build the site, warnings are errors
	$(BIN)/mkdocs build --strict --quiet

all: check test docs  ## what CI runs

clean:  ## remove the environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache site
