#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=600
"""Compares the training loop with a reference: data, model and gradients of reference_util.py, then
clipping, AdamW (SGD, Muon), warm-up and cosine. Trained are all weights, or an adapter.

After every step loss, learning rate, gradient norm, parameters and moments agree up to rounding, for both families, on
one rank and under a plan."""
import json
import math
import unittest

import torch
from muon_util import exact_newton_schulz
from reference_util import DENSE, MOE, Data, Folder, adapted, forward, peft_tensors, random_adapter, random_weights
from safetensors.torch import load_file

TOLERANCE = 1e-10
STEPS, SEQ, BATCH, MICRO = 8, 24, 4, 2  # tokens a sequence; sequences a step and a micro-batch
TRAIN = {"steps": STEPS, "seq_len": SEQ, "global_batch": BATCH, "lr": 0.02, "min_lr": 0.003,
         "warmup_steps": 3, "max_grad_norm": 0.7, "seed": 5, "save_every": 1, "keep_last": 0}
OPTIMIZER = {"weight_decay": 0.3, "beta1": 0.8, "beta2": 0.97, "eps": 1e-5}


def learning_rate(step):
    if step <= TRAIN["warmup_steps"]:
        return TRAIN["lr"] * step / TRAIN["warmup_steps"]
    done = (step - TRAIN["warmup_steps"]) / (STEPS - TRAIN["warmup_steps"])
    return TRAIN["min_lr"] + (TRAIN["lr"] - TRAIN["min_lr"]) * (1 + math.cos(math.pi * done)) / 2


def optimizers_of(name, w, settings):
    """Returns the optimizers, each with parameter groups that say their weight decay and factor on the learning rate."""
    def groups(names):
        return [{"params": [w[n] for n in names if w[n].dim() > 1], "weight_decay": OPTIMIZER["weight_decay"]},
                {"params": [w[n] for n in names if w[n].dim() == 1], "weight_decay": 0.0}]
    if name == "sgd":
        return [torch.optim.SGD(groups(w), lr=0, momentum=settings.get("momentum", OPTIMIZER["beta1"]),
                                nesterov=settings.get("nesterov", False))]
    by_muon = [n for n in w if name == "muon" and ".layers." in n and w[n].dim() == 2]
    adamw = torch.optim.AdamW(groups([n for n in w if n not in by_muon]), betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                              eps=OPTIMIZER["eps"])
    if not by_muon:
        return [adamw]
    scaled = [n for n in by_muon if "self_attn" in n] if settings.get("groups") else []
    of_rest = {"params": [w[n] for n in by_muon if n not in scaled], "weight_decay": OPTIMIZER["weight_decay"]}
    of_scaled = {"params": [w[n] for n in scaled], "weight_decay": 0.05, "factor": 0.5}
    return [adamw, torch.optim.Muon([of_rest, of_scaled] if scaled else [of_rest], lr=0,
                                    momentum=settings.get("momentum", 0.95), nesterov=settings.get("nesterov", True),
                                    ns_steps=settings.get("ns_steps", 5), adjust_lr_fn=settings["adjust_lr"])]


STATE = {"adamw": "exp_avg", "sgd": "momentum_buffer", "muon": "momentum_buffer"}


def reference(weights, adapter, data, c, name, settings):
    """Returns per step: loss, learning rate, gradient norm, trained parameters, one state of each. An adapter, unless it
    is empty, is trained in place of the weights."""
    w = {n: t.double().clone().requires_grad_() for n, t in (adapter or weights).items()}
    base = {n: t.double() for n, t in weights.items()}
    optimizers = optimizers_of(name, w, settings)
    for step in range(1, STEPS + 1):
        sequences = [data.sequence((step - 1) * BATCH + i) for i in range(BATCH)]
        for t in w.values():
            t.grad = None
        loss = 0
        for at in range(0, BATCH, MICRO):
            tokens, targets, positions = (torch.tensor([x for s in sequences[at:at + MICRO] for x in s[i]])
                                          for i in range(3))
            logits, balance = forward(adapted(base, w) if adapter else w, tokens, positions, c)
            part = torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / (BATCH * SEQ)
            (part + c.get("router_aux_loss_coef", 0) * balance * MICRO / BATCH).backward()
            loss += part.item()
        total = torch.nn.utils.clip_grad_norm_(list(w.values()), TRAIN["max_grad_norm"]).item()
        states = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step) * group.get("factor", 1)
            optimizer.step()
            states.update({n: optimizer.state[t][STATE[name]].clone() for n, t in w.items()
                           if STATE[name] in optimizer.state.get(t, {})})
        yield loss, learning_rate(step), total, {n: t.detach().clone() for n, t in w.items()}, states


def distance(a, b):
    return ((a.double().reshape(b.shape) - b).norm() / b.norm()).item()


