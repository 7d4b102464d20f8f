# Everything sets itself up: a machine with Python 3.11+, git and make is enough.  `make` lists the targets.
PYTHON ?= python3
# Another Django than the newest one has a virtualenv of its own: make test PYTHON=python3.13 DJANGO=6.0
DJANGO ?=
VENV := .venv$(if $(DJANGO),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')-django$(DJANGO))
BIN := $(VENV)/bin
SERVICES := $(BIN)/python -m tests.support.services
# For targets that should not create a virtualenv first.
ANY_PYTHON = $(or $(wildcard $(BIN)/python),$(PYTHON))

# What the demo runs on, whether it goes on serving, and where the servers come from.
DB ?= sqlite
SERVE ?= 1
COMPOSE ?=
ARGS ?=
TIER ?= 1
QUICK ?=
# Of `make chaos`, for all engines together; SEED is its own too.
MINUTES ?= 10
SEED ?=
# MYSQL=1: Oracle's MySQL in MariaDB's place.
MYSQL ?=
export DISTLOCK_MYSQL = $(MYSQL)
ifeq ($(filter 1 2 all,$(TIER)),)
$(error TIER=$(TIER) is not one of: 1 2 all)
endif

# Programs that are started hundreds of times must not be compiled each time; `make clean` removes what this writes.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(filter sqlite postgres mariadb,$(DB)),)
$(error DB=$(DB) is not one of: sqlite postgres mariadb)
endif

.DEFAULT_GOAL := help
.PHONY: help venv demo test coverage debian13 chaos mutants bench services services-down services-status packages browser chromium gettext lint format messages docs release-check wheel clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*  ## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/group-demo-$(DB).stamp  ## replay and serve the demo: DB=sqlite|postgres|mariadb, SERVE=0 ends after the replay
	@DB=$(DB) $(if $(filter sqlite,$(DB)),,DISTLOCK_SERVERS=$(DB) $(SERVICES) run) \
	  $(BIN)/python testproject/manage.py demo $(if $(filter 0,$(SERVE)),--no-serve)

test: $(VENV)/group-test.stamp  ## the suite on private servers: TIER=1|2|all, ARGS="-k name" goes to pytest, MYSQL=1 replaces MariaDB, DJANGO=6.0 takes that one
	@$(SERVICES) run $(BIN)/python -m tests.support.gate --tier $(TIER) $(ARGS)

coverage: $(VENV)/group-test.stamp $(VENV)/group-coverage.stamp  ## which lines and branches of the package the tests run, in all processes: TIER=1|2|all; build/coverage/html shows them
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(SERVICES) run $(BIN)/python -m tests.support.gate --tier $(TIER) --coverage $(ARGS); code=$$?; \
	  $(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet && $(BIN)/coverage report; exit $$code

chaos: $(VENV)/group-test.stamp  ## faults at random on every engine, and what they did: MINUTES=10, SEED=7, ARGS="--engines redis"
	@$(SERVICES) run $(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: $(VENV)/group-test.stamp  ## faults put into the library one at a time, which the tests must notice; ARGS="-k redis"
	@$(SERVICES) run $(BIN)/python -m tests.mutants $(ARGS)

debian13:  ## as root: the last commit's demo and first tier on a newcomer's Debian 13, made by debootstrap
	@bash .ci/debian13 'make demo SERVE=0' 'make test ARGS="$(ARGS)"'

bench: $(VENV)/group-bench.stamp  ## side by side with the peers and the bare drivers; QUICK=1 the ratios that matter, in two minutes; ARGS="--group postgres"
	@$(SERVICES) run $(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(ARGS)

services: $(VENV)/pip.stamp  ## install and start private servers; COMPOSE=mariadb|mysql takes containers instead
	@$(if $(COMPOSE),$(SERVICES) compose $(filter mariadb mysql,$(COMPOSE)),\
	  $(BIN)/python -m tests.support.services.packages servers && $(SERVICES) up)

services-down:  ## stop them and remove their data
	@$(ANY_PYTHON) -m tests.support.services down

services-status:  ## what runs, and where
	@$(ANY_PYTHON) -m tests.support.services status

lint: $(VENV)/group-lint.stamp  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

format: $(VENV)/group-lint.stamp  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Neither dates nor line numbers: the catalogs change when their texts do.
messages: $(VENV)/group-lint.stamp | gettext  ## bring the translations up to date with the texts, and compile them
	cd django_distlock && $(abspath $(BIN))/django-admin makemessages --all --no-location --no-obsolete
	sed -i '/^"POT-Creation-Date:/d' django_distlock/locale/*/LC_MESSAGES/django.po
	cd django_distlock && $(abspath $(BIN))/django-admin compilemessages

docs: $(VENV)/group-docs.stamp  ## build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

release-check: $(VENV)/group-release.stamp  ## before a release: sdist, wheel, metadata, links, workflows, and a smoke test of the wheel on each database; QUICK=1 only on SQLite
	@$(if $(QUICK),,$(SERVICES) run) $(BIN)/python -m tests.support.release $(if $(QUICK),sqlite)

wheel: $(VENV)/pip.stamp  ## build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

venv: $(VENV)/group-test.stamp $(VENV)/group-lint.stamp  ## .venv with what tests and linters need

clean: services-down  ## stop the servers and remove everything that was made, .venv included
	rm -rf $(VENV) .venv-* .services .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist docs/_build testproject/var
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: one stamp for each thing installed, so that a second run installs nothing

$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "django-distlock needs Python 3.11 or newer; name one: make PYTHON=python3.13 ..." >&2; exit 1; }
	@$(PYTHON) -m tests.support.services.packages venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first one that knows dependency groups
	@touch $@

$(VENV)/group-%.stamp: $(VENV)/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --group $* --editable . $(if $(DJANGO),'Django~=$(DJANGO).0')
	@touch $@

# What these groups need beside Python: the servers, and a compiler for mysqlclient.
$(VENV)/group-test.stamp $(VENV)/group-bench.stamp $(VENV)/group-release.stamp $(VENV)/group-demo-postgres.stamp $(VENV)/group-demo-mariadb.stamp: \
  | packages
$(VENV)/group-demo-postgres.stamp: export DISTLOCK_SERVERS = postgres
$(VENV)/group-demo-mariadb.stamp: export DISTLOCK_SERVERS = mariadb
packages: $(VENV)/pip.stamp
	@$(BIN)/python -m tests.support.services.packages servers mysqlclient

# The demo needs no browser, and neither does the bench. tests/support/axe.py says which version of the accessibility engine.
$(VENV)/group-test.stamp: | browser gettext $(VENV)/typescript.stamp
browser: $(VENV)/axe.stamp
$(VENV)/axe.stamp: tests/support/axe.py | chromium
	npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix $(VENV)/axe \
	  axe-core@$$(sed -n 's/^VERSION = "\(.*\)"/\1/p' $<)
	@touch $@
# Checks the types of distlock.js, with the version in the test; npm comes with the browser.
$(VENV)/typescript.stamp: tests/browserlocks/pages/test_script.py | chromium
	npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix $(VENV)/typescript \
	  typescript@$$(sed -n 's/^VERSION = "\(.*\)"/\1/p' $<)
	@touch $@
chromium: $(VENV)/pip.stamp
	@$(BIN)/python -m tests.support.services.packages browser
gettext: $(VENV)/pip.stamp
	@$(BIN)/python -m tests.support.services.packages gettext
