#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits constants of a cluster file to published rows (bench/published_tables.py) and predicts the rows that it left out.

    bench/fit_published.py configs/clusters/mosaic-h100.yaml --machine mosaic-h100 --every 2 \\
        --fit efficiency.matmul efficiency.attention efficiency.memory [--write] [--hocket build/hocket]

Every --every'th row of the machines is fitted, from --first on; the others are held out. The method is Gauss-Newton on the
logarithms of the constants, with the logarithms of predicted over published steps as residuals, each of which counts less
beyond 10 % (pseudo-Huber), and slopes from --what-if. --write puts the constants into the file. Prints the errors of both
sets."""
import argparse
import concurrent.futures
import math
import os
import re
import sys
import tempfile

import published_rows
import published_tables

PRODUCTS = ("linear", "linear_dx", "linear_dw", "linear_cross_entropy")
ATTENTION = ("attention", "attention_bwd")
BLOCKS = {"efficiency": "  efficiency:", "overlap": "  overlap:", "of_types": "    of_types:"}  # of_types: the first entry
FASTER = 1.25
HUBER = 0.10


def with_constants(text, constants):
    """Returns the file's text with other values of `efficiency.matmul`, `device.launch`, `framework.step`, .."""
    for path, value in constants.items():
        block, key = path.split(".")
        indent = {"efficiency": 4, "overlap": 4, "of_types": 8}.get(block, 2)
        pattern = rf"(?m)^{' ' * indent}{key}: \{{value: [^,}}]+"
        unit = "s" if key in ("launch", "host_launch", "step") else ""
        begin = text.index(BLOCKS.get(block, block + ":"))
        found = re.compile(pattern).search(text, begin)
        if not found:
            sys.exit(f"fit_published.py: the file has no {path} with a value")
        text = text[:found.start()] + f"{' ' * indent}{key}: {{value: {value:.6g}{unit}" + text[found.end():]
    return text


def constant_of(text, path):
    block, key = path.split(".")
    begin = text.index(BLOCKS.get(block, block + ":"))
    found = re.compile(rf"(?m)^ +{key}: \{{value: ([0-9.e-]+)([a-z]*)").search(text, begin)
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1}.get(found[2], 1)


