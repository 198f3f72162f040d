# The words of this project's daily work. `make demo` and `make test` need nothing but Python 3.11 or newer and make.

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

# The tests start hundreds of processes; without its bytecode each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-deepagents test-floor soak check dist docs bench format pins clean

# One stamp file says that .venv has what the pinned requirements ask for.
$(BIN)/.ready: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agentgit needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# The server of LangGraph, for the tests that run it: it needs other versions than .venv has.
.venv-host/.ready: requirements/host.txt
	$(PYTHON) -m venv --clear .venv-host
	.venv-host/bin/pip install --quiet --disable-pip-version-check --requirement requirements/host.txt
	@touch $@

demo: $(BIN)/.ready
	@$(BIN)/agentgit demo

# A few variants of each test, without what takes long.
CHOICE ?= not long
test: $(BIN)/.ready
	$(BIN)/pytest -n $(WORKERS) -m "$(CHOICE)"

# Everything but the soak.
test-all: test-deepagents test-floor .venv-host/.ready
	$(MAKE) test CHOICE="not soak"

# What only repeats the other tests: STEPS of random sessions and KILLS at random, kills at each moment, every variant on
# both databases. It takes hours. The first lines of each run name its SEED.
STEPS ?= 10000
KILLS ?= 400
SEED ?=
export STEPS KILLS SEED
soak: $(BIN)/.ready
	$(BIN)/pytest -n $(WORKERS) -m soak --timeout=0

# The tests of sessions of deepagents, whose packages are kept apart, so that they change no pinned version.
test-deepagents: $(BIN)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .deepagents -r requirements/deepagents.txt
	PYTHONPATH=.deepagents $(BIN)/pytest tests/deep_agents

# A short selection with the oldest LangGraph of the range in pyproject.toml; all other tests run with the newest.
test-floor: $(BIN)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .floor -r requirements/floor.txt
	PYTHONPATH=.floor $(BIN)/pytest -m "not long and not soak" \
		tests/agents/test_graph.py tests/agents/test_agent_as_graph.py tests/agents/test_answers.py tests/store/test_saver.py

check: $(BIN)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What a release uploads; CONTRIBUTING.md has the steps around it.
dist: $(BIN)/.ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

docs: $(BIN)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(BIN)/.ready
	$(BIN)/python -m bench

format: $(BIN)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Resolve the newest versions that fit together, and pin them (without the address of any index).
pins:
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --upgrade --editable ".[dev]"
	$(BIN)/pip list --format=freeze --exclude-editable --exclude pip --exclude setuptools > requirements/dev.txt
	$(PYTHON) -m venv --clear .venv-host
	.venv-host/bin/pip install --quiet --upgrade ".[server]" langchain "langgraph-cli[inmem]"
	.venv-host/bin/pip list --format=freeze --exclude agentgit --exclude pip --exclude setuptools > requirements/host.txt

clean:
	rm -rf .venv .venv-host .deepagents .floor dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
