#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares LoRA training of SmolLM2-135M by Hocket with PEFT on PyTorch: speed, memory and losses.

    bench/compare_peft.py --model .venv-peers/models/SmolLM2-135M-Instruct.Q4_1.gguf --rounds 5

Both train the same adapter (PEFT's own initial weights, rank 8, all linear layers of the blocks) in fp32 on the same 8 rows
of 256 tokens with 2 threads, AdamW and clipping at 1. Whole processes alternate, and their order changes from round to
round. The result is the median over rounds of (PEFT's median step / Hocket's), and the peak RSS of both processes, which
includes their start. Losses must agree to 1e-4. Needs torch, transformers and peft in this Python."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOCKET = str(pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket")
ROWS, LENGTH, RANK, ALPHA, LR, TOLERANCE = 8, 256, 8, 16, 1e-3, 1e-4


def peer(folder, steps, threads, layout):
    """Trains with PEFT; prints a line of JSON."""
    import peft
    import torch
    import transformers
    torch.set_num_threads(threads)
    with open(folder / "rows.json", encoding="utf-8") as f:
        ids = torch.tensor(json.load(f))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32, attn_implementation=layout)
    model = peft.PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True)
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    losses, times, cpu = [], [], []
    for _ in range(steps):
        begin, cpu_begin = time.monotonic(), time.process_time()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        times.append(time.monotonic() - begin)
        cpu.append(time.process_time() - cpu_begin)
    print(json.dumps({"losses": losses, "seconds": times, "cpu": cpu, "versions":
                      f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"}))


def run(command):
    """Returns the output of a command and its peak RSS in MiB."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=err,
                                   env=dict(os.environ, OMP_WAIT_POLICY="passive", HF_HUB_OFFLINE="1"))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        if process.returncode != 0:
            sys.exit(f"compare_peft.py: exit code {process.returncode}: {command}\n{err.read()[-2000:]}")
        return out.read(), usage.ru_maxrss / 1024


def prepare(args, folder):
    """Writes the base in fp32, PEFT's initial adapter, the run and the rows that both train on."""
    run([HOCKET, "checkpoint", "import", args.model, "--out", folder / "base", "--type", "f32"])
    made = ("import sys, torch, peft, transformers; torch.manual_seed(1); "
            "m = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32); "
            f"peft.get_peft_model(m, peft.LoraConfig(task_type='CAUSAL_LM', r={RANK}, lora_alpha={ALPHA}, lora_dropout=0, "
            "target_modules='all-linear')).save_pretrained(sys.argv[2])")
    run([sys.executable, "-c", made, folder / "base", folder / "adapter"])
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))[:12])
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as f:
        for i in range(ROWS):
            f.write(json.dumps({"text": text[i * 4000:i * 4000 + 4000]}) + "\n")
    config = {"objective": "sft", "model": {"path": str(folder / "base"), "dtype": "f32"},
              "adapter": {"type": "lora", "path": str(folder / "adapter")},
              "data": {"sources": [{"path": str(folder / "texts.jsonl")}], "valid_fraction": 0, "split_texts": False},
              "train": {"steps": args.steps, "global_batch": ROWS, "seq_len": LENGTH, "lr": LR, "min_lr": LR, "warmup_steps": 0,
                        "max_grad_norm": 1, "eval_every": 0, "save_every": args.steps, "save_minutes": 0},
              "optimizer": {"weight_decay": 0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8},
              "plan": {"micro_batch": ROWS, "threads_per_rank": args.threads},
              "output": {"dir": str(folder / "out"), "report": False, "trace": False, "baselines": "none", "sample_tokens": 0}}
    (folder / "run.yaml").write_text(json.dumps(config))
    shown = json.loads(run([HOCKET, "data", "show", folder / "run.yaml", "--json", "-n", 100])[0])["shown"]
    rows = [sequence["ids"] for sequence in shown]
    if [len(ids) for ids in rows] != [LENGTH] * ROWS:
        sys.exit(f"compare_peft.py: rows of {[len(ids) for ids in rows]} tokens; expected {ROWS} of {LENGTH}")
    (folder / "rows.json").write_text(json.dumps(rows))


def ours(folder, name):
    """Trains with Hocket; returns losses, seconds of the steps and the peak RSS."""
    out = folder / name
    _, peak = run([HOCKET, "train", folder / "run.yaml", "--set", f"output.dir={out}"])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "train/loss" in row]
    return {"losses": [row["train/loss"] for row in rows], "seconds": [row["perf/step_s"] for row in rows]}, peak


def median(values):
    return statistics.median(values)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default=str(ROOT / ".venv-peers/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--steps", type=int, default=4, help="of each process; the first is not timed")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--attention", default="sdpa", help="transformers' attn_implementation")
    ap.add_argument("--peer", help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.peer:
        peer(pathlib.Path(args.peer), args.steps, args.threads, args.attention)
        return 0
    with tempfile.TemporaryDirectory(prefix="compare-peft.") as top:
        folder = pathlib.Path(top)
        prepare(args, folder)
        ratios, peaks, times, worst, versions = [], {"peft": [], "hocket": []}, {"peft": [], "hocket": []}, 0.0, ""
        for number in range(args.rounds):
            found = {}
            for side in ("peft", "hocket") if number % 2 == 0 else ("hocket", "peft"):
                if side == "peft":
                    said, peak = run([sys.executable, __file__, "--peer", folder, "--steps", args.steps, "--threads", args.threads,
                                      "--attention", args.attention])
                    found[side] = json.loads(said.splitlines()[-1])
                    versions = found[side]["versions"]
                else:
                    found[side], peak = ours(folder, f"out-{number}")
                peaks[side].append(peak)
                times[side].append(median(found[side]["seconds"][1:]))
            ratios.append(times["peft"][-1] / times["hocket"][-1])
            worst = max([worst, *(abs(a - b) / b for a, b in zip(found["hocket"]["losses"], found["peft"]["losses"]))])
            print(f"round {number + 1}: PEFT {times['peft'][-1]:6.2f} s/step, {peaks['peft'][-1]:6.0f} MiB; "
                  f"Hocket {times['hocket'][-1]:6.2f} s/step, {peaks['hocket'][-1]:6.0f} MiB; speed ratio {ratios[-1]:.2f}; "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"{versions}; {args.threads} threads, {ROWS} x {LENGTH} tokens, fp32, r {RANK}, all-linear, attention {args.attention}")
    print(f"speed {median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f}); memory "
          f"{median(peaks['hocket']):.0f} of {median(peaks['peft']):.0f} MiB = {median(peaks['hocket']) / median(peaks['peft']):.2f}; "
          f"losses within {worst:.1e}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
