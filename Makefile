# `make venv` needs Python 3.11 or newer and nothing else; PYTHON=… picks another interpreter. Everything takes half as
# long again with a Python that was built without optimisations, as pyenv builds it: then the system's own is taken.
PYTHON ?= $(shell python3 -c '$(OPTIMISED)' 2>/dev/null || ! /usr/bin/python3 -c '$(USABLE)' 2>/dev/null \
	&& echo python3 || echo /usr/bin/python3)
OPTIMISED := import sys, sysconfig; sys.exit("--enable-optimizations" not in sysconfig.get_config_var("CONFIG_ARGS"))
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
BIN := .venv/bin
# Dozens of programs start here, so bytecode is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE =

.PHONY: venv programs up demo test most test-more more times test-long test-slow-disk mutation containers check docs lock clean

venv: .venv/installed

# Everything comes from the lock, hashes checked; the project itself is built with the locked backend. uv installs in a
# tenth of pip's time; where it cannot, because only pip knows the way to a registry, pip does.
.venv/installed: requirements-dev.lock pyproject.toml client/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Perennial needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "This Python cannot make a virtual environment (on Debian: apt install python3-venv)"; exit 1; }
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/# via/p' requirements-dev.lock > .venv/uv.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.lock \
		|| $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . -e ./client
	@touch $@

# A browser for the tests of the dashboard, and Prometheus for those of alerts. Where they are missing, root of a Debian
# gets them; else the tests say that they are skipped. Prometheus itself is not started (RUNLEVEL=1).
programs:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null && missing= && break || missing=" chromium fonts-dejavu-core"; \
	done; \
	command -v prometheus >/dev/null && command -v promtool >/dev/null || missing="$$missing prometheus"; \
	[ -z "$$missing" ] && exit; \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
		&& RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null \
		|| echo "Missing, and could not be installed, so that tests are skipped (on Debian: apt install):$$missing"

# On another port: make up PORT=9000
up: venv
	$(BIN)/perennial up $(if $(PORT),--port $(PORT))

demo: venv
	$(BIN)/python -m demo

# Each process has servers of its own; tests of one file stay together, and those of pages, which share a browser. Most of
# the tests wait half of the time, for a lease, a tick or another process: so there are three processes for each of two
# cores. Before them, and beside the lint, all modules of tests are compiled, once instead of in each process.
PYTEST := $(BIN)/python -m pytest --numprocesses 6 --dist loadfile --no-loadscope-reorder
test:
	$(MAKE) --no-print-directory --jobs 2 venv programs
	$(MAKE) --no-print-directory --jobs 2 check most

most: venv
	-$(BIN)/python -m pytest --collect-only -q > /dev/null
	$(PYTEST) -m "not alone and (not more or kept)"

# All that `make test` leaves out and every landing needs: tests of times, while nothing else runs; whole journeys through
# what other tests take part by part; and further cases of those.
test-more: venv programs times more

more: venv
	$(PYTEST) -m "more and not kept"

times: venv
	$(BIN)/python -m pytest -m alone

# The rest: exhaustive cases, long attacks and histories, every planted bug, and a sample of mutants. It takes hours.
test-long: test-more
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --long
	$(BIN)/python -m pytest --numprocesses 2 --dist load --planted tests/guarantees/test_planted.py
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --timeout 7200 tests/faults tests/api/test_mutations.py \
		--kills 200 --failovers 30 --restores 50 --histories 300 --mutations 100000
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --timeout 7200 --long \
		tests/faults/test_simulator.py tests/faults/test_kill.py --kills 40 --histories 50
	$(BIN)/python -m pytest --timeout 7200 tests/guarantees/test_timing.py --guesses 600
	$(BIN)/python -m pytest --timeout 7200 --long tests/guarantees/test_closed_thresholds.py --trials 2000
	$(MAKE) mutation

# Small changes of the code, drawn at random, each of which some test or mypy must notice; the draw's seed is printed.
# All changes of a room, a file or a function: make mutation MUTANTS=service/privacy/noise/additive.py
mutation: venv
	$(BIN)/python -m tests.mutation $(MUTANTS)

# The tests on a disk on which everything takes 50 ms longer to be safe.
test-slow-disk: venv
	$(CC) -shared -fPIC -O2 -o .venv/slow_disk.so tests/slow_disk.c -ldl
	LD_PRELOAD=$(CURDIR)/.venv/slow_disk.so $(MAKE) test

# The Dockerfile and docker-compose.yml in a real Docker engine; for root on Debian: make containers CACHE=FOLDER
containers: venv
	CACHE=$(CACHE) tests/containers/run.sh

# What needs no server: format, lint, types, and who may import whom.
check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pages and pictures of docs/ that follow from the code, and all of docs/ as a site in site/.
docs: venv
	$(BIN)/python -m docs.reference
	$(BIN)/python -m docs.pictures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# What is installed to run is what was tested: the second file takes its versions from the first.
lock: venv
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra dev pyproject.toml -o requirements-dev.lock
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --constraints requirements-dev.lock --extra objects --extra dask pyproject.toml -o requirements.lock

clean:
	rm -rf .venv
