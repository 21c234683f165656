#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares data-parallel trainers in turn on one cluster in a box: step times and exposed communication.

    bench/compare_dist.py --hosts 4 --rate 1gbit --sides ddp,ddp-best --side 'hocket=COMMAND'
    bench/compare_dist.py --hosts 4 --rate 200mbit --sides fsdp2,fsdp2-best --side 'hocket=COMMAND'

A side is a command that runs on every rank of the box with a launcher's variables. Its rank 0 prints, last, a JSON
object on a line of its own:
    {"step_ms": [..], "quiet_ms": [..], "exposed_ms": x, "tokens_per_step": n, "loss": y}
of blocks of steps, where a quiet step is the same step with collectives that return at once (bench/peer_dist.py has
the exact definition). bench/peer_dist.py implements the PyTorch sides: ddp, ddp-best, fsdp2, fsdp2-best, and
fsdp2-keep, whose parameters stay whole from the forward to the backward. Every round runs each side once, in the
reverse order of the previous round; the box and its links stay the same.
The bytes are those that left the hosts' links during a side's run: all of its steps, its start included.

The first side that is not PyTorch's is compared with each of the others: per round, step time of the other
over its own, and its exposed communication over the other's; medians over rounds, with the range. With
`--json FILE` all figures are written there, and a row per side goes to bench/results/compare_dist.md
(`--no-row`: none)."""
import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import netbox  # noqa: E402
from networds import parse_rate, parse_time, per_host, show_rate  # noqa: E402

PEER = os.path.join(ROOT, "bench", "peer_dist.py")
PEERS = {
    "ddp": "--mode ddp",
    "ddp-best": "--mode ddp --best",
    "fsdp2": "--mode fsdp2",
    "fsdp2-best": "--mode fsdp2 --best",
    "fsdp2-keep": "--mode fsdp2 --best --keep",
}


class Side:
    """A command, and the results of its runs."""

    def __init__(self, name, command, is_peer):
        self.name, self.command, self.is_peer, self.runs = name, command, is_peer, []

    def values(self, key):
        return [run[key] for run in self.runs]


def out_bytes(box):
    return [link.counters()["out"]["bytes"] for link in box.uplinks]


def last_object(text):
    """Returns the last line that is a JSON object, parsed, or None."""
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def run_side(box, side, port, timeout):
    """Runs a side once on all ranks; returns its result with the bytes that left each host."""
    before = out_bytes(box)
    logs = [os.path.join(box.folder, f"{side.name}-{rank}.log") for rank in range(len(box.ranks))]
    children = []
    for rank, log in enumerate(logs):
        with open(log, "wb") as f:
            children.append(box.start(side.command, rank=rank, variables={"MASTER_PORT": port}, cwd=ROOT,
                                      stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT))
    end = time.monotonic() + timeout
    while any(c.poll() is None for c in children):
        if time.monotonic() > end or any(c.poll() for c in children):
            break
        time.sleep(0.05)
    codes = [c.poll() for c in children]
    box.kill_all()
    for c in children:
        c.wait()
    texts = [open(log, encoding="utf-8", errors="replace").read() for log in logs]
    if any(codes):
        bad = next(r for r, code in enumerate(codes) if code)
        sys.exit(f"compare_dist.py: {side.name}: rank {bad} ended with {codes[bad]}:\n{texts[bad][-3000:]}")
    if None in codes:
        sys.exit(
            f"compare_dist.py: {side.name} was not done in {timeout:g} s; --timeout gives it more:\n{texts[0][-3000:]}"
        )
    result = last_object(texts[0])
    wanted = ("step_ms", "quiet_ms", "exposed_ms", "tokens_per_step")
    if result is None or any(key not in result for key in wanted):
        sys.exit(
            f"compare_dist.py: {side.name}: rank 0 printed no JSON object with {', '.join(wanted)}:\n{texts[0][-3000:]}"
        )
    result["median_ms"] = statistics.median(result["step_ms"])
    result["out_bytes"] = [b - a for a, b in zip(before, out_bytes(box))]
    return result


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def compare(ours, other):
    """Returns our speed-up over another side and our share of its exposed communication, per round."""
    return {
        "over": other.name,
        "speedup": [b / a for a, b in zip(ours.values("median_ms"), other.values("median_ms"))],
        "exposed_share": [
            a / b if b > 0 else float("nan")
            for a, b in zip(ours.values("exposed_ms"), other.values("exposed_ms"))
        ],
    }


def show(sides, ours):
    print(f"{'side':14}{'step ms':>10}{'quiet ms':>10}{'exposed ms':>12}{'tokens/s':>10}{'GB out':>9}{'loss':>9}")
    for s in sides:
        step, quiet = statistics.median(s.values("median_ms")), statistics.median(sum(s.values("quiet_ms"), []))
        tokens = s.runs[0]["tokens_per_step"] / step * 1e3
        gb = sum(s.runs[-1]["out_bytes"]) / 1e9
        loss = s.runs[-1].get("loss", float("nan"))
        print(
            f"{s.name:14}{step:10.1f}{quiet:10.1f}{statistics.median(s.values('exposed_ms')):12.1f}{tokens:10.0f}{gb:9.2f}{loss:9.4f}"
        )
    rows = [compare(ours, s) for s in sides if s is not ours] if ours else []
    for row in rows:
        print(f"{ours.name} over {row['over']}: {spread(row['speedup'])} times as fast; "
              f"exposed communication {spread(row['exposed_share'])} of its")
    return rows


def append_rows(path, sides, args):
    new = not os.path.exists(path)
    with open(path, "a") as f:
        if new:
            f.write(
                "# Data parallelism on a cluster in a box\n\nWritten by `bench/compare_dist.py`, which says what the figures are.\n\n"
                "| date | box | model, tokens a step | side | step ms | quiet ms | exposed ms | rounds | note |\n"
                "|---|---|---|---|---|---|---|---|---|\n"
            )
        for s in sides:
            f.write(
                f"| {datetime.date.today()} | {args.hosts} x {args.ranks_per_host}, {args.rate}, delay {args.delay} | "
                f"{os.path.basename(args.config)}, {s.runs[0]['tokens_per_step']} | {s.name} | "
                f"{statistics.median(s.values('median_ms')):.1f} | {statistics.median(sum(s.values('quiet_ms'), [])):.1f} | "
                f"{statistics.median(s.values('exposed_ms')):.1f} | {args.rounds} | {args.label} |\n"
            )


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hosts", type=int, default=4)
    ap.add_argument("--ranks-per-host", type=int, default=1)
    ap.add_argument("--rate", default="1gbit", help="as of tools/cluster")
    ap.add_argument("--delay", default="0", help="as of tools/cluster")
    ap.add_argument("--inside", help="as of tools/cluster")
    ap.add_argument(
        "--sides",
        default="ddp,ddp-best",
        help=f"PyTorch's sides, of {', '.join(PEERS)} (default ddp,ddp-best)",
    )
    ap.add_argument(
        "--side",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another side; may be given more than once",
    )
    ap.add_argument(
        "--config",
        default="dense",
        help="of the PyTorch sides: dense, moe, or a Hugging Face config.json or its folder",
    )
    ap.add_argument("--batch", type=int, default=1, help="of the PyTorch sides: sequences of a rank")
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument(
        "--blocks", type=int, default=4, help="of the PyTorch sides: blocks of a run, true and quiet each"
    )
    ap.add_argument("--block", type=int, default=2, help="of the PyTorch sides: steps of a block")
    ap.add_argument("--peer-args", default="", help="more arguments of peer_dist.py")
    ap.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"))
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--timeout", type=float, default=600.0, help="seconds for one run of a side")
    ap.add_argument("--results", default=os.path.join(ROOT, "bench", "results"))
    ap.add_argument("--no-row", action="store_true", help="write nothing to bench/results/")
    ap.add_argument("--label", default="", help="a word about this run, for the rows")
    ap.add_argument("--json", metavar="FILE")
    return ap


def parse():
    """Parses the options and the sides."""
    ap = options()
    args = ap.parse_args()
    try:
        args.rates = per_host(args.rate, parse_rate, args.hosts, "rate")
        args.delays = per_host(args.delay, parse_time, args.hosts, "delay")
        args.inside_rate = args.inside and parse_rate(args.inside)
    except argparse.ArgumentTypeError as e:
        ap.error(str(e))
    common = (f" --config {shlex.quote(args.config)} --batch {args.batch} --seq {args.seq} --blocks {args.blocks}"
              f" --block {args.block} {args.peer_args}")
    sides = []
    for name in filter(None, args.sides.split(",")):
        if name not in PEERS:
            ap.error(f"--sides: no side '{name}'; expected some of {', '.join(PEERS)}")
        sides.append(Side(name, [args.python, PEER, *shlex.split(PEERS[name] + common)], True))
    for text in args.side:
        name, equals, command = text.partition("=")
        if not equals or not command.strip():
            ap.error(f"--side '{text}': expected NAME=COMMAND")
        sides.append(Side(name, shlex.split(command), False))
    if not sides or args.rounds < 1:
        ap.error("expected at least one side and one round")
    return args, sides


def main():
    args, sides = parse()
    reason = netbox.why_not()
    if reason:
        sys.exit(f"compare_dist.py: {reason}")
    with netbox.Box(args.rates, args.delays, args.ranks_per_host, args.inside_rate) as box:
        print(
            f"{args.hosts} hosts x {args.ranks_per_host} ranks, {', '.join(dict.fromkeys(map(show_rate, args.rates)))}",
            flush=True,
        )
        port = 29500
        for r in range(args.rounds):
            for side in sides if r % 2 == 0 else sides[::-1]:
                port += 1  # the previous port may linger in TIME_WAIT
                side.runs.append(run_side(box, side, port, args.timeout))
                last = side.runs[-1]
                print(
                    f"round {r + 1}  {side.name:12} step {last['median_ms']:9.1f} ms  exposed {last['exposed_ms']:9.1f} ms",
                    flush=True,
                )
    ours = next((s for s in sides if not s.is_peer), None)
    rows = show(sides, ours)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"sides": {s.name: s.runs for s in sides}, "comparisons": rows}, f, indent=1)
    if not args.no_row:
        os.makedirs(args.results, exist_ok=True)
        append_rows(os.path.join(args.results, "compare_dist.md"), sides, args)


if __name__ == "__main__":
    main()
