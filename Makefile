# Every target sets up what it needs; the stamp keeps a second run from doing it again.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Processes of the tests, 2 GiB each. The tests of a file stay together, since they share what they load.
WORKERS ?= 2

.PHONY: setup verify test test-slow lint type bench clean

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "deepinfer needs Python 3.11 or newer: run make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable ".[dev]"
	mkdir -p .links && ln -sfn .. .links/deepinfer
	touch $@

verify: setup
	$(BIN)/deepinfer verify

test: lint type
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: setup
	$(BIN)/pytest -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup
	$(BIN)/mypy

bench: setup
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python -P "$$script" || exit 1; done

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -not -path './.links/*' -prune -exec rm -rf {} +
