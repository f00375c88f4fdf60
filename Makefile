# The verbs of this project. Each makes the environment in .venv first, if it is not there yet.
# The first of these that runs (a name on the path may be a shim that does not) and is new enough.
PYTHON ?= $(shell for each in python3.12 python3.11 python3 python; do \
	$$each -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all test-sglang lint style types bench compiled clean

# Replays the shipped trace on the measured H200 profile.
demo: $(VENV)/.installed
	$(BIN)/hicache replay data/agents.jsonl --scenario data/demo.toml --out results/demo

# Hundreds of processes of the tests import the same sources: what they compile is kept, whatever
# the environment says.
test test-all: export PYTHONDONTWRITEBYTECODE :=

# All tests, with the types beside them, which take one core for a minute; what those say comes last.
# Either one that fails is a failure.
tests_and_types = said=$(VENV)/types-$$$$.txt; \
	$(MAKE) --no-print-directory types >$$said 2>&1 & types=$$!; \
	trap "kill $$types" INT TERM; \
	$(BIN)/pytest -n auto --dist loadfile $(1); tests=$$?; \
	wait $$types; typed=$$?; \
	cat $$said; rm $$said; test $$tests -eq 0 && test $$typed -eq 0

test: $(VENV)/.installed-dev style
	@$(tests_and_types)

# The benchmarks of the hardware as smoke, too: some minutes more.
test-all: $(VENV)/.installed-dev style
	@$(call tests_and_types,-m "")

# Against SGLang's own published classes, on the CPU: its packages come without what they depend on,
# into a folder that is not part of the project. See docs/stores.md.
SGLANG := 0.5.20 0.5.23
test-sglang: $(VENV)/.installed-dev $(SGLANG:%=build/sglang/%) build/sglang/third-party
	for version in $(SGLANG); do \
		HICACHE_SGLANG=$$version HICACHE_COMPILED=0 $(BIN)/pytest -rsx tests/sglang_classes || exit 1; done

build/sglang/third-party: | $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --no-deps --target $@.part peercache==0.8.4 && mv $@.part $@

build/sglang/%: | $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --no-deps --target $@.part sglang==$* && mv $@.part $@

lint: style types

style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/replay_speed.py
	$(BIN)/python benchmarks/preset_speed.py

# The engine through a C compiler, for twice the speed; without one everything runs all the same.
# To be made again after an edit: until then the sources run. See docs/decisions/0009. And the loop
# that reads and writes L3 files, see docs/decisions/0011.
compiled: $(VENV)/.installed
	@$(BIN)/python scripts/compile_loop.py || true
	@$(BIN)/python scripts/compile_engine.py

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	@$(BIN)/python scripts/compile_engine.py || true
	@$(BIN)/python scripts/compile_loop.py || true
	touch $@

# The engine is compiled beside the large libraries' unpacking. Of these few modules are ever
# imported: each is compiled to bytecode when it is, and kept. At Ctrl-C the compiling tidies up.
$(VENV)/.installed-dev: export PYTHONDONTWRITEBYTECODE :=
$(VENV)/.installed-dev: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable '.[fast]'
	@$(BIN)/python scripts/compile_engine.py & compiling=$$!; \
	trap : INT; trap "kill $$compiling" TERM; \
	echo "$(BIN)/pip install --quiet --no-compile --editable '.[dev,hw]'"; \
	$(BIN)/pip install --quiet --no-compile --editable '.[dev,hw]'; installed=$$?; \
	wait $$compiling; exit $$installed
	@$(BIN)/python scripts/compile_loop.py || true
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build results .ruff_cache .hypothesis
