#!/bin/sh
# expect.sh HOST PORT USER [NAME…]: writes NAME.out, what a PostgreSQL 15 server answers. Its database "dev" loses schema public.
set -eu
cd "$(dirname "$0")"
host=$1 port=$2 user=$3
shift 3
[ $# -gt 0 ] || set -- $(ls *.sql | sed 's/\.sql$//')
for name in "$@"; do
  psql -X -q -h "$host" -p "$port" -U "$user" -d dev -c 'DROP SCHEMA public CASCADE' -c 'CREATE SCHEMA public' >/dev/null 2>&1
  psql -X -h "$host" -p "$port" -U "$user" -d dev -f "$name.sql" 2>&1 |
    sed -E 's/^psql:[^:]*:[0-9]+: //' | grep -vE '^(LOCATION:|LINE )|^ +\^$' >"$name.out"
done
