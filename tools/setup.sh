#!/usr/bin/env bash
# Installs what a fresh Debian machine with Rust lacks: libclang (RocksDB's bindings), OpenSSL (Kafka), PostgreSQL 15 (the judge of the SQL
# tests), a Python venv with psycopg and Kafka clients; then compiles RocksDB once. Everything else is cargo's.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

packages=()
ls /usr/lib/llvm-*/lib/libclang*.so* /usr/lib/*/libclang*.so* >/dev/null 2>&1 || packages+=(libclang-dev)
command -v c++ >/dev/null || packages+=(g++)
command -v make >/dev/null || packages+=(make)
# For librdkafka, which cargo compiles with TLS.
pkg-config --exists libssl 2>/dev/null || packages+=(libssl-dev pkg-config)
[ -x /usr/lib/postgresql/15/bin/initdb ] || command -v initdb >/dev/null || packages+=(postgresql-15)
command -v psql >/dev/null || packages+=(postgresql-client-15)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
if [ "${#packages[@]}" -gt 0 ]; then
  say "installing ${packages[*]}"
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then sudo="sudo"; fi
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null
fi

venv="$LEVEE_CACHE/venv"
if ! "$venv/bin/python" -c 'import psycopg' 2>/dev/null; then
  say "installing psycopg into $venv"
  mkdir -p "$LEVEE_CACHE"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'psycopg[binary]==3.2.*'
fi

if ! "$venv/bin/python" -c 'import aiokafka' 2>/dev/null; then
  say "installing aiokafka into $venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'aiokafka==0.12.*'
fi

if ! "$venv/bin/python" -c 'import confluent_kafka' 2>/dev/null; then
  say "installing confluent-kafka into $venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'confluent-kafka>=2.5,<3'
fi

if [ ! -f "$ROCKSDB_LIB_DIR/librocksdb.a" ]; then
  say "compiling RocksDB once, about 15 minutes on two cores"
  tools/build-rocksdb.sh
fi
