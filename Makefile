# hloscope: `make run` and `make test` need only Debian's python3 (3.11 or newer), pip and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := runs
LEDGER := $(RUNS)/train_step.ledger
LINKS := $(addprefix typings/hloscope/,core lsp tui bisect)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test lint typecheck bench doc clean

help:
	@echo "make run        compile a JAX training step with XLA:CPU and open the dashboard on it"
	@echo "make test       run the tests"
	@echo "make lint       ruff"
	@echo "make typecheck  pyright"
	@echo "make bench      the benchmarks"
	@echo "make doc        write the generated pages of docs/ again"
	@echo "make clean      remove what the targets above made"

# The environment, made once. Debian without python3-venv has no ensurepip: the system's pip then brings the first pip.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "hloscope needs Python 3.11 or newer as '$(PYTHON)'; name another with make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --quiet --disable-pip-version-check --python $(BIN)/python install pip; } || { \
	  echo "cannot make $(VENV): install python3-venv (or python3-pip) and try again" >&2; exit 1; }
	@touch $@

# Installed in place (edits need no second install); again when the dependencies may have changed.
GRAMMAR := core/text/grammar/binding.c core/text/grammar/src/parser.c core/text/grammar/src/scanner.c

$(VENV)/.installed: pyproject.toml setup.py $(GRAMMAR) | $(VENV)/.made
	@echo "installing hloscope and what it needs into $(VENV) (about 700 MB with jaxlib, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml setup.py $(GRAMMAR) | $(VENV)/.made
	@echo "installing hloscope, what it needs and the developer's tools into $(VENV) (about 900 MB with jaxlib, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(VENV)/.installed $@

# Type checkers cannot see setuptools' mapping of folders to packages; these links show it to them.
typings/hloscope/%: | %
	@mkdir -p $(@D)
	@ln -sfn ../../$* $@

setup: $(VENV)/.installed-dev $(LINKS)

run: $(VENV)/.installed
	@mkdir -p $(RUNS)
	@$(BIN)/hloscope capture --force -o $(LEDGER) -- $(BIN)/python examples/train_step.py
	@$(BIN)/hloscope open $(LEDGER)
	@stage=$$($(BIN)/hloscope passes $(LEDGER) --jsonl --filter 'delta<0' --sort delta --limit 1 2>/dev/null \
	  | sed -n 's/.*"index": \([0-9]*\),.*/\1/p'); \
	echo; \
	echo "The ledger is $(LEDGER). Try next:"; \
	echo "  $(BIN)/hloscope diff $(LEDGER) --stage $${stage:-1}"; \
	echo "  $(BIN)/hloscope copies $(LEDGER)"; \
	echo "  $(BIN)/hloscope buffers $(LEDGER)"

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -n auto --dist loadfile

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .

typecheck: $(VENV)/.installed-dev $(LINKS)
	@$(BIN)/python .ci/typecheck.py

bench: $(VENV)/.installed-dev
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

doc: $(VENV)/.installed
	@$(BIN)/python -m hloscope.core.ledger.schema_doc docs/ledger.md

clean:
	rm -rf $(VENV) $(RUNS) typings build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