class Reference(Folder):
    def train(self, name, run, plan, optimizer, settings, adapter):
        with open(self.path(run + ".yaml"), "w", encoding="utf-8") as f:
            json.dump({"model": {"path": self.path(name), "init": "weights", "dtype": "f64"},
                       "adapter": {"type": "lora", "path": self.path(adapter)} if adapter else {},
                       "data": {"dir": self.path("data")}, "train": TRAIN, "plan": plan,
                       "optimizer": {"name": optimizer, **OPTIMIZER, **settings},
                       "output": {"dir": self.path(run), "report": False, "trace": False}}, f)
        self.hocket("train", self.path(run + ".yaml"))
        with open(self.path(run + "/metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        return [line for line in lines if "train/loss" in line]

    def compare(self, name, c, plans, optimizer="adamw", settings=None, tolerance=TOLERANCE, adapter=""):
        settings = settings or {}
        weights = random_weights(c, seed=11)
        self.model(name, c, weights)
        lora = random_adapter(c, seed=12) if adapter else {}
        if adapter:
            self.adapter(adapter, c, lora)
        want = list(reference(weights, lora, Data(self.path("data"), TRAIN["seed"], SEQ), c, optimizer, settings))
        self.assertGreater(sum(step[2] > TRAIN["max_grad_norm"] for step in want), 2, "never clipped")
        for i, plan in enumerate(plans):
            run = f"{name}-{optimizer}-{i}"
            lines = self.train(name, run, plan, optimizer, settings, adapter)
            self.assertEqual([line["step"] for line in lines], list(range(1, STEPS + 1)))
            for line, (loss, rate, total, params, moments) in zip(lines, want):
                what = f"{run} step {line['step']}"
                for key, value in (("train/loss", loss), ("train/lr", rate), ("train/grad_norm", total)):
                    self.assertLess(abs(line[key] / value - 1), tolerance, f"{what} {key}")
                folder = self.path(f"{run}/checkpoints/step-{line['step']:06}")
                got = load_file(folder + ("/adapter_model.safetensors" if adapter else "/model.safetensors"))
                params = peft_tensors(c, params) if adapter else params
                state = load_file(folder + "/optimizer.safetensors")
                self.assertEqual(set(got), set(params), what)
                for n, t in params.items():
                    self.assertEqual(got[n].dtype, torch.float64)
                    self.assertLess(distance(got[n], t), tolerance, f"{what} {n}")
                # The optimizer's file has the names of the graph, where some weights are merged.
                prefix = STATE[optimizer] + "."
                self.assertTrue(all(n.startswith(prefix) for n in state) or optimizer != "sgd", what)
                shared = [n for n in moments if prefix + n in state]
                self.assertGreater(len(shared), 5)
                for n in shared:
                    self.assertLess(distance(state[prefix + n], moments[n]), tolerance,
                                    f"{what} {prefix}{n}")

    def test_dense(self):
        self.compare("dense", DENSE, [{"micro_batch": MICRO},
                                      {"pp": 2, "dp": 2, "micro_batch": 1, "threads_per_rank": 1}])

    def test_sgd(self):
        self.compare("sgd", MOE, [{"micro_batch": MICRO},
                                  {"pp": 2, "dp": 2, "micro_batch": 1, "threads_per_rank": 1,
                                   "shard": {"optimizer": "all"}}], "sgd")

    def test_nesterov(self):
        self.compare("nesterov", DENSE, [{"micro_batch": MICRO}], "sgd", {"nesterov": True, "momentum": 0.6})

    def muon(self, name, c, plans, adapter="", **settings):
        """The iteration multiplies errors of rounding by its slope at 0, to the power of its steps."""
        with exact_newton_schulz():
            self.compare(name, c, plans, "muon", settings, tolerance=1e-7, adapter=adapter)

    def test_muon(self):
        one = {"micro_batch": MICRO}
        for adjust in ("original", "match_rms_adamw"):
            self.muon(f"muon-{adjust}", DENSE, [one, {"dp": 2, "tp": 2, "micro_batch": 1, "threads_per_rank": 1}],
                      adjust_lr=adjust)

    def test_muon_of_experts(self):
        self.muon("muon-moe", MOE, [{"dp": 2, "ep": 2, "micro_batch": 1, "threads_per_rank": 1},
                                    {"pp": 2, "dp": 2, "micro_batch": 1, "threads_per_rank": 1,
                                     "shard": {"params": "all", "grads": "all"}}],
                  adjust_lr="original", momentum=0.8, nesterov=False, ns_steps=4)

    def test_groups(self):
        self.muon("muon-groups", DENSE, [{"tp": 2, "micro_batch": MICRO, "threads_per_rank": 1}],
                  adjust_lr="match_rms_adamw",
                  groups=[{"match": ["*.self_attn.*_proj.weight"], "lr_scale": 0.5, "weight_decay": 0.05}])

    def test_muon_of_adapters(self):
        """A and B of each layer are matrices, and so are those of each expert."""
        plans = [{"micro_batch": MICRO}, {"dp": 2, "tp": 2, "micro_batch": 1, "threads_per_rank": 1}]
        self.muon("muon-lora", DENSE, plans, adjust_lr="original", adapter="lora")
        plans = [{"dp": 2, "ep": 2, "micro_batch": 1, "threads_per_rank": 1},
                 {"pp": 2, "dp": 2, "micro_batch": 1, "threads_per_rank": 1, "shard": {"optimizer": "all"}}]
        self.muon("muon-lora-moe", MOE, plans, adjust_lr="match_rms_adamw", adapter="lora-moe")

    def test_experts(self):
        self.compare("moe", MOE, [{"micro_batch": MICRO},
                                  {"dp": 2, "ep": 2, "micro_batch": 1, "threads_per_rank": 1}])


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
