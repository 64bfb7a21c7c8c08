#!/usr/bin/env bash
# Apache Kafka itself, one node, for tests: the broker's jars come from Maven Central once and stay in the cache.
#   tools/kafka.sh start DIR PORT     starts a broker that keeps its data in DIR, waits until it answers, prints its address
#   tools/kafka.sh stop DIR           stops it (SIGTERM, then SIGKILL)
#   tools/kafka.sh kill DIR           SIGKILL
# A second start with the same DIR goes on with the same topics. DIR/broker.properties may be edited in between.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
version=4.4.0
home="$LEVEE_CACHE/kafka-$version"

fetch() {
  [ -e "$home/complete" ] && return
  command -v mvn >/dev/null || { echo "maven is needed to fetch Kafka's jars (apt-get install maven)" >&2; exit 1; }
  mkdir -p "$home"
  cat >"$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>levee</groupId><artifactId>kafka-broker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version>
  </dependency></dependencies>
</project>
POM
  (cd "$home" && mvn -q -B dependency:copy-dependencies -DoutputDirectory="$home/libs" -Dmdep.overWriteReleases=false) >&2
  touch "$home/complete"
}

configure() {
  local dir="$1" port="$2"
  local controller=$((port + 1))
  cat >"$dir/broker.properties" <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$dir/data
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.check.interval.ms=500
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=500
log.segment.delete.delay.ms=0
CONF
}

run() {
  java -Xms128m -Xmx"${KAFKA_HEAP:-512m}" -XX:+UseSerialGC -cp "$home/libs/*" "$@"
}

start() {
  local dir="$1" port="$2"
  fetch
  mkdir -p "$dir"
  dir="$(cd "$dir" && pwd)"
  [ -e "$dir/broker.properties" ] || configure "$dir" "$port"
  if [ ! -e "$dir/data/meta.properties" ]; then
    run kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$dir/broker.properties" >"$dir/format.out" 2>&1 \
      || { cat "$dir/format.out" >&2; exit 1; }
  fi
  run kafka.Kafka "$dir/broker.properties" >>"$dir/broker.out" 2>&1 </dev/null &
  for _ in $(seq 1200); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "127.0.0.1:$port"
      return
    fi
    sleep 0.1
  done
  echo "the broker did not start:" >&2
  tail -20 "$dir/broker.out" >&2
  exit 1
}

pid_of() { pgrep -f "kafka.Kafka $(cd "$1" && pwd)/broker.properties" || true; }

end() {
  local dir="$1" signal="$2" pid
  pid="$(pid_of "$dir")"
  [ -n "$pid" ] || return 0
  kill "-$signal" $pid
  for _ in $(seq 100); do
    [ -z "$(pid_of "$dir")" ] && return 0
    sleep 0.1
  done
  kill -KILL $pid 2>/dev/null || true
}

case "${1:-}" in
  fetch) fetch ;;
  start) start "$2" "$3" ;;
  stop) end "$2" TERM ;;
  kill) end "$2" KILL ;;
  *) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac
