#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times `hocket batch` with four workers of which one is several times slower, beside a static split of the same rows.

    bench/batch_straggler.py
    bench/batch_straggler.py --rows 40000 --slow 8

Every worker is a real process that runs only a share of the time (SIGSTOP and SIGCONT, in turns of 120 ms): a third
for three of them, and that over --slow for the last one. So four workers of one thread take no more than two cores,
and none is slowed by another one: a run on fewer free cores measures the cores. The dynamic run is one job, whose
master hands out shards; the static one is four jobs at the same time, each with a worker and a quarter of the rows,
and ends with its last one. Times are from the first start to the last end, loading and merging included. Prints the
table, and exits with 1 if the outputs differ, or the static split takes less than --least times as long."""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/cli")]
import cli_util  # noqa: E402

WORKERS = 4
TURN_S = 0.12
WORDS = ["int", "x", "=", "return", "{", "}", "std", "template"]


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def cpu_seconds(pid):
    """Returns the processor time of a process; 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0


class Turns:
    """Lets worker number i, once it is there, run in its own part of every turn; `used` has their processor times."""

    def __init__(self, masters, slow):
        self.masters, self.slow, self.pids, self.used = masters, slow, [None] * WORKERS, [0] * WORKERS
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=self.drive, args=(i,)) for i in range(WORKERS)]
        for thread in self.threads:
            thread.start()

    def find(self, number):
        master = self.masters[number % len(self.masters)]
        found = cli_util.children(master.pid)
        if len(self.masters) > 1:
            return found[0] if found else None
        return sorted(found)[number] if len(found) == WORKERS else None

    def drive(self, number):
        share = TURN_S / 3 / (self.slow if number == WORKERS - 1 else 1)
        begin = TURN_S / 3 * (number % 3)
        start = time.monotonic() - time.monotonic() % TURN_S
        while not self.ends.is_set():
            if self.pids[number] is None:
                self.pids[number] = self.find(number)
                time.sleep(0.005)
                continue
            pid = self.pids[number]
            turn = int((time.monotonic() - start) / TURN_S) + 1
            try:
                self.wait(start + turn * TURN_S + begin)
                os.kill(pid, signal.SIGCONT)
                self.wait(start + turn * TURN_S + begin + share)
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                return
            self.used[number] = max(self.used[number], cpu_seconds(pid))

    def wait(self, until):
        self.ends.wait(max(0, until - time.monotonic()))

    def end(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()
        for pid in self.pids:
            try:
                if pid is not None:
                    os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass


def run(options, folder, jobs, workers):
    """Runs a job per (input, output folder); returns seconds, and the processor seconds of each worker."""
    def command(rows, out):
        return [options.hocket, "batch", options.model or "runs/quickstart", "--input", rows, "--out", out, "--workers",
                str(workers), "--max-num-seqs", "8", "--max-new-tokens", "40", "--ignore-eos", "--temperature", "0",
                "--shard-seconds", "1", "--set", "plan.threads_per_rank=1"]
    began = time.monotonic()
    logs = [open(os.path.join(folder, f"{out}.log"), "w+", encoding="utf-8") for _, out in jobs]
    masters = [subprocess.Popen(command(*job), cwd=folder, stdout=log, stderr=subprocess.STDOUT,
                                stdin=subprocess.DEVNULL) for job, log in zip(jobs, logs)]
    turns = Turns(masters, options.slow)
    try:
        for master, log in zip(masters, logs):
            if master.wait() != 0:
                log.seek(0)
                sys.exit(f"hocket batch ended with {master.returncode}:\n{log.read()[-3000:]}")
        return time.monotonic() - began, turns.used
    finally:
        turns.end()
        for master in masters:
            master.kill()


def output(folder, outs):
    lines = []
    for out in outs:
        with open(os.path.join(folder, out, "output.jsonl"), encoding="utf-8") as f:
            lines += [json.loads(line)["text"] for line in f]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--slow", type=float, default=4, help="times that the last worker is slower")
    parser.add_argument("--least", type=float, default=1.8)
    parser.add_argument("--hocket", default=cli_util.HOCKET)
    parser.add_argument("--model", help="in place of a tiny one that is trained first")
    options = parser.parse_args()
    options.hocket = os.path.abspath(options.hocket)
    rng = random.Random(1)
    rows = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(options.rows)]
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            box = cli_util.Sandbox(folder)
            box.prepare()
            box.train()
        else:
            options.model = os.path.abspath(options.model)
        write_rows(os.path.join(folder, "rows.jsonl"), rows)
        ends = [len(rows) * i // WORKERS for i in range(WORKERS + 1)]
        for i in range(WORKERS):
            write_rows(os.path.join(folder, f"rows{i}.jsonl"), rows[ends[i]:ends[i + 1]])
        quarters = [(f"rows{i}.jsonl", f"static{i}") for i in range(WORKERS)]
        times = {}
        print(f"{len(rows)} rows, {WORKERS} workers, the last one {options.slow:g} times slower, {os.cpu_count()} cores "
              f"with a load of {os.getloadavg()[0]:.1f}", flush=True)
        print(f"{'split':8} {'seconds':>8}  processor seconds of each worker")
        for name, jobs, workers in (("dynamic", [("rows.jsonl", "dynamic")], WORKERS), ("static", quarters, 1)):
            times[name], used = run(options, folder, jobs, workers)
            print(f"{name:8} {times[name]:8.1f}  " + " ".join(f"{seconds:.1f}" for seconds in used), flush=True)
        same = output(folder, ["dynamic"]) == output(folder, [out for _, out in quarters])
    ratio = times["static"] / times["dynamic"]
    ideal = (WORKERS - 1 + 1 / options.slow) * options.slow / WORKERS
    print(f"static / dynamic: {ratio:.2f} (without loading and tails {ideal:.2f}); outputs are "
          f"{'the same' if same else 'DIFFERENT'}")
    return 0 if same and ratio >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
