# Two commands matter: `make demo` shows it, `make test` checks it. Both install what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
ENV := . tools/env.sh;
CARGO_TEST_FLAGS ?=

.PHONY: setup build

setup: ## installs what a fresh Debian machine lacks and compiles RocksDB once
	tools/setup.sh

build: setup ## the levee binary, in the one profile that everything uses
	$(ENV) cargo build -p levee-server

# --- tests -----------------------------------------------------------------------------------------
.PHONY: test test-parts test-binary test-fmt test-lint test-rust test-client test-docs test-crash test-property bless

# In the order in which they fail fastest; `.ci/run` runs the same list.
TEST_PARTS := setup test-fmt test-lint test-rust test-client test-docs

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

test-docs:
	$(ENV) RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

test-crash: setup test-binary ## SIGKILL at 50 moments; one JSON line per kill
	$(ENV) LEVEE_KILLS=50 cargo test -p levee-sql-tests --test it -- --nocapture crash

test-property: setup ## a longer property run: LEVEE_SEED, LEVEE_CASES
	$(ENV) LEVEE_CASES=$${LEVEE_CASES:-2000} cargo test -p levee-sql-tests --test it -- --nocapture property

bless: setup ## writes PostgreSQL's answers into the case files
	$(ENV) LEVEE_BLESS=1 cargo test -p levee-sql-tests --test it -- --nocapture cases::against_postgres
# --- end of tests ----------------------------------------------------------------------------------
