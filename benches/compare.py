#!/usr/bin/env python3
"""Measures two builds of dq in turn: benches/compare.py OLD/dq NEW/dq [ROUNDS]

Prints for each work the medians of both builds, and the median of the ratio new / old, round by round.
"""

import json
import statistics
import subprocess
import sys

WORKS = [
    ["add", "--store", "redis", "--connections", "10", "--depth", "64"],
    ["add", "--store", "redis", "--connections", "1", "--depth", "1"],
    ["add", "--connections", "10", "--depth", "64"],
    ["add", "--over", "http", "--connections", "64"],
    ["deliver", "--store", "redis"],
    ["deliver"],
    ["lateness", "--store", "redis", "--rate", "1000"],
]


def measure(dq, work):
    out = subprocess.run([dq, "bench", "--json", *work], check=True, capture_output=True, timeout=300)
    figures = json.loads(out.stdout)["figures"]
    return {figure["name"]: (figure["value"], figure["unit"]) for figure in figures}


def main():
    old, new = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    for work in WORKS:
        pairs = [(measure(old, work), measure(new, work)) for _ in range(rounds)]
        print("dq bench", *work)
        for name, (_, unit) in pairs[0][0].items():
            before = [a[name][0] for a, _ in pairs]
            after = [b[name][0] for _, b in pairs]
            ratios = [b / a for a, b in zip(before, after) if a]
            ratio = f"{statistics.median(ratios):.2f} x" if ratios else ""
            print(f"  {name:44} {statistics.median(before):12.2f} {statistics.median(after):12.2f} {unit:6} {ratio}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
