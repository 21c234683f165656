#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills random ranks of a training on a cluster in a box at random times, and resumes with fewer ranks.

    bench/kill_runs.py --runs 100 --seed 1

Every run trains a small mixture of experts on 4 hosts under a random plan (of PLANS), with a checkpoint every
few steps; `kill -9` ends one rank at a random time, before the first step, in a step, or while a checkpoint is
written. Then
    all other ranks must end within plan.timeout_s and a grace, and one message must name the rank that died;
    the newest complete checkpoint must be whole, and the run resumes from it on 2 hosts, for some steps;
    every loss must equal that of an undisturbed single rank up to the order of sums (f64, 1e-9). There is no balance
    loss, because it is taken over each global micro-batch, and these plans differ in their micro-batches.
Prints a line per run and a table at the end; exits with 1 if one failed. Needs root, as tools/cluster does."""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOCKET = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket"
TIMEOUT_S, GRACE_S, STEPS, MORE = 10, 8, 400, 6

TOLERANCE = 1e-9

# The learning rate is constant after the warm-up, whatever the number of steps.
CONFIG = """
model:
  dtype: f64
  config: {model_type: qwen3_moe, vocab_size: 400, hidden_size: 64, num_hidden_layers: 4,
           num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16, intermediate_size: 96,
           moe_intermediate_size: 48, num_experts: 4, num_experts_per_tok: 2, norm_topk_prob: true,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 128, hidden_act: silu,
           router_aux_loss_coef: 0, tie_word_embeddings: true}
data: {files: ["%(dir)s/text/*.txt"], dir: "%(dir)s/data", tokenizer: "%(dir)s/tok", vocab_size: 400,
       valid_fraction: 0}
train: {steps: %(steps)d, global_batch: 8, seq_len: 64, save_every: 4, warmup_steps: 2, keep_last: 3,
        lr: 1.0e-3, min_lr: 1.0e-3}
plan: {micro_batch: 1, threads_per_rank: 1, timeout_s: %(timeout)d}
output: {dir: "%(dir)s/run", report: false, trace: false, baselines: none}
"""

PLANS = [[], ["ep=2"], ["pp=2"], ["tp=2"], ["shard.params=all"], ["pp=2", "ep=2"]]


def settings(plan):
    return [w for key in plan for w in ("--set", f"plan.{key}")]


def prepare(folder, rng):
    (folder / "text").mkdir()
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(300)]
    for i in range(40):
        (folder / f"text/{i}.txt").write_text(" ".join(rng.choices(words, k=4000)))
    config = folder / "run.yaml"
    config.write_text(CONFIG % {"dir": folder, "steps": STEPS, "timeout": TIMEOUT_S})
    for verb in ("train-tokenizer", "prepare"):
        subprocess.run([HOCKET, "data", verb, config], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    return config


def losses(path):
    found = {}
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut by the kill
        if "train/loss" in row:
            found[row["step"]] = row["train/loss"]
    return found


def on_box(hosts, words, *options, timeout):
    command = [ROOT / "tools/cluster", "--hosts", hosts, "--rate", "1gbit", "--quiet", *options, "--", HOCKET, *words]
    return subprocess.run([str(w) for w in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout, check=False)


def checkpoints(folder):
    """Returns the steps of complete checkpoints; an unfinished one has another name."""
    names = [p.name for p in (folder / "run/checkpoints").glob("step-*")]
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def one_run(folder, config, rng, want):
    """Kills, resumes and compares one run; returns its findings as a dict."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    plan, victim, at = rng.choice(PLANS), rng.randrange(4), round(rng.uniform(0.3, 6.0), 2)
    begin = time.time()
    words = ["train", config, *settings(plan)]
    r = on_box(4, words, "--fail", f"rank{victim}@{at}", "--keep-going", timeout=180)
    took = time.time() - begin - at
    seen = {"plan": " ".join(plan) or "dp", "victim": victim, "at": at, "ended_in": round(took, 2)}
    before = losses(folder / "run/metrics.jsonl") if (folder / "run/metrics.jsonl").exists() else {}
    seen["steps"] = max(before, default=0)
    named = len(re.findall(rf"rank {victim} .*exited without reporting an error", r.stdout))
    met = seen["steps"] > 0
    problems = []
    if r.returncode == 0:
        problems.append("exit code 0")
    if took > TIMEOUT_S + GRACE_S:
        problems.append(f"ended after {took:.1f} s")
    if met and named != 1:
        problems.append(f"{named} messages name rank {victim}:\n{r.stdout[-1500:]}")
    saved = checkpoints(folder)
    seen["from"] = max(saved, default=0)
    steps = seen["from"] + MORE
    fewer = [key for key in plan if not key.startswith("pp")] if "ep=2" in plan else plan
    r = on_box(2, ["train", config, *settings(fewer), "--set", f"train.steps={steps}"], timeout=180)
    if r.returncode != 0:
        problems.append(f"going on from step {seen['from']}: exit code {r.returncode}\n{r.stdout[-1500:]}")
        return seen, problems
    if saved and f"step-{seen['from']:06}" not in r.stdout:
        problems.append("did not go on from the newest checkpoint")
    for step, loss in {**before, **losses(folder / "run/metrics.jsonl")}.items():
        if abs(loss - want[step]) > TOLERANCE * abs(want[step]):
            problems.append(f"step {step}: loss {loss}; expected {want[step]}")
            break
    return seen, problems


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--runs", type=int, default=100)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hocket-kill-"))
    rng = random.Random(args.seed)
    config = prepare(folder, rng)
    subprocess.run([str(w) for w in [HOCKET, "train", config, "--set", "plan.dp=1", "--set",
                                     f"output.dir={folder}/whole"]], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    want = losses(folder / "whole/metrics.jsonl")
    failed, ended = 0, []
    for i in range(args.runs):
        seen, problems = one_run(folder, config, rng, want)
        failed += bool(problems)
        ended.append(seen["ended_in"])
        print(f"{i + 1:3} {json.dumps(seen)} {'FAILED' if problems else 'ok'}", flush=True)
        for problem in problems:
            print(f"    {problem}", flush=True)
    ended.sort()
    print(f"{args.runs} runs, seed {args.seed}: {failed} failed; all ranks ended {ended[len(ended) // 2]:.1f} s after "
          f"the kill (median), {ended[-1]:.1f} s at most")
    shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
