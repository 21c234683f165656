#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports the cost of a build: build_report.py [BUILD] [--most N] [--budget SECONDS].

Reads ninja's log of the last build of every object in BUILD (build/ by default) and prints the total compile time,
the median file, and the N slowest (10). With --budget it exits 1 if a file took longer. Times are wall-clock times of
compiler processes, so they mean something only for a build without other work beside it. An object from ccache counts
with the time of fetching it."""
import argparse
import os
import statistics
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))


def object_times(log):
    """Returns {object: seconds} of the last run of every compiler command in a .ninja_log (version 5 or 6)."""
    times = {}
    with open(log, encoding="utf-8") as f:
        head = f.readline()
        if not head.startswith("# ninja log v"):
            sys.exit(f"{log}: no log of ninja; got {head[:40]!r}")
        for line in f:
            start, end, _, output, _ = line.rstrip("\n").split("\t")
            if output.endswith((".o", ".gch")):
                times[output] = (int(end) - int(start)) / 1000
    return times


def source_of(name):
    """Returns the source of an object: CMakeFiles/hocket_base.dir/src/base/error.cc.o as src/base/error.cc."""
    return name.split(".dir/", 1)[-1].rsplit(".o", 1)[0]


def report(times, most):
    slowest = sorted(times.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
    lines = [f"{len(times)} objects, {sum(times.values()):.0f} s of compiling, "
             f"median {statistics.median(times.values()):.1f} s"]
    lines += [f"{seconds:8.1f} s  {source_of(name)}" for name, seconds in slowest]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("build", nargs="?", default=os.path.join(ROOT, "build"))
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("--budget", type=float, help="seconds that no file may exceed")
    arguments = parser.parse_args()
    log = os.path.join(arguments.build, ".ninja_log")
    if not os.path.isfile(log):
        sys.exit(f"{log}: not there; build with ninja first (make build)")
    times = object_times(log)
    if not times:
        sys.exit(f"{log}: holds no object")
    print("\n".join(report(times, arguments.most)))
    over = [name for name, seconds in times.items() if arguments.budget and seconds > arguments.budget]
    if over:
        print(f"{len(over)} files over the budget of {arguments.budget:.0f} s: "
              f"{', '.join(sorted(source_of(name) for name in over))}")
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
