# Everything that a checkout needs: Python 3.11 or newer with pip and venv, git and make.
#
#   make run                        set up .venv if need be, then run the chase experiment
#   make run ARGS="seed=1"          the same, with arguments for `muxrl launch chase`
#   make test                       all that has to pass: lint, types and every group of tests
#
# PYTHON names the interpreter that .venv is made with: make run PYTHON=python3.12

PYTHON ?= python3
ARGS ?=
# Processes that share the tests: one more than cores, since fault tests wait half of the time.
WORKERS ?= 3

VENV := .venv
BIN := $(VENV)/bin
# Tests are handed out as tests/conftest.py orders and groups them.
PYTEST := $(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
STAMP := $(VENV)/.installed
# Tests start hundreds of processes: each would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test ray lint format types quick packaging faults learning night benchmark docs \
	docs-site constraints release clean

help: ## Shows this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1 /' \
		| while read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## Makes .venv, or brings it up to date.

# The versions are pinned, torch's too: asked for in one command with the rest, pip takes exactly
# that build and does not look for a newer one. What is never imported is not compiled.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "muxrl needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu install the package python3-venv." >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check \
		-c constraints.txt torch -e ".[servers,export,simulations,dev]"
	@touch $@

run: setup ## Launches the chase experiment; more arguments with ARGS="key=value ...".
	$(BIN)/muxrl launch chase $(ARGS)

# What needs one core, or waits, runs beside each other; then all other tests share the workers.
# On the way to those with Ray all tests are imported, which compiles them once for the workers.
test: setup ## Checks everything.
	$(MAKE) --no-print-directory -j 3 --output-sync=target packaging ray types lint
	$(PYTEST) -m "not packaging and not ray and not night"

ray: setup ## Runs the tests that start Ray.
	$(BIN)/pytest -q -m "ray and not night"

lint: setup ## Checks style and formatting.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## Formats the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## Checks types.
	$(BIN)/mypy

quick: setup ## Runs the tests that take seconds.
	$(PYTEST) -m "not learning and not faults and not packaging and not night"

packaging: setup ## Builds wheel and sdist, installs the wheel elsewhere and runs it.
	$(BIN)/pytest -q -m "packaging and not night" tests/packaging

faults: setup ## Runs the tests that start real processes and kill them.
	$(PYTEST) -m faults

learning: setup ## Runs the tests that train and check the result.
	$(PYTEST) -m "learning and not night"

night: setup ## Runs long tests, of what other tests hold in fewer cases.
	$(PYTEST) -m night

benchmark: setup ## Measures the step path; more arguments with ARGS="--rounds 3".
	$(BIN)/python benchmarks/step_path.py $(ARGS)

docs: setup ## Writes docs/config.md, lists of settings, openapi.json and schemas from the source.
	$(BIN)/python -m muxrl.orchestrator.config_reference
	$(BIN)/python -m muxrl.orchestrator.json_schema
	$(BIN)/python -m muxrl.orchestrator.settings_reference
	$(BIN)/python -c 'from muxrl.servers.network.http import document; import json; \
		print(json.dumps(document(), indent=1))' > docs/openapi.json

docs-site: setup ## Builds the site in build/site; a dead link is an error.
	$(BIN)/python docs/build_site.py

# Keeps the header, and writes down what .venv holds. Local version labels such as "+cpu" say where
# a build came from, not which version it is.
constraints: setup ## Pins the versions that .venv holds now.
	{ grep '^#' constraints.txt; $(BIN)/python -m pip freeze --all --disable-pip-version-check \
		--exclude-editable --exclude muxrl --exclude pip \
		| grep -E '^[A-Za-z0-9._-]+==' | sed -E 's/\+[a-z0-9.]+$$//'; } > constraints.txt.new
	mv constraints.txt.new constraints.txt

# The version is pyproject.toml's; tests hold README.md, CHANGELOG.md and CITATION.cff to it.
release: setup ## Builds dist/, checks it as an index would, and says what is left to do.
	rm -rf build dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	@echo "Before the first one: the project's address as [project.urls], and links of README.md"
	@echo "from there. Then: 'make test' and 'make night' on a clean checkout of this commit; a date in"
	@echo "CHANGELOG.md; git tag v$$($(BIN)/python -c 'import muxrl; print(muxrl.__version__)'), and"
	@echo "push it; $(BIN)/twine upload dist/*; 'pip install muxrl' in a new environment; the next"
	@echo "version in pyproject.toml."

clean: ## Removes .venv, caches and build outputs; runs are kept.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
