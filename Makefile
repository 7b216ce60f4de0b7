# Two commands for a stranger: `make demo` and `make test`. Each makes its own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FOR_LONG := $(VENV)/.for-long
WITH_DOCS := $(VENV)/.with-docs
# Tests at a time; JOBS=0: in one process. Quick tests wait for processes a third of their time, so
# there are three for two cores; they are handed out by the file, since files share what they set up,
# in order, since those with the fewest tests take longest. Long ones are handed out singly, since one
# file holds an hour of them, but those on Ray together.
CORES := $(shell nproc 2>/dev/null || echo 2)
test: JOBS ?= $(shell expr $(CORES) \* 3 / 2)
test-long: JOBS ?= $(CORES)
# A process that a test has ended is replaced once, so that a test that always hangs ends the run.
IN_PARALLEL = -n $(JOBS) --maxprocesses 8 --max-worker-restart 1

# Tests start a hundred interpreters, which would compile the package anew each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long test-soak lint types docs bench clean

demo: $(READY)
	$(BIN)/unisono demo --out demo-run

test: $(READY)
	$(BIN)/python -m pytest $(IN_PARALLEL) --dist loadfile --no-loadscope-reorder

test-long: $(READY) $(FOR_LONG)
	$(BIN)/python -m pytest $(IN_PARALLEL) --dist loadscope -m long

# The same tests with twenty times the schedules, repetitions and kills: hours.
test-soak: export UNISONO_SOAK = 20
test-soak: test-long

lint: $(READY)
	$(BIN)/ruff check src tests examples benchmarks tools
	$(BIN)/ruff format --check src tests examples benchmarks tools
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# Not --quiet, which hides the warnings from --strict.
docs: $(READY) $(WITH_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "built: site/index.html; with its search: $(BIN)/python -m http.server --directory site"

bench: $(READY)
	$(BIN)/unisono bench --learners 2

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Unisono needs Python 3.10 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
	@touch $(READY)

# 800 MB that only the long tests need: Ray, a driver for the chromium on the PATH, and libraries of
# data. Without them their tests are skipped. MPICH has a folder of its own, beside Open MPI.
$(FOR_LONG): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt lightning-fabric -e '.[cluster,browser,lhotse,huggingface,onnx]'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --prefix $(VENV)/mpich mpich
	@touch $(FOR_LONG)

# What only the documentation needs.
$(WITH_DOCS): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $(WITH_DOCS)

clean:
	rm -rf $(VENV) demo-run site build dist .mypy_cache .pytest_cache .ruff_cache
