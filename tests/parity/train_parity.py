#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains models of make_models.py with Hocket and with transformers: losses of 20 AdamW steps, and the files after them.

Both read the same batches: rows of several documents, which do not attend to each other. transformers runs in fp64 and gets
the documents by position_ids, as its collator without padding gives them; the rows of a step are drawn here by the rule of
docs/data.md, from the prepared shards. Checks that losses agree, that transformers opens the checkpoint of the last step
without a tensor too many or too few, and that what transformers
saves of it is, tensor by tensor, the same. The last line is `N passed, N failed`; exit code 1 on failure.
"""
import argparse
import glob
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
import make_models  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

VOCAB, LENGTH, STEPS, BATCH, SEED = 258, 32, 20, 2, 5
LR, DECAY, BETAS, EPS, CLIP = 3e-3, 0.1, (0.9, 0.95), 1e-8, 1.0
SHARDED = ("plan.dp=2", "plan.shard.params=all", "plan.shard.grads=all", "plan.micro_batch=1")
PLANS = {"": (), "tp2": ("plan.tp=2",), "pp2": ("plan.pp=2", "plan.micro_batch=1"), "cp2": ("plan.cp=2",),
         "dp2 sharded": SHARDED}
RUN = """
model: {path: "%(model)s"}
data: {files: ["%(top)s/text/*.txt"], valid_files: ["%(top)s/text/0.txt"], dir: "%(top)s/data", tokenizer: "%(top)s/tok",
       vocab_size: 257}
train: {steps: %(steps)d, global_batch: %(batch)d, seq_len: %(length)d, seed: %(seed)d, warmup_steps: 0, eval_every: 0,
        lr: %(lr)g, min_lr: %(lr)g, max_grad_norm: %(clip)g, balance_coef: 0, save_minutes: 0}
optimizer: {%(optimizer)s, weight_decay: %(decay)g, beta1: %(beta1)g, beta2: %(beta2)g, eps: %(eps)g}
plan: {threads_per_rank: 1, micro_batch: %(batch)d}
output: {dir: "%(out)s", report: false, trace: false, baselines: none, sample_tokens: 0}
"""
MASK = 2**64 - 1


def mixed(x):
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def combined(state, value):
    return mixed(state + 0x9e3779b97f4a7c15 + mixed(value) & MASK)


def permuted(index, size, key):
    """The image of an index under the Feistel permutation of [0, size)."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    while True:
        left, right = index >> half, index & (1 << half) - 1
        for turn in range(4):
            left, right = right, left ^ combined(combined(key, turn), right) & (1 << half) - 1
        index = left << half | right
        if index < size:
            return index


def read_stream(folder):
    """Ids of the shards of the training split in a row, and those at which documents begin."""
    ids, begins = [], set()
    for path in sorted(glob.glob(os.path.join(folder, "train-*.bin"))):
        with open(path, "rb") as f:
            content = f.read()
        _, width, count, documents = struct.unpack_from("<IIQQ", content, 8)
        (at,) = struct.unpack_from("<Q", content, 64)
        begins.update(len(ids) + b for b in struct.unpack_from(f"<{documents}Q", content, 128))
        ids += struct.unpack_from(f"<{count}{'H' if width == 2 else 'I'}", content, at)
    return ids, begins


def batches(folder):
    """Tokens, targets and positions [BATCH, LENGTH] of every step."""
    ids, begins = read_stream(folder)
    steps, per_epoch = [], len(ids) // LENGTH
    for step in range(STEPS):
        rows = []
        for index in range(step * BATCH, (step + 1) * BATCH):
            epoch, within = divmod(index, per_epoch)
            key = combined(SEED, epoch)
            first = combined(key, int.from_bytes(b"offset", "big")) % len(ids) + \
                LENGTH * permuted(within, per_epoch, combined(key, int.from_bytes(b"shuffle", "big")))
            at = [(first + i) % len(ids) for i in range(LENGTH)]
            positions = []
            for i in at:
                positions.append(0 if i in begins or not positions else positions[-1] + 1)
            rows.append(([ids[i - 1] for i in at], [ids[i] for i in at], positions))
        steps.append([torch.tensor(part) for part in zip(*rows)])
    return steps


def make(name, folder):
    """A random model in a folder, of a model of make_models.py with a vocabulary of bytes; and its twin in fp64."""
    family, kwargs, extra = make_models.MODELS[name]
    config_type, _ = make_models.classes(family)
    config = config_type(**{"pad_token_id": None, **kwargs, "vocab_size": VOCAB}, bos_token_id=None, eos_token_id=None)
    model = make_models.new_model(family, config)
    make_models.randomise(model, 77, extra.get("weights", 1.0))
    model.save_pretrained(folder)
    return make_models.exact(family, model)


def decayed(name, p):
    return p.dim() > 1 and not name.endswith(".bias")


