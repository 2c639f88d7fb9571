# Every target starts from a bare clone with Python 3.11 or newer, make and git, and may be
# repeated: what is installed is remembered in stamp files inside .venv, which pyproject.toml makes
# stale. Where packages come from is pip's own settings' business.

PYTHON ?= python3
# Test processes at a time. Many tests wait, so that four keep two cores busy: the last one begins
# with tests that compute, see tests/conftest.py.
WORKERS ?= 4
# The release that the tests were run with; pyproject.toml says which others will do.
TORCH ?= torch==2.13.0
# The campaign's length in minutes.
MINUTES ?= 10

# The tests start redline many hundreds of times, and compiling it takes longer than the rest of a
# start: what is compiled is kept even if the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
VENV := .venv/.stamp-venv
CORE := .venv/.stamp-core
ENGINE := .venv/.stamp-engine
TESTS := .venv/.stamp-test
SERVERS := .venv/.stamp-servers
SOURCES := $(wildcard src tests bench examples)
FAST := $(wildcard tests/unit tests/property tests/test_architecture.py)

.DEFAULT_GOAL := help
.PHONY: help install install-engine install-test demo engine-demo test test-slow test-failed check check-style check-types check-fast bench campaign clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target text; do printf '%-20s %s\n' "$$target" "$$text"; done

install: $(CORE) ## make .venv with redline in it, editable

install-engine: $(ENGINE) ## add the local engine, with PyTorch, to the same .venv

engine-demo: $(ENGINE) ## train a small model, serve it, ask it; a few minutes the first time
	@$(BIN)/python examples/engine_demo.py

install-test: $(TESTS) ## add what the tests, checks and benchmarks need

demo: $(CORE) ## run the main job on examples/, kill it half-way, resume, verify
	@$(BIN)/python examples/demo.py

test: $(TESTS) ## run every test but the slow ones
	@$(BIN)/python -m pytest -n $(WORKERS) --durations 15 -m 'not slow' tests

test-slow: $(TESTS) ## run the slow tests
	@$(BIN)/python -m pytest -n $(WORKERS) --durations 15 -m slow tests

# With none on record, whatever ended the tests was no test, and pytest's status is 5.
test-failed: $(TESTS) ## run the tests that failed last again, one at a time
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none tests

check: $(TESTS) ## format, lint, types, structure and fast tests
	@$(MAKE) --no-print-directory --keep-going -j 2 check-types check-fast check-style

check-style: $(TESTS)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)

check-types: $(TESTS)
	@$(BIN)/mypy --strict src

check-fast: $(TESTS)
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m 'not slow' $(FAST)

# One that misses its bar does not keep the others from being measured.
bench: $(TESTS) ## run every benchmark and update docs/benchmarks*.md; about five hours
	-@$(BIN)/python bench/run.py
	-@$(BIN)/python bench/stages.py
	-@$(BIN)/python bench/journal.py
	-@$(BIN)/python bench/scale.py
	-@$(BIN)/python bench/connections.py
	-@$(BIN)/python bench/soak.py
	-@$(BIN)/python bench/transports.py
	-@$(BIN)/python bench/server.py
	-@$(BIN)/python bench/relay.py
	-@$(BIN)/python bench/opcodes.py
	-@$(BIN)/python bench/opcodes.py --instructions 4294e90 . --most 0.65
	-@$(BIN)/python bench/versions.py 4294e90 --most 0.65
	-@$(BIN)/python bench/article.py
	-@$(BIN)/python bench/memory.py
	-@$(BIN)/python bench/limits.py
	-@$(BIN)/python bench/tokens.py
	-@$(BIN)/python bench/search.py
	-@$(BIN)/python bench/concurrency.py
	-@$(BIN)/python bench/waiters.py
	-@$(BIN)/python bench/route.py
	-@$(BIN)/python bench/route_real.py
	-@$(BIN)/python bench/pool_cost.py
	-@$(BIN)/python bench/failures.py
	-@$(BIN)/python bench/scaling.py
	-@$(BIN)/python bench/binds.py
	-@$(BIN)/python bench/predict.py
	-@$(BIN)/python bench/throughput.py
	-@$(BIN)/python bench/show.py
	-@$(BIN)/python bench/recorder.py
	-@$(BIN)/python bench/gateway.py
	-@$(BIN)/python bench/engine.py
	@$(BIN)/python bench/report.py

campaign: $(TESTS) ## run one long test: make campaign NAME=... MINUTES=10
	@test -n "$(NAME)" || { echo "error: which campaign? make campaign NAME=... MINUTES=10" >&2; exit 2; }
	@$(BIN)/python bench/campaign.py "$(NAME)" --minutes "$(MINUTES)"

clean: ## remove caches and what demo and builds left; .venv stays
	@rm -rf build dist demo-out .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# An interrupted install leaves no stamp, so the next make repeats it.
$(VENV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: redline needs Python 3.11 or newer; try: make PYTHON=python3.11 ..." >&2; exit 2; }
	@echo "making .venv"
	@$(PYTHON) -m venv .venv
	@touch $@

$(CORE): pyproject.toml | $(VENV)
	@echo "installing redline and its core dependencies into .venv"
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable .
	@touch $@

# PyTorch first, so that nothing else chooses its build.
$(ENGINE): pyproject.toml $(CORE)
	@echo "installing the engine and PyTorch into .venv"
	@$(PIP) install '$(TORCH)'
	@$(PIP) install --editable '.[engine]'
	@touch $@

$(TESTS): pyproject.toml $(CORE) $(ENGINE) | $(SERVERS)
	@echo "installing the extras and tools the tests need"
	@$(PIP) install --editable '.[parquet,zst,hf,metrics,otel,redis,report,s3,schema,synth,tokens]' --group dev
	@touch $@

# Real servers for the tests: of shared limits, of proxies, of metrics; wrk, a client of our own
# server; a terminal for the live view; a browser and axe-core for pages. Without them those tests
# are skipped, but for axe-core, which the tests of pages need where there is a browser.
$(SERVERS): | $(VENV)
	@missing=; for program in chromium prometheus redis-server squid tinyproxy tmux wrk; do \
		PATH="$$PATH:/usr/sbin" command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	test -z "$$missing" || { \
		echo "installing$$missing for the tests"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null 2>&1 || \
		echo "note:$$missing cannot be installed here; the tests that need one are skipped"; }
	@command -v npm >/dev/null || DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends npm >/dev/null 2>&1 || true
	@npm install --silent --no-save --prefix .venv/node axe-core@4 >/dev/null 2>&1 || \
		echo "note: axe-core cannot be installed here; with chromium, the tests of pages fail"
	@touch $@
