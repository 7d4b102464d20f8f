# Everything sets itself up: a machine with Python 3.11+, git and make is enough.  `make` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help venv

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*  ## /\1\t/' | expand -t 18

$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "django-distlock needs Python 3.11 or newer; name one: make PYTHON=python3.13 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first one that knows dependency groups
	@touch $@

# One stamp for each dependency group: a second run installs nothing.
$(VENV)/group-%.stamp: $(VENV)/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --group $* --editable .
	@touch $@

venv: $(VENV)/group-test.stamp $(VENV)/group-lint.stamp  ## .venv with what tests and linters need
