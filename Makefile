# Everything runs from .venv, which the first target that needs it makes. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CASSANDRA_VENV := .venv-cassandra
CASSANDRA_READY := $(CASSANDRA_VENV)/.ready
PIP := pip install -q --disable-pip-version-check --require-hashes
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider
BENCHES := $(subst _,-,$(patsubst benchmarks/bench_%.py,%,$(wildcard benchmarks/bench_*.py)))
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help up test check pure sim cluster cluster-long pipeline pipeline-long drivers mutations sim-long bench lock clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo "  make bench-NAME      one benchmark: $(BENCHES)"

$(READY): pyproject.toml build-constraints.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ebla needs Python 3.11 or newer; set PYTHON=/path/to/it")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once; again only when pyproject.toml or the lists of packages change)"
	@$(BIN)/python -m $(PIP) --only-binary :all: -r build-constraints.txt
	@$(BIN)/python -m $(PIP) --no-build-isolation -r constraints.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# cassandra-driver (cqlsh needs it) and scylla-driver install the same package: each has an environment of its own.
$(CASSANDRA_READY): tests/drivers/environment.txt src/ebla/cli/cqlsh_environment.txt
	@test -x $(CASSANDRA_VENV)/bin/python || $(PYTHON) -m venv $(CASSANDRA_VENV)
	@echo "setting up $(CASSANDRA_VENV) (once; again only when its list of packages changes)"
	@$(CASSANDRA_VENV)/bin/python -m $(PIP) --only-binary :all: --no-deps -r tests/drivers/environment.txt
	@touch $@

up: $(READY) ## start a three-node cluster on this machine and follow it; Ctrl-C stops it, data stay
	@$(BIN)/ebla up

test: $(READY) ## everything that must pass: check, pure, sim, cluster, pipeline, drivers
	@$(MAKE) check
	@$(MAKE) pure
	@$(MAKE) sim
	@$(MAKE) cluster
	@$(MAKE) pipeline
	@$(MAKE) drivers

check: $(READY) ## fast: ruff, mypy strict, import contracts, house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST) tests/tidy

pure: $(READY) ## unit, property and scenario tests
	$(PYTEST) -n 2 tests/unit tests/properties tests/scenarios

fuzz: $(READY) ## mutate hostile CQL statements at random: make fuzz MINUTES=60 SEED=1
	.venv/bin/python -m tests.fuzz $(or $(MINUTES),10) $(or $(SEED),1)

sim: $(READY) ## simulated clusters: the scenarios at a few seeds, the kept seeds
	$(PYTEST) -n 2 tests/sim -m "not long"

cluster: $(READY) ## real processes on loopback
	$(PYTEST) -n 2 --dist loadfile tests/cluster -m "not long"

cluster-long: $(READY) ## those of them that take too long for every run
	$(PYTEST) tests/cluster -m long

pipeline: $(READY) ## transfers and tables on a real Spark, embedded and as a cluster of its own
	$(PYTEST) -n 2 tests/pipeline -m "not long"

pipeline-long: $(READY) ## those of them that take too long for every run
	$(PYTEST) -n 2 tests/pipeline -m long

drivers: $(READY) $(CASSANDRA_READY) ## CQL: scylla-driver, cassandra-driver and cqlsh against real nodes
	$(PYTEST) tests/drivers

mutations: $(READY) ## apply each deliberate bug and expect its check to catch it [NAME=one]
	$(BIN)/python -m tests.mutations $(NAME)

sim-long: $(READY) ## one fault in each state of each operation, and many seeds of every scenario [SEEDS=1-500]
	$(PYTEST) -n 2 tests/sim -m long
	$(BIN)/python -m ebla.sim --all --seeds $(or $(SEEDS),1-500)

bench: $(addprefix bench-,$(BENCHES)) ## every benchmark, one after another

bench-%: $(READY)
	$(BIN)/python -m benchmarks.bench_$(subst -,_,$*)

lock: $(READY) ## write the hashes of pinned packages, after a version was changed
	$(BIN)/python -m tests.tidy.lock

clean: ## remove what the targets made (the environment, caches); data folders stay
	rm -rf $(VENV) $(CASSANDRA_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
