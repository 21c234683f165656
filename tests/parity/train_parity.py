#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a model of every family with Hocket and with transformers: losses of 20 AdamW steps, and the files after them.

Models are those of make_models.py, with a vocabulary of bytes. All sequences of the data are the same, a text of
as many bytes as a sequence has, so that no order of the data matters. Checks that losses agree, that transformers opens the
checkpoint of the last step without a tensor too many or too few, and that what it saves again is, tensor by tensor,
the same. The last line is `N passed, N failed`; exit code 1 on failure.
"""
import argparse
import json
import os
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

VOCAB, LENGTH, STEPS, BATCH = 258, 32, 20, 2
LR, DECAY, BETAS, EPS, CLIP = 3e-3, 0.1, (0.9, 0.95), 1e-8, 1.0
TEXT = "The quick brown fox, 12 dogs: 7!"
PLANS = {"": (), "tp2": ("plan.tp=2",), "pp2": ("plan.pp=2",), "cp2": ("plan.cp=2",),
         "dp2 sharded": ("plan.dp=2", "plan.shard.params=all", "plan.shard.grads=all", "plan.micro_batch=1")}
RUN = """
model: {path: "%(model)s"}
data: {files: ["%(top)s/text/*.txt"], dir: "%(top)s/data", tokenizer: "%(top)s/tok", vocab_size: 257, valid_fraction: 0}
train: {steps: %(steps)d, global_batch: %(batch)d, seq_len: %(length)d, warmup_steps: 0, eval_every: 0, lr: %(lr)g,
        min_lr: %(lr)g, weight_decay: %(decay)g, beta1: %(beta1)g, beta2: %(beta2)g, eps: %(eps)g, balance_coef: 0,
        save_minutes: 0}
plan: {threads_per_rank: 1, micro_batch: %(batch)d}
output: {dir: "%(out)s", report: false, trace: false, baselines: none, sample_tokens: 0}
"""


def make(name, folder):
    """A random model in a folder, of a model of make_models.py with a vocabulary of bytes."""
    family, kwargs, _ = make_models.MODELS[name]
    config_type, model_type = make_models.classes(family)
    config = config_type(**{"pad_token_id": None, **kwargs, "vocab_size": VOCAB}, bos_token_id=None, eos_token_id=None)
    model = model_type(config)
    make_models.randomise(model, 77)
    model.save_pretrained(folder)
    return family


def decayed(name, p):
    return p.dim() > 1 and not name.endswith(".bias")


def train_transformers(folder, family, tokens):
    """Losses of the steps, each before its update."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                 **make_models.extra_arguments(family)).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for attribute in ("attention_dropout",):
            if hasattr(module, attribute):
                setattr(module, attribute, 0.0)
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW([{"params": [p for n, p in named if decayed(n, p)], "weight_decay": DECAY},
                                   {"params": [p for n, p in named if not decayed(n, p)], "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    batch = torch.tensor([tokens[:-1]])
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=batch, use_cache=False).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]))
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


def last_checkpoint(folder):
    folder = os.path.join(folder, "checkpoints")
    return os.path.join(folder, sorted(f for f in os.listdir(folder) if f.startswith("step-"))[-1])


def same_files(checkpoint, tmp, family):
    """Opens a checkpoint with transformers and saves it again; what differs."""
    model, info = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True,
                                                       **make_models.extra_arguments(family))
    problems = [f"{k}: {sorted(map(str, v))[:3]}" for k, v in info.items() if v and k.endswith(("_keys", "_msgs"))]
    model.save_pretrained(tmp)
    ours, theirs = make_models.load_all(checkpoint), make_models.load_all(tmp)
    ours = {k: v for k, v in ours.items() if not k.startswith(("exp_avg", "master"))}
    if ours.keys() != theirs.keys():
        problems.append(f"names differ: {sorted(ours.keys() ^ theirs.keys())[:4]}")
    problems += [f"{k} differs" for k in ours.keys() & theirs.keys()
                 if ours[k].shape != theirs[k].shape or not torch.equal(ours[k], theirs[k])]
    return problems


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    ap.add_argument("--only", default="", help="models whose name contains this")
    ap.add_argument("--some", action="store_true", help="one model of every family, one plan each")
    ap.add_argument("--tolerance", type=float, default=1e-4, help="relative, of a loss")
    args = ap.parse_args()
    passed = failed = 0
    seen = set()
    with tempfile.TemporaryDirectory(prefix="train_parity.") as top:
        os.mkdir(os.path.join(top, "text"))
        with open(os.path.join(top, "text", "a.txt"), "w") as f:
            f.write(TEXT * 40)
        values = dict(top=top, steps=STEPS, batch=BATCH, length=LENGTH, lr=LR, decay=DECAY, beta1=BETAS[0],
                      beta2=BETAS[1], eps=EPS)
        assert len(TEXT) == LENGTH
        tokens = None
        for number, (name, (family, _, _)) in enumerate(make_models.MODELS.items()):
            if args.only not in name or family == "parallel_llama" or (args.some and family in seen):
                continue
            seen.add(family)
            model = os.path.join(top, name)
            make(name, model)
            run = os.path.join(top, f"{name}.yaml")
            want = None
            plans = list(PLANS.items())
            for label, sets in plans[:1] + [plans[1 + number % 4]] if args.some else plans:
                out = os.path.join(top, f"{name}-{label.replace(' ', '-')}")
                with open(run, "w") as f:
                    f.write(RUN % {**values, "model": model, "out": out})
                try:
                    if tokens is None:
                        hocket(args, "data", "train-tokenizer", run)
                        hocket(args, "data", "prepare", run)
                        first = os.path.join(top, "first.txt")
                        with open(first, "w") as f:
                            f.write(TEXT + TEXT[0])
                        tokens = json.loads(hocket(args, "data", "encode", os.path.join(top, "tok"), "--in", first))
                        assert len(tokens) == LENGTH + 1, tokens
                    if want is None:
                        want = train_transformers(model, family, tokens)
                    hocket(args, "train", run, *(a for s in sets for a in ("--set", s)))
                    with open(os.path.join(out, "metrics.jsonl")) as f:
                        got = [json.loads(line)["train/loss"] for line in f if "train/loss" in line]
                    worst = max(abs(g - w) / w for g, w in zip(got, want)) if len(got) == STEPS else float("inf")
                    problems = [] if worst <= args.tolerance else [f"losses {got} against {want}"]
                    problems += same_files(last_checkpoint(out), os.path.join(top, "again"), family)
                    line = f"{want[0]:8.4f} to {want[-1]:7.4f}, worst {worst:.1e}"
                except (RuntimeError, AssertionError, OSError) as e:
                    line, problems = "", [str(e)]
                passed, failed = passed + (not problems), failed + bool(problems)
                print(f"{name:20} {label or 'one rank':14} {line}{'  FAILED' if problems else ''}", flush=True)
                for p in problems[:4]:
                    print(f"    {p}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
