# make train    set everything up, then train a small GPT through a 4-stage pipeline on this CPU
# make test     set everything up, then run the tests
# make lint     format check, lint and types
# make check    exactly what CI runs
# make format   rewrite the sources as ruff wants them
# make clean    remove the environments and caches that the targets above made
#
# PYTHON=/path/to/python3.13 chooses another Python, CONFIG=configs/x.yaml another run,
# ARGS="--optimizer.learning_rate 1e-3" adds arguments to `make train` or `make test`.

PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/gpt_tiny.yaml
ARGS ?=
# Compiling, most of the time of the tests, takes one core; more workers want more memory.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help train test lint check format clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,9p'

# An environment is up to date when its stamp is newer than pyproject.toml.
$(VENV)/.installed-%: pyproject.toml scripts/setup.sh
	@bash scripts/setup.sh "$(PYTHON)" "$(VENV)" "$*"

train: $(VENV)/.installed-train
	$(VENV)/bin/python -m train.pretrain $(CONFIG) $(ARGS)

test: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest --numprocesses $(WORKERS) $(ARGS)

lint: $(VENV)/.installed-test $(VENV)/.installed-lint
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

check:
	@bash scripts/check.sh

format: $(VENV)/.installed-lint
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf .venv .venv-newest .cache
