# Two commands matter: `make demo` shows it, `make test` checks it. Both install what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
ENV := . tools/env.sh;
CARGO_TEST_FLAGS ?=

.PHONY: setup build

setup: ## installs what a fresh Debian machine lacks and compiles RocksDB once
	tools/setup.sh

# The whole workspace is selected so that dependencies have the tests' features, and are compiled once; failpoints stay out.
build: setup ## the levee binary, in the one profile that everything uses
	$(ENV) cargo build --workspace --bin levee --no-default-features

# --- tests -----------------------------------------------------------------------------------------
.PHONY: test test-parts test-binary test-fmt test-lint test-rust test-client test-isolation test-docs test-crash test-oracle test-blast test-bad-input test-power test-property test-cold test-sinks test-sinks-full test-files test-s3 test-kafka test-kafka-full bless

# In the order in which they fail fastest; `.ci/run` runs the same list.
TEST_PARTS := setup test-fmt test-lint test-rust test-client test-isolation test-sinks test-docs

test: $(TEST_PARTS) ## everything that CI runs

test-parts:
	@echo $(TEST_PARTS)

test-fmt:
	cargo fmt --all --check

test-lint:
	$(ENV) cargo clippy --workspace --all-targets -- -D warnings

# The wire tests start the binary, so it is built first, with the failpoints that they arm.
test-binary:
	$(ENV) cargo build --workspace --bins

test-rust: test-binary ## unit tests, SQL oracle, property, determinism, crash (short) and bad-input tests
	$(ENV) cargo test --workspace --no-fail-fast $(CARGO_TEST_FLAGS)

test-client: test-binary ## psycopg 3 and psql's backslash commands against a running server
	$(ENV) "$$LEVEE_CACHE/venv/bin/python" sql-tests/clients/run.py

test-isolation: test-binary ## interleavings of sessions, here and in PostgreSQL
	$(ENV) "$$LEVEE_CACHE/venv/bin/python" sql-tests/clients/isolation/interleave.py

test-docs:
	$(ENV) RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --no-deps --document-private-items

test-crash: setup test-binary ## SIGKILL at 50 moments, power loss at every IO step; one JSON line each
	$(ENV) LEVEE_KILLS=50 LEVEE_LIVES=100000 cargo test --workspace --test system -- --nocapture crash power

test-oracle: setup test-binary ## every SQL case as batch and as view, random queries and changes, planted faults
	$(ENV) cargo test --workspace --test system -- --nocapture cases property

test-blast: setup test-binary ## determinism, a panicking task, a slow view, diamonds and big epochs
	$(ENV) cargo test --workspace --test system -- --nocapture blast outputs_are_the_same
	$(ENV) cargo test --workspace --lib -- --nocapture dataflow

test-bad-input: setup test-binary ## wrong SQL, broken messages, a full disk, damaged files
	$(ENV) cargo test --workspace --test system -- --nocapture bad_input

test-power: setup test-binary ## power loss at every IO step, torn writes
	$(ENV) cargo test --workspace --test system -- --nocapture power

test-property: setup ## a longer property run: LEVEE_SEED, LEVEE_CASES
	$(ENV) LEVEE_CASES=$${LEVEE_CASES:-2000} cargo test --workspace --test system -- --nocapture property

# Kafka's part needs a JDK and Maven; tools/kafka.sh fetches the broker.
test-sinks: test-binary ## sinks to files, PostgreSQL and Kafka, exactly once under a few kills; FLAGS='--targets file --kills 3'
	$(ENV) "$$LEVEE_CACHE/venv/bin/python" -B sql-tests/sinks/run.py --kills 6 --targets file,postgres $(FLAGS)
	$(ENV) "$$LEVEE_CACHE/venv/bin/python" -B sql-tests/sinks/encrypted.py

test-sinks-full: setup test-binary ## the same with 20 kills, Kafka among the targets
	$(ENV) tools/kafka.sh fetch
	$(ENV) "$$LEVEE_CACHE/venv/bin/python" -B sql-tests/sinks/run.py --kills 20 --targets file,postgres,kafka $(FLAGS)

test-files: setup test-binary ## file sources through 40 kills
	$(ENV) LEVEE_KILLS=40 cargo test --workspace --test system -- --nocapture files

test-s3: setup test-binary ## file sources in a bucket of a local object store
	tools/test-s3.sh

