# Everything a newcomer needs: `make demo`, `make test`, `make lint`, `make bench`, `make clean`.
# The first call makes .venv from $(PYTHON) and installs the pinned versions of constraints.txt into it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_WORKERS ?= 2
OUT ?= demo-out

# One thread a process: the tests and probes run side by side.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slurm lint format bench docs options clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "oomscope needs Python 3.11 or newer; say which: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m compileall -q oomscope # once, where processes may not keep what they compile
	@touch $@

demo: $(STAMP)
	$(BIN)/python fixtures/demo/demo.py --out $(OUT)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal

# Against a Slurm of one node, which it starts and ends; as root, with Debian's packages slurm-wlm and munge.
test-slurm: $(STAMP)
	OOMSCOPE_TEST_SLURM=1 $(BIN)/python -m pytest tests/slurm

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# Pages that are generated from the code; a test fails while one of them is stale.
docs: $(STAMP)
	$(BIN)/python -m oomscope.config.reference docs
	$(BIN)/python -m oomscope.cli.reference docs

# Probes every example on the page of options, which takes some minutes.
options: $(STAMP)
	$(BIN)/python -m oomscope.probe.option_page docs

clean:
	rm -rf $(VENV) $(OUT) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
