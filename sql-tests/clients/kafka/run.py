"""Kafka sources against Apache Kafka itself.

    run.py [--full] [NAME …]      runs the named cases, or all

LEVEE_RECORDS and LEVEE_KILLS size the crash test. Every case has a topic and a server of its own on one broker; each check raises,
each case prints a JSON line, the exit code tells.
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback

import cases
import crash
from world import Broker, Levee, say


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    known = cases.CASES + crash.CASES
    selected = [c for c in known if not chosen.names or c.__name__ in chosen.names]
    directory = tempfile.mkdtemp(prefix="levee-kafka-")
    broker = Broker(f"{directory}/broker")
    failed = []
    try:
        for case in selected:
            started = time.monotonic()
            try:
                facts = case(broker, f"{directory}/{case.__name__}", chosen.full) or {}
                say(case=case.__name__, ok=True, seconds=round(time.monotonic() - started, 1), **facts)
            except Exception:
                traceback.print_exc()
                Levee.kill_all()
                say(case=case.__name__, ok=False, seconds=round(time.monotonic() - started, 1))
                failed.append(case.__name__)
    finally:
        broker.stop()
    if failed:
        print(f"failed: {', '.join(failed)}; see {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
