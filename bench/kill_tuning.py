#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills fine-tunings of a tiny model with `kill -9` at random moments and resumes them: every number and file must be that
of an undisturbed run, bit for bit.

    bench/kill_tuning.py --kills 30 --seed 1

Cases alternate: SFT with packing (one rank; dp 2 with sharded states; an adapter), DPO (one rank; pp 2; an adapter; the
reference computed beforehand) and KTO. A kill comes before the first step, or after a random step and a random part of the next ones, so it
also meets the writing of checkpoints, which are saved every second step. Some runs are killed more than once. Prints a line
per run; exits with 1 if one failed."""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOCKET = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket"
STEPS, ROWS = 24, 4
WORDS = ["int", "x", "=", "return", "{", "}", ";", "template", "auto", "std", "::"]
MODEL = {"model_type": "llama", "vocab_size": 300, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 96, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
         "tie_word_embeddings": True, "hidden_act": "silu"}
LORA = {"adapter": {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.1, "targets": ["all-linear"]}}
SHARDED = {"dp": 2, "micro_batch": 1, "shard": {"optimizer": "all"}, "threads_per_rank": 1}
CASES = {
    "sft packed": ("sft", {}),
    "dpo": ("dpo", {}),
    "sft packed, dp 2 sharded": ("sft", {"plan": SHARDED}),
    "dpo, pp 2": ("dpo", {"plan": {"pp": 2, "micro_batch": 1, "threads_per_rank": 1}}),
    "sft packed, adapter": ("sft", LORA),
    "dpo, adapter": ("dpo", LORA),
    "dpo, reference beforehand": ("dpo", {"preference": {"precompute_ref_log_probs": True}}),
    "kto": ("kto", {}),
}
# Keys of metrics.jsonl that say when or how fast, not what.
CLOCK = ("time_s", "perf/", "memory/", "eval/time", "eval/seconds")


def texts(rng, most):
    return " ".join(rng.choices(WORDS, k=rng.randint(2, most)))


def prepare(folder, rng):
    (folder / "text").mkdir()
    for i in range(8):
        (folder / f"text/{i}.txt").write_text(texts(rng, 300))
    (folder / "tok.yaml").write_text(json.dumps(
        {"model": {"config": MODEL}, "data": {"files": [f"{folder}/text/*"], "dir": f"{folder}/data", "tokenizer":
                                              f"{folder}/tok", "vocab_size": 290}}))
    subprocess.run([HOCKET, "data", "train-tokenizer", folder / "tok.yaml"], check=True, capture_output=True)
    for kind in ("sft", "dpo", "kto"):
        with open(folder / f"{kind}.jsonl", "w", encoding="utf-8") as f:
            for i in range(60):
                question, answer = texts(rng, 12), texts(rng, 20)
                f.write(json.dumps({"sft": {"messages": [{"role": "user", "content": question},
                                                         {"role": "assistant", "content": answer}]},
                                    "dpo": {"prompt": question, "chosen": answer, "rejected": texts(rng, 20) + " x"},
                                    "kto": {"prompt": question, "completion": answer, "label": i % 3 > 0}}[kind]) + "\n")
    # The base: some steps of pre-training.
    subprocess.run([HOCKET, "data", "prepare", folder / "tok.yaml"], check=True, capture_output=True)
    subprocess.run([HOCKET, "train", folder / "tok.yaml", "--set", "train.steps=3", "--set", "train.seq_len=64", "--set",
                    "train.global_batch=4", "--set", f"output.dir={folder}/base-run", "--set", "output.report=false", "--set",
                    "output.baselines=none"], check=True, capture_output=True)
    shutil.copytree(sorted((folder / "base-run/checkpoints").glob("step-*"))[-1], folder / "base")


def write_run(folder, case):
    kind, more = CASES[case]
    run = {"objective": kind, "model": {"path": f"{folder}/base"},
           "data": {"sources": [{"path": f"{folder}/{kind}.jsonl"}], "valid_fraction": 0.1, "packing": kind == "sft",
                    "chat_template": f"{ROOT}/configs/chatml.jinja"},
           "train": {"steps": STEPS, "seq_len": 192, "global_batch": ROWS, "lr": 1e-3, "warmup_steps": 2, "save_every": 2,
                     "eval_every": 5, "keep_last": 2, "seed": 3},
           "output": {"report": False, "trace": False, "sample_tokens": 0}, **more}
    run["plan"] = {"micro_batch": 2, "threads_per_rank": 2, **more.get("plan", {})}
    path = folder / f"{case.replace(' ', '-').replace(',', '')}.yaml"
    path.write_text(json.dumps(run))
    return path


def rows(out):
    """Returns the rows of metrics.jsonl without its clocks; a line that the kill cut is left out."""
    found = []
    path = out / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found.append({key: value for key, value in row.items() if not key.startswith(CLOCK)})
    return found


def trained(out):
    return [row["step"] for row in rows(out) if "train/loss" in row]


def without_clock(text):
    """Returns run.json without its time, the name of the output folder and the hash of both."""
    record = json.loads(text)
    del record["xxh3"], record["data"]["time_s"]
    record["config"] = json.loads(record["config"])
    del record["config"]["output"]["dir"]
    return record


def files(out):
    """Returns the content of every file of the last checkpoint."""
    last = sorted(p for p in (out / "checkpoints").glob("step-*") if p.name[5:].isdigit())[-1]
    found = {str(p.relative_to(last)): p.read_bytes() for p in sorted(last.rglob("*")) if p.is_file()}
    return last.name, {**found, "run.json": without_clock(found["run.json"])}


def start(run, out):
    log = open(out.with_suffix(".log"), "ab")
    return subprocess.Popen([HOCKET, "train", run, "--set", f"output.dir={out}"], stdout=log, stderr=log)


def undisturbed(run, out):
    begin = time.monotonic()
    process = start(run, out)
    first = None
    while process.poll() is None:
        if first is None and trained(out):
            first = time.monotonic() - begin
        time.sleep(0.01)
    whole = time.monotonic() - begin
    if process.returncode != 0:
        sys.exit(f"kill_tuning.py: {run}: exit code {process.returncode}\n{out.with_suffix('.log').read_text()[-2000:]}")
    first = first or whole
    return first, (whole - first) / STEPS


def kill_once(run, out, rng, start_s, step_s):
    """Starts or resumes a run and kills it; returns the last step before the kill, None if the run ended by itself."""
    process = start(run, out)
    if rng.random() < 0.25:
        end = time.monotonic() + rng.uniform(0, start_s)
    else:
        done = max(trained(out), default=0)
        until, end = rng.randint(done, STEPS - 1), None
        while process.poll() is None and max(trained(out), default=0) < max(1, until):
            time.sleep(0.002)
        end = time.monotonic() + rng.uniform(0, 3 * step_s)
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)
    process.kill()
    return max(trained(out), default=0) if process.wait() == -signal.SIGKILL else None


def compare(got, want, whole):
    """Returns what differs between two finished runs."""
    problems = []
    expected = {}
    for row in rows(whole):
        expected.setdefault((row["step"], "train/loss" in row), []).append(row)
    seen = set()
    for row in rows(got):
        key = row["step"], "train/loss" in row
        seen.add(key)
        if row not in expected.get(key, []):
            problems.append(f"row {row}; expected {expected.get(key)}")
    problems += [f"no row of {key}" for key in sorted(set(expected) - seen)]
    name, ours = files(got)
    if name != want[0]:
        problems.append(f"ends at {name}; expected {want[0]}")
    for path in sorted(set(ours) | set(want[1])):
        if ours.get(path) != want[1].get(path):
            problems.append(f"{path} differs")
    return problems


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--kills", type=int, default=30)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    folder, rng = pathlib.Path(tempfile.mkdtemp(prefix="hocket-kill-")), random.Random(args.seed)
    prepare(folder, rng)
    whole = {}
    kills = failed = runs = 0
    while kills < args.kills:
        case = list(CASES)[runs % len(CASES)]
        run = write_run(folder, case)
        if case not in whole:
            out = folder / f"whole-{len(whole)}"
            times = undisturbed(run, out)
            whole[case] = out, times, files(out)
        reference, (start_s, step_s), want = whole[case]
        out = folder / f"run-{runs}"
        at = []
        for _ in range(rng.choice([1, 1, 2])):
            step = kill_once(run, out, rng, start_s, step_s)
            if step is None:
                break
            at.append(step)
        process = start(run, out)
        problems = [f"exit code {process.returncode}: {out.with_suffix('.log').read_text()[-800:]}"] if process.wait() else \
            compare(out, want, reference)
        runs, kills, failed = runs + 1, kills + len(at), failed + bool(problems)
        print(f"{runs:3} {case:28} killed after step {', '.join(map(str, at)) or 'the end':10} "
              f"{'FAILED' if problems else 'ok'}", flush=True)
        for problem in problems[:5]:
            print(f"    {problem}", flush=True)
        if not problems:
            shutil.rmtree(out)
    print(f"{runs} runs, {kills} kills, seed {args.seed}: {failed} failed")
    shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
