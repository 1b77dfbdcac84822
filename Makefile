# Every target sets up what it needs: Python 3.11 or later, git and make are enough.
RECENT := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(firstword $(foreach p,python3.11 python3,$(shell $(p) $(RECENT) 2>/dev/null && echo $(p))))
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
ZOO := ../shared/zoo/score.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test wide fast lint format types layers docs bench zoo build clean

help: ## what there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup: $(READY) ## make the virtual environment

$(READY): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) $(RECENT) || { echo "tiebeam needs Python 3.11 or later: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing PyTorch, JAX, TensorFlow and the tools into $(VENV): about 4 GB, several minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -c constraints.txt --group dev -e '.[transformers,demo]'
	@touch $@

demo: $(READY) ## a broken model seen, mended and trained
	$(BIN)/tiebeam demo

# The whole is to take 15 minutes on two ordinary cores, the quick part one; what fails is a run that takes that long on cores
# half as fast.
test: $(READY) ## tests and doctests, a process for each framework
	$(PYTEST) --budget 1800 -m 'not wide'

wide: $(READY) ## the sweeps that `make test` leaves out
	$(PYTEST) -m wide

fast: $(READY) ## the quick tests of PyTorch and of what needs no framework, under a minute
	$(PYTEST) --backends torch --budget 120 -m 'not slow and not zoo and not wide'

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

layers: $(READY) ## import-linter
	$(BIN)/lint-imports --no-logo

docs: $(READY) ## build the documentation; a warning is an error
	$(BIN)/sphinx-build -q -n -W --keep-going -b html docs docs/_build/html

bench: $(READY) ## the ratios that performance is judged by, on one thread
	@set -e; for script in benchmarks/bench_*.py; do OMP_NUM_THREADS=1 $(BIN)/python $$script; done

zoo: $(READY) ## score against the architectures of ../shared, where it is there
	@if [ -f $(ZOO) ]; then $(BIN)/python $(ZOO) --init $(ZOO_ARGS); else echo "$(ZOO) is not there: nothing to score"; fi

build: $(READY) ## wheel and source archive in dist/
	$(BIN)/python -m build

clean: ## everything that can be made again, the environment excepted
	rm -rf dist docs/_build docs/generated .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
