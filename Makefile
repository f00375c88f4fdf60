# The verbs of this project. Each makes the environment in .venv first, if it is not there yet.
# The first of these that runs (a name on the path may be a shim that does not) and is new enough.
PYTHON ?= $(shell for each in python3.12 python3.11 python3 python; do \
	$$each -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench compiled clean

# Replays the shipped trace on the measured H200 profile.
demo: $(VENV)/.installed
	$(BIN)/hicache replay data/agents.jsonl --scenario data/demo.toml --out results/demo

test: $(VENV)/.installed-dev lint
	$(BIN)/pytest -n auto --dist loadfile

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/replay_speed.py

# The engine through a C compiler, for twice the speed; without one everything runs all the same.
# To be made again after an edit: until then the sources run. See docs/decisions/0009.
compiled: $(VENV)/.installed
	@$(BIN)/python scripts/compile_engine.py

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	@$(BIN)/python scripts/compile_engine.py || true
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev,hw]'
	@$(BIN)/python scripts/compile_engine.py || true
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build results .ruff_cache .hypothesis
