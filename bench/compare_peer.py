#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the training-step time of Hocket with the PyTorch eager peer, alternating in one run on one machine.

Two processes are started and kept; each blocks on stdin (and so is idle) while the other runs a block of
steps. The order of the two changes from round to round. The result is the median over rounds of
(time of the peer's block / time of Hocket's block), with its quartiles, and peak memory of both as RSS above
the idle process. A markdown row goes to bench/results/. `--peer-vs-peer` runs two peers: the ratio must be 1.
`--old PATH` adds another hocket to the same rounds, to measure the effect of a change.

Line protocol of `peer_torch.py --interactive` and of `hocket bench step --config DIR --interactive`: on `step`
one training step, answered with {"ms": .., "loss": ..}; on `memory` {"rss_mib": .., "peak_mib": .., "idle_mib": ..};
on `quit` the process ends."""
import argparse
import datetime
import json
import os
import platform
import select
import shlex
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEER = os.path.join(ROOT, "bench", "peer_torch.py")
CONFIGS = {"dense": "configs/models/dense-26m", "moe": "configs/models/moe-36m"}


class Side:
    """One process that answers the line protocol."""

    def __init__(self, name, command, timeout):
        self.name, self.timeout, self.buffer = name, timeout, b""
        # Idle threads must sleep, not spin beside the other process.
        env = dict(os.environ, OMP_WAIT_POLICY="passive")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT)

    def ask(self, command):
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            sys.exit(f"compare_peer.py: {self.name} ended early (exit code {self.process.wait()})")
        end = time.monotonic() + self.timeout
        while True:
            while b"\n" not in self.buffer:
                ready = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]
                if not ready:
                    self.process.kill()
                    sys.exit(f"compare_peer.py: {self.name} gave no answer to `{command}` in {self.timeout} s")
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    sys.exit(f"compare_peer.py: {self.name} ended early (exit code {self.process.wait()})")
                self.buffer += data
            line, _, self.buffer = self.buffer.partition(b"\n")
            try:
                answer = json.loads(line)
            except ValueError:
                continue  # a progress line
            if isinstance(answer, dict):
                if "error" in answer:
                    sys.exit(f"compare_peer.py: {self.name}: {answer['error']}")
                return answer

    def quit(self):
        self.process.stdin.write(b"quit\n")
        self.process.stdin.close()
        self.process.wait(timeout=30)


def other_load(seconds=1.0):
    """Returns the share of all cores that the rest of the machine uses while both processes wait."""
    def read():
        with open("/proc/stat") as f:
            v = [int(x) for x in f.readline().split()[1:]]
        return sum(v) - v[3] - v[4], sum(v)

    a = read()
    time.sleep(seconds)
    b = read()
    return (b[0] - a[0]) / max(1, b[1] - a[1])


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", choices=tuple(CONFIGS), default="dense")
    ap.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    ap.add_argument("--old", help="another hocket executable, timed in the same rounds")
    ap.add_argument("--hocket-args", default="", help="more arguments of `hocket bench step`")
    ap.add_argument("--peer-args", default="", help="more arguments of peer_torch.py (e.g. '--gemm mkl')")
    ap.add_argument("--peer-vs-peer", action="store_true", help="self-test: two peers against one another")
    ap.add_argument("--python", default=sys.executable)
    ap.add_argument("--rounds", type=int, default=30)
    ap.add_argument("--block", type=int, default=3, help="steps per block")
    ap.add_argument("--warmup", type=int, default=5, help="steps of each before the first block")
    ap.add_argument("--tokens", type=int, default=2048, help="tokens per step, of both")
    ap.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer")
    ap.add_argument("--results", default=os.path.join(ROOT, "bench", "results"))
    ap.add_argument("--no-row", action="store_true", help="write nothing to bench/results/")
    ap.add_argument("--label", default="", help="a word about this run, for the row")
    ap.add_argument("--json", action="store_true")
    args = ap.parse_args()
    if args.rounds < 1 or args.block < 1:
        ap.error("--rounds and --block must be at least 1")

    config = CONFIGS[args.model]
    peer = [args.python, PEER, "--model", args.model, "--config", config, "--interactive", *shlex.split(args.peer_args)]
    if args.peer_vs_peer:
        ours_name, ours = "peer (second)", peer
    else:
        if not os.path.exists(args.hocket):
            sys.exit(f"compare_peer.py: {args.hocket} does not exist; try `make build`")
        ours_name = "hocket"
        ours = [args.hocket, "bench", "step", "--config", config, "--interactive", *shlex.split(args.hocket_args)]
    a, b = Side("peer", peer, args.timeout), Side(ours_name, ours, args.timeout)
    sides = [a, b]
    if args.old:
        sides.append(Side("old hocket", [args.old, *ours[1:]], args.timeout))

    for side in sides:
        for _ in range(args.warmup):
            side.ask("step")
    load = [other_load()]
    steps = {side: [] for side in sides}
    blocks = {side: [] for side in sides}
    losses = {}
    for r in range(args.rounds):
        for side in sides if r % 2 == 0 else sides[::-1]:
            answers = [side.ask("step") for _ in range(args.block)]
            ms = [x["ms"] for x in answers]
            steps[side] += ms
            blocks[side].append(sum(ms))
            losses[side] = answers[-1].get("loss")
        if r % 10 == 9:
            load.append(other_load())
        if not args.json:
            print(f"round {r + 1:3}  peer {blocks[a][-1] / args.block:8.1f} ms  {b.name} {blocks[b][-1] / args.block:8.1f} ms"
                  f"  ratio {blocks[a][-1] / blocks[b][-1]:.3f}", flush=True)
    memory = {side: side.ask("memory") for side in sides}
    for side in sides:
        side.quit()

    ratios = sorted(x / y for x, y in zip(blocks[a], blocks[b]))
    q = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    above = {s: memory[s]["peak_mib"] - memory[s]["idle_mib"] for s in sides}
    median = {s: statistics.median(steps[s]) for s in sides}
    result = {
        "model": args.model, "rounds": args.rounds, "block": args.block,
        "peer_ms": round(median[a], 1), "ours_ms": round(median[b], 1),
        "peer_min_ms": round(min(steps[a]), 1), "ours_min_ms": round(min(steps[b]), 1),
        "peer_tokens_per_s": round(args.tokens / median[a] * 1e3, 1),
        "ours_tokens_per_s": round(args.tokens / median[b] * 1e3, 1),
        "speedup_median": round(q[1], 4), "speedup_quartiles": [round(q[0], 4), round(q[2], 4)],
        "speedup_range": [round(ratios[0], 4), round(ratios[-1], 4)],
        "peer_peak_above_idle_mib": round(above[a], 1), "ours_peak_above_idle_mib": round(above[b], 1),
        "memory_ratio": round(above[b] / above[a], 4), "other_load": round(max(load), 3),
        "peer_loss": losses[a], "ours_loss": losses[b], "cpu": cpu_name(), "peer_args": args.peer_args}
    against_old = ""
    if args.old:
        old = sides[2]
        change = statistics.quantiles([x / y for x, y in zip(blocks[old], blocks[b])], n=4)
        old_speedup = statistics.quantiles([x / y for x, y in zip(blocks[a], blocks[old])], n=4)
        result["over_old"] = [round(x, 4) for x in change]
        result["old_speedup"] = [round(x, 4) for x in old_speedup]
        result["old_memory_ratio"] = round(above[old] / above[a], 4)
        result["old_loss"] = losses[old]
        against_old = (f"old: {old_speedup[1]:.3f} ({old_speedup[0]:.3f} to {old_speedup[2]:.3f}), memory "
                       f"{result['old_memory_ratio']:.2f}; new over old {change[1]:.3f} ({change[0]:.3f} to {change[2]:.3f})")
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{args.model}: peer {result['peer_tokens_per_s']:.0f} tokens/s, {b.name} {result['ours_tokens_per_s']:.0f} tokens/s; "
              f"speed-up {q[1]:.3f} (quartiles {q[0]:.3f} to {q[2]:.3f}, {args.rounds} rounds of {args.block} steps)")
        print(f"peak above idle: peer {above[a]:.0f} MiB, {b.name} {above[b]:.0f} MiB, ratio {result['memory_ratio']:.2f}; "
              f"other load {100 * result['other_load']:.0f} % of the cores")
        if against_old:
            print(against_old)
    if not args.no_row and not args.peer_vs_peer:
        os.makedirs(args.results, exist_ok=True)
        path = os.path.join(args.results, "compare_peer.md")
        new = not os.path.exists(path)
        with open(path, "a") as f:
            if new:
                f.write("# Training step: Hocket against PyTorch eager\n\nWritten by `bench/compare_peer.py`; 2 threads, fp32, "
                        "4 x 512 tokens; speed-up = peer's time / Hocket's time, median over rounds (quartiles).\n\n"
                        "| date | CPU | model | peer tokens/s | Hocket tokens/s | speed-up | peak above idle, MiB: peer, Hocket | "
                        "ratio | other load | peer arguments | note |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
            f.write(f"| {datetime.date.today()} | {result['cpu']} | {args.model} | {result['peer_tokens_per_s']:.0f} | "
                    f"{result['ours_tokens_per_s']:.0f} | {q[1]:.3f} ({q[0]:.3f} to {q[2]:.3f}) | {above[a]:.0f}, {above[b]:.0f} | "
                    f"{result['memory_ratio']:.2f} | {100 * result['other_load']:.0f} % | {args.peer_args or 'defaults'} | {', '.join(x for x in (against_old, args.label) if x)} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