def train_transformers(model, data):
    """Losses of the steps, each before its update, of a model that drops nothing (eval(), for GPT-2 and GPT-NeoX)."""
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW([{"params": [p for n, p in named if decayed(n, p)], "weight_decay": DECAY},
                                   {"params": [p for n, p in named if not decayed(n, p)], "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for tokens, targets, positions in data:
        optimizer.zero_grad()
        with make_models.fp64_alone():
            logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def hocket(args, *command):
    r = subprocess.run([args.hocket, *command], capture_output=True, text=True)
    if r.returncode != 0:
        raise RuntimeError(f"exit code {r.returncode}: {' '.join(command)}\n{(r.stdout + r.stderr)[-1500:]}")
    return r.stdout


def losses_of(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        return [row["train/loss"] for row in map(json.loads, f) if "train/loss" in row]


def last_checkpoint(folder):
    folder = os.path.join(folder, "checkpoints")
    return os.path.join(folder, sorted(f for f in os.listdir(folder) if f.startswith("step-"))[-1])


def opens(checkpoint, again, family):
    """Opens a checkpoint with transformers and saves it again; what differs."""
    model, info = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True,
                                                       **make_models.extra_arguments(family))
    problems = [f"{k}: {sorted(map(str, v))[:3]}" for k, v in info.items() if v and k.endswith(("_keys", "_msgs"))]
    shutil.rmtree(again, ignore_errors=True)
    model.save_pretrained(again)
    ours, theirs = make_models.load_all(checkpoint), make_models.load_all(again)
    ours = {k: v for k, v in ours.items() if not k.startswith(("exp_avg", "master", "momentum"))}
    if ours.keys() != theirs.keys():
        problems.append(f"names differ: {sorted(ours.keys() ^ theirs.keys())[:4]}")
    problems += [f"{k} differs" for k in ours.keys() & theirs.keys()
                 if ours[k].shape != theirs[k].shape or not torch.equal(ours[k], theirs[k])]
    return problems


def write_texts(folder):
    """Files of 3 to 50 characters: documents shorter and longer than a row, 600 tokens together."""
    os.mkdir(folder)
    draw = random.Random(3)
    for number in range(24):
        text = "".join(draw.choice("abcdefgh ,.\n") for _ in range(draw.randint(3, 50)))
        with open(os.path.join(folder, f"{number}.txt"), "w") as f:
            f.write(text)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    ap.add_argument("--only", default="", help="models whose name contains this")
    ap.add_argument("--some", action="store_true", help="one model of every family, each under one plan beside one rank")
    ap.add_argument("--tolerance", type=float, default=1e-4, help="relative, of a loss")
    args = ap.parse_args()
    passed = failed = 0
    seen = set()
    with tempfile.TemporaryDirectory(prefix="train_parity.") as top:
        write_texts(os.path.join(top, "text"))
        values = dict(top=top, steps=STEPS, batch=BATCH, length=LENGTH, seed=SEED, lr=LR, decay=DECAY, beta1=BETAS[0],
                      beta2=BETAS[1], eps=EPS, clip=CLIP, optimizer="name: adamw")
        data = None
        for name, (family, _, _) in make_models.MODELS.items():
            if args.only not in name or (args.some and family in seen):
                continue
            seen.add(family)
            model = os.path.join(top, name)
            twin = make(name, model)
            run = os.path.join(top, f"{name}.yaml")
            plans = list(PLANS.items())
            want = None
            for label, sets in [plans[0], plans[1 + len(seen) % 4]] if args.some else plans:
                out = os.path.join(top, f"{name}-{label.replace(' ', '-')}")
                with open(run, "w") as f:
                    f.write(RUN % {**values, "model": model, "out": out})
                try:
                    if data is None:
                        hocket(args, "data", "train-tokenizer", run)
                        hocket(args, "data", "prepare", run)
                        data = batches(os.path.join(top, "data"))
                    if want is None:
                        want = train_transformers(twin, data)
                    hocket(args, "train", run, *(a for s in sets for a in ("--set", s)))
                    got = losses_of(out)
                    worst = max(abs(g - w) / w for g, w in zip(got, want)) if len(got) == STEPS else float("inf")
                    problems = [] if worst <= args.tolerance else [f"losses {got} against {want}"]
                    problems += opens(last_checkpoint(out), os.path.join(top, "again"), family)
                    line = f"{want[0]:8.4f} to {want[-1]:7.4f}, worst {worst:.1e}"
                except (RuntimeError, AssertionError, OSError) as e:
                    line, problems = "", [str(e)]
                passed, failed = passed + (not problems), failed + bool(problems)
                print(f"{name:20} {label or 'one rank':14} {line}{'  FAILED' if problems else ''}", flush=True)
                for p in problems[:4]:
                    print(f"    {p}")
            shutil.rmtree(model)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
