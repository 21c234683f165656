#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Compares the training loop with a reference: data, model and gradients of reference_util.py, then
clipping, AdamW, warm-up and cosine.

After every step loss, learning rate, gradient norm, parameters and moments agree up to rounding, for both families, on
one rank and under a plan."""
import json
import math
import unittest

import torch
from reference_util import DENSE, MOE, Data, Folder, forward, random_weights
from safetensors.torch import load_file

TOLERANCE = 1e-10
STEPS, SEQ, BATCH, MICRO = 8, 24, 4, 2  # tokens a sequence; sequences a step and a micro-batch
TRAIN = {"steps": STEPS, "seq_len": SEQ, "global_batch": BATCH, "lr": 0.02, "min_lr": 0.003,
         "warmup_steps": 3, "weight_decay": 0.3, "beta1": 0.8, "beta2": 0.97, "eps": 1e-5,
         "max_grad_norm": 0.7, "seed": 5, "save_every": 1, "keep_last": 0}


def learning_rate(step):
    if step <= TRAIN["warmup_steps"]:
        return TRAIN["lr"] * step / TRAIN["warmup_steps"]
    done = (step - TRAIN["warmup_steps"]) / (STEPS - TRAIN["warmup_steps"])
    return TRAIN["min_lr"] + (TRAIN["lr"] - TRAIN["min_lr"]) * (1 + math.cos(math.pi * done)) / 2


def optimizer_of(name, groups):
    if name == "sgd":
        return torch.optim.SGD(groups, lr=0, momentum=TRAIN["beta1"])
    return torch.optim.AdamW(groups, betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"])


STATE = {"adamw": "exp_avg", "sgd": "momentum_buffer"}


def reference(weights, data, c, name):
    """Returns per step: loss, learning rate, gradient norm, parameters, one state of each."""
    w = {n: t.double().clone().requires_grad_() for n, t in weights.items()}
    groups = [{"params": [t for t in w.values() if t.dim() > 1], "weight_decay": TRAIN["weight_decay"]},
              {"params": [t for t in w.values() if t.dim() == 1], "weight_decay": 0.0}]
    optimizer = optimizer_of(name, groups)
    for step in range(1, STEPS + 1):
        sequences = [data.sequence((step - 1) * BATCH + i) for i in range(BATCH)]
        optimizer.zero_grad()
        loss = 0
        for at in range(0, BATCH, MICRO):
            tokens, targets, positions = (torch.tensor([x for s in sequences[at:at + MICRO] for x in s[i]])
                                          for i in range(3))
            logits, balance = forward(w, tokens, positions, c)
            part = torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / (BATCH * SEQ)
            (part + c.get("router_aux_loss_coef", 0) * balance * MICRO / BATCH).backward()
            loss += part.item()
        total = torch.nn.utils.clip_grad_norm_(list(w.values()), TRAIN["max_grad_norm"]).item()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        yield (loss, learning_rate(step), total, {n: t.detach().clone() for n, t in w.items()},
               {n: optimizer.state[t][STATE[name]].clone() for n, t in w.items()})


def distance(a, b):
    return ((a.double().reshape(b.shape) - b).norm() / b.norm()).item()


class Reference(Folder):
    def train(self, name, run, plan, optimizer):
        with open(self.path(run + ".yaml"), "w", encoding="utf-8") as f:
            json.dump({"model": {"path": self.path(name), "init": "weights", "dtype": "f64"},
                       "data": {"dir": self.path("data")}, "train": dict(TRAIN, optimizer=optimizer), "plan": plan,
                       "output": {"dir": self.path(run), "report": False, "trace": False}}, f)
        self.hocket("train", self.path(run + ".yaml"))
        with open(self.path(run + "/metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        return [line for line in lines if "train/loss" in line]

    def compare(self, name, c, plans, optimizer="adamw"):
        weights = random_weights(c, seed=11)
        self.model(name, c, weights)
        want = list(reference(weights, Data(self.path("data"), TRAIN["seed"], SEQ), c, optimizer))
        self.assertGreater(sum(step[2] > TRAIN["max_grad_norm"] for step in want), 2, "never clipped")
        for i, plan in enumerate(plans):
            run = f"{name}-{optimizer}-{i}"
            lines = self.train(name, run, plan, optimizer)
            self.assertEqual([line["step"] for line in lines], list(range(1, STEPS + 1)))
            for line, (loss, rate, total, params, moments) in zip(lines, want):
                what = f"{run} step {line['step']}"
                for key, value in (("train/loss", loss), ("train/lr", rate), ("train/grad_norm", total)):
                    self.assertLess(abs(line[key] / value - 1), TOLERANCE, f"{what} {key}")
                folder = self.path(f"{run}/checkpoints/step-{line['step']:06}")
                got = load_file(folder + "/model.safetensors")
                state = load_file(folder + "/optimizer.safetensors")
                self.assertEqual(set(got), set(params), what)
                for n, t in params.items():
                    self.assertEqual(got[n].dtype, torch.float64)
                    self.assertLess(distance(got[n], t), TOLERANCE, f"{what} {n}")
                # The optimizer's file has the names of the graph, where some weights are merged.
                prefix = STATE[optimizer] + "."
                self.assertTrue(all(n.startswith(prefix) for n in state) or optimizer == "adamw", what)
                shared = [n for n in moments if prefix + n in state]
                self.assertGreater(len(shared), 5)
                for n in shared:
                    self.assertLess(distance(state[prefix + n], moments[n]), TOLERANCE,
                                    f"{what} {prefix}{n}")

    def test_dense(self):
        self.compare("dense", DENSE, [{"micro_batch": MICRO},
                                      {"pp": 2, "dp": 2, "micro_batch": 1, "threads_per_rank": 1}])

    def test_sgd(self):
        self.compare("sgd", MOE, [{"micro_batch": MICRO},
                                  {"pp": 2, "dp": 2, "micro_batch": 1, "threads_per_rank": 1,
                                   "shard": {"optimizer": "all"}}], "sgd")

    def test_experts(self):
        self.compare("moe", MOE, [{"micro_batch": MICRO},
                                  {"dp": 2, "ep": 2, "micro_batch": 1, "threads_per_rank": 1}])


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
