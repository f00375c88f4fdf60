# The verbs of this project. Each makes the environment in .venv first, if it is not there yet.
PYTHON ?= $(shell command -v python3.12 || command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

# Replays the shipped trace on the measured H200 profile.
demo: $(VENV)/.installed
	$(BIN)/hicache replay data/agents.jsonl --scenario data/demo.toml --out results/demo

test: $(VENV)/.installed-dev lint
	$(BIN)/pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/replay_speed.py

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) results .ruff_cache .hypothesis
