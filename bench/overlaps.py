#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures MegaScale's three overlaps (arXiv 2402.15627) on tp 2 x pp 2 x dp 2 in a cluster in a box.

    sudo bench/overlaps.py [--rounds 12] [--json FILE]

8 ranks on 4 hosts run one small model on an emulated device (`emulate`, docs/cluster-in-a-box.md): lanes are held for
the durations of a large model, whose bytes go through the links. One run has all variants, blocks of steps in turn:
    none   nothing overlaps: products wait for whole collectives, compute for messages, gradient reductions come last
    tp     collectives beside products, in blocks (plan.comm_tiles, with plan.sequence_parallel)
    pp     messages between stages in lanes of their own, posted ahead (plan.overlap_p2p_comm)
    dp     gradient reductions begin in the backward pass (plan.overlap_grad_reduce)
    all    all three of them
For each round, the step of `none` is divided by that of each other variant. Printed are quartiles, and beside them
the prediction of `hocket simulate` for the same plans on the same cluster file."""
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

import in_box
from in_box import ROOT, sets

sys.path.insert(0, os.path.join(ROOT, "tools"))
import netbox  # noqa: E402

CLUSTER = os.path.join(ROOT, "configs", "clusters", "box-4x2.yaml")
OFF = {"tp": "plan.comm_tiles=1", "pp": "plan.overlap_p2p_comm=false", "dp": "plan.overlap_grad_reduce=false"}
PLAN = ["plan.tp=2", "plan.pp=2", "plan.dp=2", "plan.sequence_parallel=true", "plan.ranks_per_node=2",
        "plan.threads_per_rank=1", "plan.bucket_mib=0.1"]


def variants(tiles):
    """Returns the keys of each variant, by name."""
    on = {"tp": f"plan.comm_tiles={tiles}", "pp": "plan.overlap_p2p_comm=true", "dp": "plan.overlap_grad_reduce=true"}
    which = {"none": [], "tp": ["tp"], "pp": ["pp"], "dp": ["dp"], "all": ["tp", "pp", "dp"]}
    return {name: [on[key] if key in among else OFF[key] for key in OFF] for name, among in which.items()}


def measure(args):
    """Returns the JSON of the box's rank 0, and the traffic of the links."""
    command = [args.hocket, "bench", "step", "--config", args.config, "--steps", str(args.rounds), "--warmup", "2",
               "--block", str(args.block)]
    command += sets(PLAN + args.set + [f"emulate.cluster={args.cluster}", f"emulate.set=[{args.play}]"])
    for name, keys in variants(args.tiles).items():
        command += ["--variant", f"{name}={','.join(keys)}"]
    with tempfile.TemporaryDirectory() as folder:
        links = os.path.join(folder, "links.json")
        box = [sys.executable, os.path.join(ROOT, "tools", "cluster"), "--hosts", "4", "--ranks-per-host", "2",
               "--rate", args.rate, "--inside", args.inside, "--json", links, "--files", folder,
               "--timeout", str(args.timeout), "--", *command]
        ran = subprocess.run(box, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode != 0:
            sys.exit(f"overlaps.py: {shlex.join(box)} ended with {ran.returncode}:\n{ran.stdout[-3000:]}")
        found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"world"')]
        with open(links, encoding="utf-8") as f:
            return found[-1], json.load(f)


def simulate(args, keys):
    """Returns the simulator's prediction of the emulated run's step, in seconds."""
    model = ["--set", f"emulate.cluster={args.cluster}"]
    words = [args.hocket, "simulate", args.config, "--cluster", args.cluster, "--json",
             *sets(PLAN + args.set + [key for key in args.play.split(",") if key] + keys), *model]
    return json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)["step_s"]


def options():
    ap = in_box.options(__doc__)
    ap.add_argument("--config", default=os.path.join(ROOT, "configs", "models", "box-dense"))
    ap.add_argument("--cluster", default=CLUSTER, help="whose devices are emulated")
    ap.add_argument("--rate", default="40mbit", help="of the hosts' links, as of tools/cluster")
    ap.add_argument("--inside", default="100mbit", help="of the ranks' links inside")
    ap.add_argument("--set", action="append", default=["train.global_batch=8", "plan.micro_batch=1",
                                                       "train.seq_len=64"], help="keys of the run")
    ap.add_argument("--play", default="train.seq_len=512", help="keys of the emulated run (emulate.set)")
    ap.add_argument("--tiles", type=int, default=3)
    ap.add_argument("--rounds", type=int, default=12)
    ap.add_argument("--block", type=int, default=1, help="steps of a block")
    ap.add_argument("--timeout", type=float, default=600.0)
    return ap


def main():
    args = options().parse_args()
    reason = netbox.why_not()
    if reason:
        sys.exit(f"overlaps.py: {reason}")
    result, links = measure(args)
    by_name = {variant["name"]: variant for variant in result["variants"]}
    base = by_name["none"]["step_ms"]
    print(by_name["none"]["device"])
    print(f"4 hosts x 2 ranks, {args.rate}, inside {args.inside}; {args.rounds} rounds of {args.block} step(s)")
    print(f"{'':6}{'step ms':>10}{'over':>8}{'lower':>9}{'median':>9}{'upper':>9}{'simulated':>11}{'loss':>10}")
    simulated = {name: simulate(args, keys) for name, keys in variants(args.tiles).items()}
    for name, variant in by_name.items():
        speedup = [b / own for b, own in zip(base, variant["step_ms"])]
        lower, middle, upper = statistics.quantiles(speedup, n=4, method="inclusive")
        variant["speedup"] = speedup
        over = variant["over_ms"] / variant["held_ms"]
        print(f"{name:6}{variant['median_ms']:10.1f}{over:8.1%}{lower:9.3f}{middle:9.3f}{upper:9.3f}"
              f"{simulated['none'] / simulated[name]:11.3f}{variant['loss']:10.5f}")
    print("step ms: median; over: by how much tasks of rank 0 took longer than emulated; lower, median, upper: quartiles "
          "of the speedup over none")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"result": result, "links": links, "simulated_s": simulated}, f, indent=1)


if __name__ == "__main__":
    main()
