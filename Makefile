# Everything a newcomer needs: `make install`, `make demo`, `make test`, `make lint`, `make bench`, `make clean`.
# The first call makes .venv from $(PYTHON) and installs requirements.lock into it, torch's CUDA build among it, and
# nothing else: what that build declares of NVIDIA's libraries is 2.5 GB, and the virtual card stands in for it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps
PYTEST_WORKERS ?= 4
OUT ?= demo-out
# Compiles the virtual card where the machine has no compiler, and for other machines than this.
ZIG := ziglang==0.17.1

# One thread a process: the tests and probes run side by side.
export OMP_NUM_THREADS ?= 1

.PHONY: install card demo test test-torch test-triton test-slurm lint format bench docs options pictures dist clean

install: $(STAMP)

$(STAMP): pyproject.toml requirements.lock hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "oomscope needs Python 3.11 or newer; say which: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.lock
	@$(BIN)/python -c 'import sys; from oomscope.virtual.build import own_compiler; sys.exit(not own_compiler())' \
		|| $(PIP) $(ZIG)
	$(PIP) --no-build-isolation -e .
	@$(BIN)/python -m compileall -q oomscope # once, where processes may not keep what they compile
	@touch $@

# Compiles what changed in oomscope/virtual/csrc since the last time.
card: $(STAMP)
	@case "$$(uname)" in Linux) $(BIN)/python -m oomscope.virtual.build;; esac

demo: card
	$(BIN)/python -m oomscope demo $(OUT) --force

# What Python and pytest compile is kept, whatever the environment says: every process compiles it again otherwise.
test: card
	@$(BIN)/python -m compileall -q oomscope tests
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal

# The virtual card under another torch: make test-torch VERSION=2.11.0. All but torch comes from .venv. With NVIDIA=1 it
# finds some of NVIDIA's wheels installed, none of which may be called.
OTHER := .venv-torch-$(VERSION)
test-torch: card
	@test -n "$(VERSION)" || { echo "which torch? make test-torch VERSION=2.11.0" >&2; exit 1; }
	@test -f $(OTHER)/.installed || { \
		$(PYTHON) -m venv $(OTHER) \
		&& $(OTHER)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps torch===$(VERSION) \
		&& $(BIN)/python -c 'import os, sysconfig; print(sysconfig.get_path("purelib"), os.getcwd(), sep="\n")' \
			> "$$($(OTHER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/others.pth" \
		&& touch $(OTHER)/.installed; }
	@test -z "$(NVIDIA)" || $(OTHER)/bin/python -m tests.nvidia_wheels
	$(OTHER)/bin/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal tests/unit/virtual \
		tests/integration/test_virtual_card.py tests/integration/test_programs.py::test_what_is_an_answer \
		tests/conformance/test_megatron_memory.py

# Triton, torch.compile: with the Triton that torch declares, a wheel of 200 MB that the lock leaves out.
TRITON := .venv-triton
test-triton: card
	@test -f $(TRITON)/.installed || { $(PIP) --target $(TRITON) "$$($(BIN)/python -c 'from importlib.metadata import \
		requires; print(next(each.partition(";")[0] for each in requires("torch") if each.startswith("triton")))')" \
		&& touch $(TRITON)/.installed; }
	PYTHONPATH=$(CURDIR)/$(TRITON) $(BIN)/python -m pytest tests/unit/virtual/test_card_triton.py \
		tests/integration/test_compiled.py

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
	$(BIN)/python -m docs.build.configuration docs
	$(BIN)/python -m docs.build.commands docs

# Probes every example on the page of options, which takes some minutes.
options: $(STAMP)
	$(BIN)/python -m docs.build.options docs

# Draws the pictures of the documentation again; needs chromium.
pictures: card
	$(BIN)/python -m docs.build.pictures docs

# A release: the sdist, a wheel for each kind of Linux that torch's own wheels run on, with the virtual card compiled by
# zig, and one for any other machine, without the card.
dist: $(STAMP)
	$(PIP) $(ZIG)
	rm -rf dist
	$(BIN)/python -m hatchling build --target sdist --directory dist
	for target in x86_64-linux-gnu.2.28 aarch64-linux-gnu.2.28 none; do \
		OOMSCOPE_CARD_TARGET=$$target $(BIN)/python -m hatchling build --target wheel --directory dist || exit 1; done

clean:
	rm -rf $(VENV) .venv-torch-* $(TRITON) $(OUT) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		oomscope/virtual/lib
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
