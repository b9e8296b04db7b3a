# Every command sets itself up: .venv is made on first use, and made again when the packaging files change.
# Choose the Python with `make PYTHON=python3.12 test`; pass options with `make ARGS="-k noise" test`.

# Compiled modules are kept: without them each start of the program takes a third longer, and each test process 12 s.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
ARGS ?=
MARKERS ?= not slow
PYTEST = $(VENV)/bin/pytest -n auto --maxprocesses 8 --dist loadgroup

# The newest Python from 3.11 on that can make a virtual environment. Looked for only when the environment is made.
USABLE = import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach name,python3.13 python3.12 python3.11 python3 python,\
            $(shell $(name) -c '$(USABLE)' >/dev/null 2>&1 && echo $(name))))
READY = $(VENV)/.ready

.PHONY: help install demo test lint format tables site bench bench-peers flink-test clean
.DEFAULT_GOAL := help

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

install: $(READY) ## make .venv with the package (editable) and all that development needs

$(READY): pyproject.toml setup.py
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or newer with the venv module" \
	    "(on Debian and Ubuntu: apt-get install python3-venv), or name one: make PYTHON=..." >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON): a few minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## simulate two days of events, count them privately, show the largest, what rose and what was missed
	$(VENV)/bin/privstream demo $(ARGS)

test: $(READY) ## the quick tests; MARKERS= runs all of them
	$(PYTEST) -m "$(MARKERS)" $(ARGS)

lint: $(READY) .cache/typing ## formatting, lint and strict types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# What an editable install maps by an import hook, as links for mypy and mkdocstrings.
.cache/typing:
	@mkdir -p $@/privstream
	@ln -sfn ../../../mechanisms ../../../transforms ../../../pipelines $@/privstream/

format: $(READY) ## format and repair what ruff can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

tables: $(READY) ## write the tables of the documentation from the descriptions of the questions
	$(VENV)/bin/python docs/tables.py

site: $(READY) .cache/typing ## the documentation as a site, in .cache/site; fails at a broken link
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict
	@echo "Open .cache/site/index.html; with the search: $(VENV)/bin/python -m http.server --bind 127.0.0.1 --directory .cache/site"

bench: $(READY) ## what must still hold, in 30 minutes; ARGS=--quick in 2; results go to benchmarks/results
	$(VENV)/bin/pip install --quiet --editable '.[dev,bench]'
	$(VENV)/bin/python benchmarks/gates.py $(ARGS)

bench-peers: $(READY) ## counts of 20 million events compared with DuckDB, by one process and by two
	$(VENV)/bin/python benchmarks/cores.py $(ARGS)

flink-test: $(READY) ## the tests on Flink; needs Java and Maven
	PYTHON=$(VENV)/bin/python deploy/get_flink_job_server.sh
	PRIVSTREAM_REQUIRE_RUNNERS=1 $(VENV)/bin/pytest -m flink $(ARGS)

clean: ## remove everything that these commands made
	rm -rf $(VENV) .cache .ruff_cache .hypothesis build dist privstream.egg-info demo-output
	find mechanisms transforms pipelines tests benchmarks deploy -name __pycache__ -type d -prune -exec rm -rf {} +
