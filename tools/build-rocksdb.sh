#!/usr/bin/env bash
# Compiles RocksDB's static archive into the cache directory, unless it is there already.
set -euo pipefail
. "$(dirname "$0")/env.sh"
[ -f "$ROCKSDB_LIB_DIR/librocksdb.a" ] && exit 0
build="$LEVEE_CACHE/rocksdb-build"
mkdir -p "$ROCKSDB_LIB_DIR" "$build"
lib="$ROCKSDB_LIB_DIR"
(
  unset ROCKSDB_LIB_DIR ROCKSDB_STATIC
  cp -r "$LEVEE_ROOT/tools/rocksdb" "$build/src"
  cd "$build/src"
  # Hardware CRC and carry-less multiply: every x86-64 server since 2010 has both.
  [ "$(uname -m)" = x86_64 ] && export CXXFLAGS="-msse4.2 -mpclmul"
  CARGO_TARGET_DIR="$build/target" cargo build --release
)
archive="$(find "$build/target/release/build" -name librocksdb.a | head -1)"
cp "$archive" "$lib/librocksdb.a.tmp"
mv "$lib/librocksdb.a.tmp" "$lib/librocksdb.a"
rm -rf "$build"
