#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the memory and losses of training in bf16 with the same training in f32.

    bench/short_types.py [--steps 200] [--seq 512] [--batch 4] [--only memory|losses] [--json FILE]

The models are configs/quickstart.yaml (prepared data: --data) and configs/models/box-dense, for which a tokenizer of
512 tokens is made of C++ headers. Each is trained in f32, in bf16 with parameter gradients in f32, and in bf16 with
train.grad_dtype: model. Printed for each:
    memory   by purpose, of one rank (blocks of `hocket simulate --html`): activations, gradients and workspaces count
             with their highest total at one time. A short run adds the pages that it reports, and its resident set
    losses   the same steps, data and seed: mean of the last 20 losses, loss of the held-out data; tensors of plans are
             compared by tests/plans/shipped_precision_test.cc"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

import in_box
from in_box import ROOT, run, sets

WAYS = {"f32": ["model.dtype=f32"], "bf16": ["model.dtype=bf16"],
        "bf16, short gradients": ["model.dtype=bf16", "train.grad_dtype=model"]}
FILES = "/usr/include/c++/**/*.h"
# Kinds of blocks on the page -> purpose of the memory.
KINDS = {"kept for backward": "activations", "forward only": "activations", "backward only": "gradients of activations",
         "parameter gradient": "gradients of parameters", "workspace": "workspaces", "optimizer": "optimizer's buffers"}


def most_at_once(blocks):
    """Returns the largest total size of [begin, end) blocks that are live at one time."""
    changes = sorted([(b, size) for b, _, size in blocks] + [(e, -size) for _, e, size in blocks])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def planned(args, keys):
    """Returns the planned bytes by purpose."""
    page = run([args.hocket, "simulate", *keys, "--html", "-"])
    data = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.S).group(1))
    plan = data["memory"][0]
    assert plan["dropped"] == 0, plan["dropped"]
    backward = max(end for _, kind, _, end, _, _ in plan["blocks"] if kind == "backward only")
    found = {}
    for name, kind, begin, end, _, size in plan["blocks"]:
        # The head's loss computes the gradient of its weight in the forward pass already.
        of_head = kind == "kept for backward" and end > backward
        found.setdefault("gradients of parameters" if of_head else KINDS[kind], []).append((begin, end, size))
    sizes = {kind: most_at_once(blocks) for kind, blocks in found.items()}
    for name, size in plan["persistent"]:
        sizes[name] = size
    sizes["all, as planned"] = plan["planned"]
    return sizes


def train(args, keys, folder, steps):
    """Returns the metrics' lines, and the largest resident set in bytes."""
    command = [args.hocket, "train", *keys,
               *sets([f"output.dir={folder}", f"train.steps={steps}", "train.minutes=0", "train.save_minutes=0",
                      "output.report=false", "output.trace=false", "output.baselines=none", "output.sample_tokens=0",
                      "train.resume=false"])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"short_types.py: {' '.join(command)} ended with {process.returncode}:\n{errors[-2000:]}")
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f], usage.ru_maxrss * 1024


def losses_of(lines):
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    held_out = [line["eval/loss"] for line in lines if "eval/loss" in line]
    seconds = [line["perf/step_s"] for line in lines if "perf/step_s" in line]
    return {"last": statistics.fmean(losses[-20:]), "held_out": held_out[-1], "step_s": statistics.median(seconds)}


def models(args, folder):
    """Returns the command-line arguments of each model's run."""
    sizes = [f"train.seq_len={args.seq}", f"train.global_batch={args.batch}", f"plan.micro_batch={args.batch}"]
    quickstart = [os.path.join(ROOT, "configs", "quickstart.yaml"),
                  *sets([*sizes, f"data.dir={args.data}/data", f"data.tokenizer={args.data}/tokenizer",
                         "train.eval_every=0", "train.final_eval_sequences=24"])]
    path = os.path.join(folder, "box.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"model: {{path: {ROOT}/configs/models/box-dense}}\n"
                f"data: {{files: [\"{FILES}\"], dir: {folder}/data, tokenizer: {folder}/tokenizer, vocab_size: 512}}\n"
                "train: {lr: 0.002, warmup_steps: 20, final_eval_sequences: 24}\n")
    for verb in ("train-tokenizer", "prepare"):
        run([args.hocket, "data", verb, path])
    return {"quickstart": quickstart, "box-dense": [path, *sets(sizes)]}


def main():
    ap = in_box.options(__doc__)
    ap.add_argument("--data", default=os.path.join(ROOT, "runs", "quickstart"), help="what ./quickstart prepared")
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--only", choices=["memory", "losses"])
    ap.add_argument("--model", choices=["quickstart", "box-dense"])
    ap.add_argument("--way", action="append", choices=WAYS, help="default: all")
    args = ap.parse_args()
    result = {"steps": args.steps, "seq": args.seq, "batch": args.batch}
    with tempfile.TemporaryDirectory() as folder:
        for model, words in models(args, folder).items():
            if args.model not in (None, model):
                continue
            for number, (way, keys) in enumerate(WAYS.items()):
                if way not in (args.way or WAYS):
                    continue
                found = result.setdefault(model, {}).setdefault(way, {})
                out = os.path.join(folder, f"{model}{number}")
                if args.only != "losses":
                    found["memory"] = planned(args, [*words, *sets(keys)])
                lines, resident = train(args, [*words, *sets(keys)], out, 5 if args.only == "memory" else args.steps)
                found["resident"] = resident
                found["taken"] = max(line.get("memory/peak_gib", 0) for line in lines) * 2**30
                if args.only != "memory":
                    found["losses"] = losses_of(lines)
                print(f"{model}, {way}: {json.dumps(found)}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
