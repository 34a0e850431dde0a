# Every target works from a fresh clone: it makes the environment it needs first.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BROKER := .venv-broker
SEEDS ?= 100
N ?= 1000000
MINIO := v0.0.0-20260212201848-7aac2a2c5b7c

help: ## List the tasks.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

$(VENV)/.ready: pyproject.toml requirements/all.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/all.txt
	$(BIN)/python -m pip install --quiet --no-deps -e .
	touch $@

setup: $(VENV)/.ready ## Make the environment with everything for development.

$(BROKER)/.ready: pyproject.toml requirements/broker.txt
	$(PYTHON) -m venv $(BROKER)
	$(BROKER)/bin/python -m pip install --quiet --upgrade pip
	$(BROKER)/bin/python -m pip install --quiet --require-hashes -r requirements/broker.txt
	$(BROKER)/bin/python -m pip install --quiet --no-deps -e .
	touch $@

setup-broker: $(BROKER)/.ready ## Make an environment with the broker and the command line alone (no Spark) in .venv-broker.

demo: setup ## Run the whole job on SQLite and a folder.
	$(BIN)/tailrace demo

demo-cluster: setup ## The same job on S3 (moto), PostgreSQL, two sequencers, four agents in two zones.
	$(BIN)/python -m tests.integration.cluster_demo

dev: setup-broker ## Serve Kafka clients on 127.0.0.1:9092 from ./data.
	$(BROKER)/bin/tailrace serve

check: setup ## Style, types, layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup ## All tests.
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup --max-worker-restart 1 --durations 10

integration: setup ## The integration tests alone.
	$(BIN)/python -m pytest -q tests/integration

minio: ## Compile MinIO with Go into ~/go/bin (minutes): the S3 tests then run on it, too.
	GOBIN=$(HOME)/go/bin go install github.com/minio/minio@$(MINIO)

compat: setup ## Produce, consume, groups, admin with every Kafka client that can be had; prints a table.
	$(BIN)/python -m tests.compat.run

differential: setup ## The same requests to Apache Kafka and to Tailrace; what their answers differ in. ONLY="topics.create fetch"
	$(BIN)/python -m tests.compat.differential.run $(ONLY)

simulate: setup ## The deterministic cluster simulation, SEEDS=n seeds.
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS)

fuzz: setup ## N mutated inputs from outside: frames, batches, objects, RPC; prints what was found.
	$(BIN)/python -m tests.fuzz.run --inputs $(N)

hostile: setup ## Bad clients beside good ones, N=seconds on SQLite and on PostgreSQL, CASES=counts, storms, gateway or tenants; what the good ones lost is a fault.
	$(BIN)/python -m tests.hostile.run $(if $(filter-out file default,$(origin N)),--seconds $(N)) $(if $(CASES),--cases $(CASES))

faults: setup ## Real processes killed, paused, starved under load; what clients saw is checked. ONLY=name,name
	$(BIN)/python -m tests.faults.run $(if $(ONLY),--only $(ONLY))

bench: setup ## Tailrace beside Kafka at the loads of every day, in some four minutes; needs a C compiler, for Kafka Java and Maven.
	$(BIN)/python -m bench.peers --json bench/results/last.json

bench-whole: setup ## The same with all loads and three rounds of each: two hours.
	$(BIN)/python -m bench.peers --whole --rounds 3 --json bench/results/last-whole.json

bench-scale: setup ## What a request costs with ten times the idle partitions, groups, consumers and producers; fail-overs.
	$(BIN)/python -m bench.scale --json bench/results/last-scale.json

overload: setup ## Twice the capacity, bad neighbours, and more asked than there is memory for. ONLY=name,name
	$(BIN)/python -m bench.overload $(if $(ONLY),--only $(ONLY))

lock: setup ## Compile the locks anew from pyproject.toml.
	$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --no-emit-find-links --generate-hashes \
	  --python-version 3.11 pyproject.toml -o requirements/broker.txt
	$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --no-emit-find-links --generate-hashes \
	  --python-version 3.11 --extra compactor --extra dev pyproject.toml -o requirements/all.txt

.PHONY: help setup setup-broker demo demo-cluster dev check test integration minio compat differential simulate fuzz hostile faults bench bench-scale bench-whole overload lock