class Fit:
    def __init__(self, args, rows):
        self.args, self.rows = args, rows
        with open(args.cluster, encoding="utf-8") as f:
            self.text = f.read()

    def errors(self, logs, rows=None, slopes=None):
        """Returns log(predicted / published) of every row; None where it is refused. `slopes`: receives, by row, the slopes
        of that logarithm by those of the constants, from the answers to --what-if."""
        constants = {path: math.exp(x) for path, x in zip(self.args.fit, logs)}

        def one(row):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "c", os.path.basename(self.args.cluster))
                os.mkdir(os.path.dirname(path))
                with open(path, "w", encoding="utf-8") as f:
                    f.write(with_constants(self.text, constants))
                for ops in (PRODUCTS, PRODUCTS[:3]) if slopes is not None else ((),):
                    what = [word for op in (*ops, *ATTENTION, "compute") for word in ("--what-if", f"{op}={FASTER}")] if ops else []
                    line = published_rows.predict(self.args.hocket, row, path, folder, what)
                    if "refused" not in line:
                        return line
                print(f"refused: {row.what}: {line['refused'][-150:]}", file=sys.stderr)
                return None

        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            lines = list(pool.map(one, self.rows if rows is None else rows))
        if slopes is not None:
            slopes += [self.slopes_of(row, line) for row, line in zip(self.rows, lines)]
        return [None if line is None else math.log(1 + line["error"]) for line in lines]

    def slopes_of(self, row, line):
        if line is None:
            return [0.0] * len(self.args.fit)
        gain = {op: (line["step_s"] - step) / line["step_s"] / (1 - 1 / FASTER) for op, step in line["what_if"].items()}
        products = sum(gain.get(op, 0) for op in PRODUCTS)
        attention = sum(gain.get(op, 0) for op in ATTENTION)
        # The head's product stays in 16 bits.
        head = gain.get("linear_cross_entropy", 0)
        of = {"efficiency.matmul": head if row.float8 else products, "of_types.matmul": products - head if row.float8 else 0,
              "efficiency.attention": attention, "efficiency.memory": gain["compute"] - products - attention}
        return [-of[path] for path in self.args.fit]

    def run(self):
        logs = [math.log(constant_of(self.text, path)) for path in self.args.fit]
        for _ in range(self.args.rounds):
            by_row = []
            at = self.errors(logs, slopes=by_row)
            good = [i for i, x in enumerate(at) if x is not None]
            slopes = [list(column) for column in zip(*by_row)]
            weights = [1 / math.sqrt(1 + (at[k] / HUBER) ** 2) if k in good else 0 for k in range(len(at))]
            move = solve([[sum(w * a * b for w, a, b in zip(weights, p, q)) + (self.args.damping if p is q else 0)
                           for q in slopes] for p in slopes],
                         [-sum(w * a * (at[k] or 0) for k, (w, a) in enumerate(zip(weights, p))) for p in slopes])
            caps = [0.0 if path.startswith(("efficiency.", "of_types.")) else 99 for path in self.args.fit]
            logs = [min(cap, x + max(-0.7, min(0.7, m))) for x, m, cap in zip(logs, move, caps)]
            mean = sum(abs(math.expm1(at[k])) for k in good) / len(good)
            print(f"mean {100 * mean:.1f} % before: " + ", ".join(f"{p} {math.exp(x):.4g}" for p, x in zip(self.args.fit, logs)),
                  flush=True)
        return logs


def solve(a, b):
    n = len(b)
    rows = [list(a[i]) + [b[i]] for i in range(n)]
    for i in range(n):
        p = max(range(i, n), key=lambda k: abs(rows[k][i]))
        rows[i], rows[p] = rows[p], rows[i]
        for k in range(n):
            if k != i:
                times = rows[k][i] / rows[i][i]
                rows[k] = [x - times * y for x, y in zip(rows[k], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def report(name, rows, errors):
    good = [(row, math.expm1(e)) for row, e in zip(rows, errors) if e is not None]
    if not good:
        return
    print(f"{name}: {len(good)} rows, mean {100 * sum(abs(e) for _, e in good) / len(good):.1f} %, "
          f"mean signed {100 * sum(e for _, e in good) / len(good):+.1f} %, "
          f"from {100 * min(e for _, e in good):+.1f} to {100 * max(e for _, e in good):+.1f} %")
    for row, e in good:
        print(f"   {100 * e:+6.1f} %  {row.what}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster")
    parser.add_argument("--hocket", default=os.path.join(published_rows.ROOT, "build", "hocket"))
    parser.add_argument("--machine", action="append", required=True)
    parser.add_argument("--fit", nargs="+", required=True)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", help="rows whose name has this text")
    parser.add_argument("--without", action="append", default=[], help="no rows whose name has this text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--damping", type=float, default=0.05)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows = [row for row in published_tables.all_rows() if row.machine in args.machine]
    rows = [row for row in rows if not any(text in row.what for text in args.without)]
    rows = [row for row in rows if not args.only or args.only in row.what]
    chosen = rows[args.first::args.every]
    others = [row for row in rows if row not in chosen]
    fit = Fit(args, chosen)
    logs = fit.run()
    report("fitted", chosen, fit.errors(logs))
    report("held out", others, fit.errors(logs, others))
    if args.write:
        with open(args.cluster, "w", encoding="utf-8") as f:
            f.write(with_constants(fit.text, {p: float(f"{math.exp(x):.3g}") for p, x in zip(args.fit, logs)}))


if __name__ == "__main__":
    main()
