"""A flame graph of one Nexmark query: `perf record` of the benchmark and its server, as one SVG file.

Width is the share of processor time, depth the call stack; names are cut to what a box can show, the whole name is its title.

    ~/.cache/levee/venv/bin/python -B benchmarks/flame.py --bin ~/.cache/levee/target/bench --query q9 --out q9.svg
"""

import argparse
import re
import subprocess
import tempfile
from html import escape
from pathlib import Path

WIDTH, ROW, CHARACTER = 1200, 15, 6.2
SMALLEST = 0.004
HERTZ = 199


def samples(data):
    """Call stacks of a recording, outermost first, the thread's name before them."""
    script = ["perf", "script", "-i", data, "--no-inline", "-F", "comm,ip,sym"]
    text = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    for block in text.split("\n\n"):
        lines = block.strip("\n").splitlines()
        if len(lines) > 1:
            frames = [re.sub(r"\+0x[0-9a-f]+$", "", line.strip().split(" ", 1)[-1]) for line in lines[1:]]
            yield [re.sub(r"-?\d+$", "", lines[0].split()[0]), *reversed(frames)]


def tree(stacks):
    """Counts by call path: (count, children by name)."""
    root = [0, {}]
    for stack in stacks:
        node = root
        node[0] += 1
        for frame in stack:
            node = node[1].setdefault(frame, [0, {}])
            node[0] += 1
    return root


def boxes(node, name, x, depth, total):
    """Every box that is wide enough: name, share, left edge as a share, depth."""
    share = node[0] / total
    if share < SMALLEST:
        return
    yield name, share, x, depth
    for child, below in sorted(node[1].items()):
        yield from boxes(below, child, x, depth + 1, total)
        x += below[0] / total


def svg(title, drawn):
    """The picture, outermost frames at the bottom."""
    height = (max(depth for *_, depth in drawn) + 3) * ROW
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="monospace" font-size="10">']
    out.append(f'<text x="4" y="12">{escape(title)}</text>')
    for name, share, x, depth in drawn:
        left, wide, top = x * WIDTH, share * WIDTH, height - (depth + 1) * ROW
        colour = f"hsl({sum(name.encode()) % 50},80%,{65 + depth % 3 * 5}%)"
        short = re.sub(r"<.*?>|levee_runtime::|core::|alloc::", "", name)[: int(wide / CHARACTER)]
        out.append(
            f'<g><title>{escape(name)} {share:.1%}</title><rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{ROW - 1}"'
            f' fill="{colour}"/><text x="{left + 2:.1f}" y="{top + 11}">{escape(short)}</text></g>'
        )
    return "\n".join([*out, "</svg>", ""])


def main():
    """Records, and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=Path, help="directory of the optimised binaries")
    parser.add_argument("--query", required=True)
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="levee-flame-") as directory:
        data = f"{directory}/perf.data"
        bench = [given.bin / "nexmark-bench", "--levee", given.bin / "levee", "--modes", "sink", "--runs", "1", "--queries", given.query]
        record = ["perf", "record", "-F", str(HERTZ), "--call-graph", "dwarf,8192", "-o", data, "--", *bench]
        subprocess.run(record, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        root = tree(samples(data))
    drawn = list(boxes(root, given.query, 0.0, 0, max(root[0], 1)))
    given.out.write_text(svg(f"Nexmark {given.query}: {root[0]} samples at {HERTZ} Hz", drawn))


if __name__ == "__main__":
    main()
