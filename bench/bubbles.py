#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the bubble shares of pipeline schedules from traces of training in a cluster in a box.

    sudo bench/bubbles.py [--schedules 1f1b,zb-h1] [--json FILE]

4 hosts, each with one stage (or two half stages), train one small model on an emulated device (`emulate`,
docs/cluster-in-a-box.md): compute lanes are held for the durations of a larger model, and messages cross the links.
Each schedule trains for some steps. The trace of the last step gives each rank's share of the forward and backward
passes in which the rank does not compute (tools/traceshares.py). Printed beside it are the share in the trace that
`hocket simulate` predicts for the same plan, and the share in the schedule's own table, where F, I and W take equal
times and messages take none."""
import json
import os
import shlex
import subprocess
import sys
import tempfile

import in_box
from in_box import ROOT, sets

sys.path.insert(0, os.path.join(ROOT, "tools"))
import netbox  # noqa: E402
import traceshares  # noqa: E402

CLUSTER = os.path.join(ROOT, "configs", "clusters", "box-4x2.yaml")
RANKS = 4
CHUNKS = {"interleaved": 2, "zb-v": 2}  # stages per rank, where not 1
RUN = """
model:
  config: {model_type: llama, vocab_size: 288, hidden_size: 128, num_hidden_layers: 8, num_attention_heads: 4,
           num_key_value_heads: 4, head_dim: 32, intermediate_size: 384, rms_norm_eps: 1.0e-6,
           max_position_embeddings: 2048, hidden_act: silu, tie_word_embeddings: false}
data: {files: ["%(dir)s/text/*.txt"], dir: "%(dir)s/data", tokenizer: "%(dir)s/tok", vocab_size: 288, valid_fraction: 0}
train: {steps: 3, global_batch: %(batch)d, seq_len: %(sequence)d, warmup_steps: 1}
plan: {pp: %(ranks)d, micro_batch: 1, threads_per_rank: 1, ranks_per_node: 1}
output: {dir: "%(dir)s/run", report: false, sample_tokens: 0, baselines: none}
"""


def write_run(folder, args):
    """Writes a run.yaml with data of its own."""
    os.mkdir(os.path.join(folder, "text"))
    for i in range(8):
        with open(os.path.join(folder, "text", f"{i}.txt"), "w", encoding="utf-8") as f:
            f.write(" ".join(f"word{(i * 37 + k * k) % 211}" for k in range(4000)))
    run = os.path.join(folder, "run.yaml")
    with open(run, "w", encoding="utf-8") as f:
        f.write(RUN % {"dir": folder, "batch": args.micro_batches, "sequence": args.sequence, "ranks": RANKS})
    for verb in ("train-tokenizer", "prepare"):
        subprocess.run([args.hocket, "data", verb, run], check=True, capture_output=True)
    return run


def keys_of(schedule):
    keys = [f"plan.pp_schedule={schedule}"]
    if schedule in CHUNKS:
        keys.append(f"plan.pp_chunks={CHUNKS[schedule]}")
    return sets(keys)


def measured(args, folder, run, schedule):
    """Returns the shares in the trace of a training run."""
    command = [args.hocket, "train", run, *keys_of(schedule), "--set", f"emulate.cluster={args.cluster}", "--set",
               f"emulate.set=[train.seq_len={args.played}]", "--set", f"output.dir={os.path.join(folder, schedule)}"]
    box = [sys.executable, os.path.join(ROOT, "tools", "cluster"), "--hosts", str(RANKS), "--rate", args.rate,
           "--files", folder, "--timeout", str(args.timeout), "--", *command]
    ran = subprocess.run(box, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"bubbles.py: {shlex.join(box)} ended with {ran.returncode}:\n{ran.stdout[-3000:]}")
    return traceshares.shares(os.path.join(folder, schedule, "trace.json.gz"))


def simulated(args, folder, run, schedule):
    """Returns the shares that the simulator predicts for the emulated run."""
    trace = os.path.join(folder, "predicted.json")
    words = [args.hocket, "simulate", run, *keys_of(schedule), "--cluster", args.cluster, "--set",
             f"train.seq_len={args.played}", "--trace", trace]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return traceshares.shares(trace)


def of_table(args, schedule):
    words = [args.hocket, "simulate", "schedule", schedule, "--ranks", str(RANKS), "--micro-batches",
             str(args.micro_batches), "--json"]
    if schedule in CHUNKS:
        words += ["--chunks", str(CHUNKS[schedule])]
    return json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)["bubble"]


def options():
    ap = in_box.options(__doc__)
    ap.add_argument("--schedules", default="gpipe,1f1b,interleaved,zb-h1,zb-v")
    ap.add_argument("--cluster", default=CLUSTER, help="whose device is emulated")
    ap.add_argument("--rate", default="40mbit", help="of the hosts' links, as of tools/cluster")
    ap.add_argument("--micro-batches", type=int, default=8)
    ap.add_argument("--sequence", type=int, default=64, help="tokens of a micro-batch that are really computed")
    ap.add_argument("--played", type=int, default=512, help="tokens of the emulated run")
    ap.add_argument("--timeout", type=float, default=300.0)
    return ap


def main():
    args = options().parse_args()
    reason = netbox.why_not()
    if reason:
        sys.exit(f"bubbles.py: {reason}")
    print(f"{RANKS} hosts, {args.rate}, {args.micro_batches} micro-batches; compute is emulated")
    print(f"{'schedule':12}{'bubble':>9}{'least':>8}{'most':>8}{'simulated':>11}{'table':>8}{'step ms':>10}")
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(folder, args)
        for schedule in args.schedules.split(","):
            found = measured(args, folder, run, schedule)
            of_rank = [row["bubble"] for rank, row in found.items() if rank != "all"]
            row = {"measured": found, "simulated": simulated(args, folder, run, schedule),
                   "table": of_table(args, schedule)}
            rows[schedule] = row
            print(f"{schedule:12}{found['all']['bubble']:9.1%}{min(of_rank):8.1%}{max(of_rank):8.1%}"
                  f"{row['simulated']['all']['bubble']:11.1%}{row['table']:8.1%}{found['all']['step_ms']:10.1f}",
                  flush=True)
    print("bubble: mean of the ranks, with the least and the most of one; from the trace of a step")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
