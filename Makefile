# `make` prints the targets. A fresh machine needs Python 3.11 with venv and nothing else.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
DATA   ?= pydocs_passage
OUTPUT_DIR ?= outputs
SEEDS  ?= 5
SLOW_SEEDS ?= 1
AT_ONCE ?= 1
BROWSERS := chromium chromium-browser google-chrome
PYTEST := OMP_NUM_THREADS=1 WANDB_MODE=offline $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10

.DEFAULT_GOAL := help
.PHONY: help demo paper ablations test test-all coverage lint install install-dev browser clean-outputs

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: install  ## set up, train and evaluate all context-free rows on the embedded data, print the results table
	@$(BIN)/python train.py --models $$($(BIN)/python -m lightning_modules.registry) --data $(DATA) --at_once 2
	@$(BIN)/python evaluate.py --data $(DATA) --run_depth 100

paper: install  ## every row of the paper on DATA, SEEDS seeds (BERT rows: SLOW_SEEDS), AT_ONCE steps at a time; resumes where it was interrupted
	@$(BIN)/python train.py --model all --seeds $(SEEDS) --slow_seeds $(SLOW_SEEDS) --at_once $(AT_ONCE) --data $(DATA) --output_dir $(OUTPUT_DIR)

ablations: install  ## measure each design decision of the paper on DATA: the lines of configs/ablations.yaml
	@$(BIN)/python -m pipeline.ablations --at_once $(AT_ONCE) --data $(DATA) --output_dir $(OUTPUT_DIR)

test: install-dev browser lint  ## set up, lint, type check, all tests except the slow ones
	@$(PYTEST) -m "not slow"

test-all: install-dev browser lint  ## test, with the slow tests
	@$(PYTEST)

coverage: install-dev browser  ## the lines of the source that the tests run, subprocesses included
	@$(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered

lint: install-dev  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

install: $(VENV)/.installed  ## .venv with the pinned requirements

install-dev: $(VENV)/.installed-dev  ## install, with the requirements of the tests

# Tests that open a page are skipped without a browser; if CI is set, they fail.
browser:  ## Chromium for tests in a browser, by apt-get as root or with sudo
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	as=; [ "$$(id -u)" = 0 ] || as="sudo -n"; \
	if ! command -v apt-get >/dev/null || ! $$as true 2>/dev/null; then \
	  echo "make: chromium is missing and cannot be installed here; tests in a browser are skipped (they fail if CI is set)"; \
	else \
	  echo "installing chromium with apt-get"; \
	  { $$as apt-get update && $$as apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 </dev/null || \
	  echo "make: apt-get could not install chromium; tests in a browser are skipped (they fail if CI is set)"; \
	fi

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 with venv, or set PYTHON=/path/to/python"; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt | $(VENV)/bin/python
	@echo "installing requirements.txt into $(VENV) (a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

clean-outputs:  ## remove outputs/ (the cache stays)
	@rm -rf outputs
