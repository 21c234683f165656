# SPDX-License-Identifier: Apache-2.0
"""Runs of Hocket on adapters, for make.py and its test; sizes are those of tests/parity/train_parity.py."""
import json
import os
import random
import struct
import subprocess
import tempfile

VOCAB, LENGTH, STEPS, BATCH, SEED = 258, 32, 20, 2, 5
LR, DECAY = 3e-3, 0.1
IDS = [[3, 1, 4, 1, 5, 9, 2], [6, 22, 0]]
RUN = """
model: {path: "%(model)s", dtype: f64}
adapter: {type: lora, path: "%(adapter)s"}
data: {files: ["%(top)s/text/*.txt"], valid_files: ["%(top)s/text/0.txt"], dir: "%(top)s/data", tokenizer: "%(top)s/tok",
       vocab_size: 257}
train: {steps: %(steps)d, global_batch: %(batch)d, seq_len: %(length)d, seed: %(seed)d, warmup_steps: 0, eval_every: 0,
        lr: %(lr)g, min_lr: %(lr)g, max_grad_norm: 1.0, balance_coef: 0, save_minutes: 0}
optimizer: {weight_decay: %(decay)g, beta1: 0.9, beta2: 0.95, eps: 1.0e-8}
plan: {threads_per_rank: 1, micro_batch: %(batch)d}
output: {dir: "%(out)s", report: false, trace: false, baselines: none, sample_tokens: 0}
"""


def write_texts(folder):
    os.makedirs(folder, exist_ok=True)
    draw = random.Random(3)
    for number in range(24):
        text = "".join(draw.choice("abcdefgh ,.\n") for _ in range(draw.randint(3, 50)))
        with open(os.path.join(folder, f"{number}.txt"), "w", encoding="utf-8") as f:
            f.write(text)


def write_run(top, name, model, out, adapter):
    path = os.path.join(top, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(RUN % dict(top=top, model=model, out=out, adapter=adapter, steps=STEPS, batch=BATCH, length=LENGTH, seed=SEED,
                           lr=LR, decay=DECAY))
    return path


def hocket(program, *command):
    r = subprocess.run([program, *command], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        raise RuntimeError(f"exit code {r.returncode}: {' '.join(command)}\n{(r.stdout + r.stderr)[-1500:]}")
    return r.stdout


def losses(out):
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        return [row["train/loss"] for row in map(json.loads, f) if "train/loss" in row]


def last_checkpoint(out):
    folder = os.path.join(out, "checkpoints")
    return os.path.join(folder, sorted(f for f in os.listdir(folder) if f.startswith("step-"))[-1])


def read_tensors(path):
    """Returns {name: (dtype, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
            for name, t in header.items()}


def logits(program, model, *options):
    """Returns the logits of every list of IDS, flat."""
    with tempfile.TemporaryDirectory() as folder:
        ids, out = os.path.join(folder, "ids.json"), os.path.join(folder, "logits.safetensors")
        with open(ids, "w", encoding="utf-8") as f:
            json.dump(IDS, f)
        hocket(program, "eval", model, "--ids", ids, "--dtype", "f64", "--save-logits", out, *options)
        tensors = read_tensors(out)
    return [struct.unpack(f"<{len(raw) // 4}f", raw) for _, _, raw in (tensors[f"logits.{i}"] for i in range(len(IDS)))]
