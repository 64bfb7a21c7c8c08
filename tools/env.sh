# Source this before cargo: one target directory outside the checkout, RocksDB compiled once.
#   . tools/env.sh
# LEVEE_CACHE (default ~/.cache/levee) holds both, so a fresh clone on the same machine is warm.
LEVEE_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export LEVEE_CACHE="${LEVEE_CACHE:-$HOME/.cache/levee}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$LEVEE_CACHE/target}"
export ROCKSDB_STATIC=1
_rocksdb_version="$(sed -n 's/^librocksdb-sys = { version = "=\([0-9.]*\)".*/\1/p' "$LEVEE_ROOT/tools/rocksdb/Cargo.toml")"
export ROCKSDB_LIB_DIR="$LEVEE_CACHE/rocksdb-$_rocksdb_version/lib"