# A broker of its own: needs a JDK and Maven. LEVEE_RECORDS and LEVEE_KILLS size the crash test; FLAGS='retention compaction' chooses cases.
test-kafka: test-binary ## sources against Apache Kafka itself, killed under load
	$(ENV) tools/kafka.sh fetch
	$(ENV) "$$LEVEE_CACHE/venv/bin/python" -B sql-tests/clients/kafka/run.py $(FLAGS)

test-kafka-full: setup test-binary ## the same with 5 million records, 30 kills and all flights
	$(ENV) tools/kafka.sh fetch
	$(ENV) "$$LEVEE_CACHE/venv/bin/python" -B sql-tests/clients/kafka/run.py --full $(FLAGS)

test-cold: setup ## power loss and property tests with so little memory that everything is cold and spilled
	$(ENV) LEVEE_TEST_MEMORY=$${LEVEE_TEST_MEMORY:-100000} cargo test --workspace --test system -- --nocapture power property

bless: setup ## writes PostgreSQL's answers into the case files
	$(ENV) LEVEE_BLESS=1 cargo test --workspace --test system -- --nocapture cases::against_postgres
# --- end of tests ----------------------------------------------------------------------------------

# --- demo, benchmarks, comparison --------------------------------------------------------------------
.PHONY: demo compare-postgres bench bench-binaries bench-nexmark bench-freshness bench-many bench-blast bench-memory bench-backfill

PYTHON := "$$LEVEE_CACHE/venv/bin/python" -B
DEBUG_LEVEE := "$$CARGO_TARGET_DIR/debug/levee"
BENCH_BIN := "$$CARGO_TARGET_DIR/bench"

# Workspace crates optimised; dependencies are the tests' own artifacts, already optimised where it counts.
BENCH_PROFILE := --config profile.dev.opt-level=3 --config profile.dev.debug-assertions=false \
	--config profile.dev.overflow-checks=false \
	$(foreach crate,planner server benchmarks,--config profile.dev.package.levee-$(crate).opt-level=3)

demo: build ## the flights of New York 2013, streamed into six live views and checked; FLAGS='--end --plain --flights N'
	$(ENV) $(PYTHON) benchmarks/demo/demo.py --levee $(DEBUG_LEVEE) $(FLAGS)

compare-postgres: build ## the same data, queries and changes in Levee and in PostgreSQL 15; one JSON line per case
	$(ENV) $(PYTHON) benchmarks/postgres/compare.py --levee $(DEBUG_LEVEE) $(FLAGS)

# Copied aside, so that the next test build does not replace them.
bench-binaries: setup
	$(ENV) cargo build --workspace $(BENCH_PROFILE) --bins --no-default-features
	$(ENV) mkdir -p $(BENCH_BIN) && cp "$$CARGO_TARGET_DIR"/debug/{levee,nexmark-bench,freshness} $(BENCH_BIN)/

bench: bench-nexmark bench-freshness ## Nexmark and freshness; JSON lines and a table; FLAGS='--runs N --queries q0,q4'

bench-nexmark: bench-binaries
	$(ENV) $(BENCH_BIN)/nexmark-bench --levee $(BENCH_BIN)/levee $(FLAGS)

bench-freshness: bench-binaries
	$(ENV) $(BENCH_BIN)/freshness --levee $(BENCH_BIN)/levee

bench-many: bench-binaries ## 500 views: idle CPU, memory, a new view, restart; 100 under load; FLAGS='--views N --fresh-views N --no-limits'
	$(ENV) $(PYTHON) benchmarks/many.py --levee $(BENCH_BIN)/levee $(FLAGS)

bench-blast: bench-binaries ## freshness beside a slow view, an exploding join, a sink that is gone; FLAGS='--rate N --only slow'
	$(ENV) $(PYTHON) benchmarks/blast.py --levee $(BENCH_BIN)/levee $(FLAGS)

bench-memory: bench-binaries ## an aggregate and a join of 20 million keys each under 1 GB; FLAGS='--keys 1000000 --limit 64MB'
	$(ENV) $(PYTHON) benchmarks/memory.py --levee $(BENCH_BIN)/levee $(FLAGS)

bench-backfill: bench-binaries ## new views over a table of 12 million rows: rows a second, and freshness beside it
	$(ENV) $(PYTHON) benchmarks/backfill.py --levee $(BENCH_BIN)/levee $(FLAGS)

bench-pgbench: bench-binaries ## pgbench's scripts here and in PostgreSQL; FLAGS='--scale N --clients N --seconds N --only tpcb'
	$(ENV) $(PYTHON) benchmarks/pgbench/bench.py --levee $(BENCH_BIN)/levee $(FLAGS)
