#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""Losses of 20 Muon steps in f32 against transformers with torch.optim.Muon, both learning-rate adjustments, dense and with
experts, under several plans. The twin runs in fp64, its Newton-Schulz iteration, too. See train_parity.py."""
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.environ.get("HOCKET_SOURCE_DIR", os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build"))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "train"))

MOMENTUM, TOLERANCE = 0.9, 1e-4
PLANS = {"llama-gqa": {"": (), "dp2 tp2": ("plan.dp=2", "plan.tp=2", "plan.micro_batch=1"),
                       "pp2": ("plan.pp=2", "plan.micro_batch=1"),
                       "dp2 sharded": ("plan.dp=2", "plan.shard.optimizer=all", "plan.micro_batch=1")},
         "moe-top2": {"ep2": ("plan.dp=2", "plan.ep=2", "plan.micro_batch=1")}}


def matrices_of(name, p):
    """Views of the matrices of a parameter that Muon updates, of experts one by one, gates and ups apart; none: AdamW's."""
    if ".layers." not in name or p.dim() < 2:
        return []
    if p.dim() == 2:
        return [p.data]
    halves = 2 if "gate_up" in name else 1
    return [part for expert in p.data for part in expert.chunk(halves)]


def train(model, data, adjust):
    """Losses of the steps, each before its update."""
    import make_models
    import torch
    import train_parity as t
    from muon_util import exact_newton_schulz
    named = list(model.named_parameters())
    parts = {name: matrices_of(name, p) for name, p in named}
    copies = {name: [torch.nn.Parameter(part.clone()) for part in parts[name]] for name in parts}
    muon = torch.optim.Muon([c for list_ in copies.values() for c in list_], lr=t.LR, weight_decay=t.DECAY,
                            momentum=MOMENTUM, adjust_lr_fn=adjust)
    rest = [(name, p) for name, p in named if not parts[name]]
    adamw = torch.optim.AdamW([{"params": [p for n, p in rest if t.decayed(n, p)], "weight_decay": t.DECAY},
                               {"params": [p for n, p in rest if not t.decayed(n, p)], "weight_decay": 0.0}],
                              lr=t.LR, betas=t.BETAS, eps=t.EPS)
    losses = []
    for tokens, targets, positions in data:
        model.zero_grad()
        with make_models.fp64_alone():
            logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), t.CLIP)
        for name, p in named:
            of_gradient = p.grad.detach().clone()
            views = matrices_of(name, torch.nn.Parameter(of_gradient))
            for copy, view in zip(copies[name], views):
                copy.grad = view.clone()
        with exact_newton_schulz():
            muon.step()
        adamw.step()
        for name in parts:
            for part, copy in zip(parts[name], copies[name]):
                part.copy_(copy.detach())
        losses.append(loss.item())
    return losses


def main():
    import make_models
    import train_parity as t

    class Arguments:
        hocket = os.path.join(BUILD, "hocket")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="muon_parity.") as top:
        t.write_texts(os.path.join(top, "text"))
        values = dict(top=top, steps=t.STEPS, batch=t.BATCH, length=t.LENGTH, seed=t.SEED, lr=t.LR, decay=t.DECAY,
                      beta1=t.BETAS[0], beta2=t.BETAS[1], eps=t.EPS, clip=t.CLIP)
        data = None
        for name, plans in PLANS.items():
            for adjust in ("original", "match_rms_adamw"):
                model = os.path.join(top, f"{name}-{adjust}")
                twin = t.make(name, model)
                want = None
                for label, sets in plans.items():
                    out = f"{model}-{label.replace(' ', '-')}"
                    run = out + ".yaml"
                    with open(run, "w", encoding="utf-8") as f:
                        f.write(t.RUN % {**values, "model": model, "out": out,
                                         "optimizer": f"name: muon, momentum: {MOMENTUM}, adjust_lr: {adjust}"})
                    if data is None:
                        t.hocket(Arguments, "data", "train-tokenizer", run)
                        t.hocket(Arguments, "data", "prepare", run)
                        data = t.batches(os.path.join(top, "data"))
                    want = want or train(twin, data, adjust)
                    t.hocket(Arguments, "train", run, *(a for s in sets for a in ("--set", s)))
                    got = t.losses_of(out)
                    worst = max(abs(g - w) / w for g, w in zip(got, want)) if len(got) == t.STEPS else float("inf")
                    problems = [] if worst <= TOLERANCE else [f"losses {got} against {want}"]
                    problems += t.opens(t.last_checkpoint(out), os.path.join(top, "again"), make_models.MODELS[name][0])
                    failed += bool(problems)
                    print(f"{name:12} {adjust:16} {label or 'one rank':12} {want[0]:8.4f} to {want[-1]:7.4f}, worst {worst:.1e}"
                          f"{'  FAILED' if problems else ''}", flush=True)
                    for problem in problems[:4]:
                        print(f"    {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    import importlib.util
    if importlib.util.find_spec("transformers") is None:
        print("skipped: no transformers here (tools/setup.sh --tests)")
        sys.exit(77)
    sys.exit(main())
