#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""A whole update of `hocket rl`, from samples and rewards to parameters, against autograd on the checkpoint that
transformers opens: one step of SGD, by the formulas of docs/rl-losses.md, written here again. transformers computes norms
and angles in fp32 in any type of weights: hence the bound."""
import glob
import json
import statistics
import unittest

import torch
import transformers

import rl_util

BOUND = 2e-5


class Update(rl_util.RlTest):
    def trained(self, name, **sections):
        """Runs one update; returns the model after it."""
        sections["model"] = {"config": rl_util.DENSE, "dtype": "f64"}
        sections["optimizer"] = {"name": "sgd", "momentum": 0, "weight_decay": 0}
        self.write_run(name, **sections)
        self.rl(name)
        folder = sorted(glob.glob(self.path(name, "checkpoints", "step-*")))[-1]
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)

    def compare(self, rl, of_sample):
        """`of_sample(logprobs, old, entropies, advantage, tokens of all samples)`: a sample's part of the loss."""
        rl = {"rewards": [{"type": "length", "target_length": 3}], "max_new_tokens": 10, **rl}
        keys = {"steps": 1, "max_grad_norm": 0, "save_every": 1}
        model = self.trained("before", rl=rl, train=dict(keys, lr=0))
        after = self.trained("after", rl=rl, train=dict(keys, lr=0.5))
        with open(self.path("after/trajectories/step-000001.jsonl"), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        groups = {}
        for row in rows:
            groups.setdefault(row["group_index"], []).append(row["reward"])
        tokens, loss, moved = sum(row["response_length"] for row in rows), 0, 0
        for row in rows:
            ids, rewards = torch.tensor([row["tokens"]]), groups[row["group_index"]]
            advantage = (row["reward"] - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-6)
            self.assertAlmostEqual(advantage, row["advantages"][0], delta=1e-10)
            moved += advantage != 0
            logits = model(ids).logits[0, -row["response_length"] - 1:-1] / rl.get("temperature", 1)
            every = torch.log_softmax(logits, -1)
            logprobs = every.gather(1, ids[0, -row["response_length"]:, None])[:, 0]
            old = torch.tensor(row["rollout_log_probs"], dtype=torch.float64)
            self.assertLess((logprobs - old).abs().max().item(), BOUND)
            loss = loss + of_sample(logprobs, old, -(every.exp() * every).sum(-1), advantage, tokens)
        self.assertGreater(moved, 0)
        loss.backward()
        updates, _ = self.metrics("after")
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters())).item()
        self.assertAlmostEqual(norm, updates[0]["train/grad_norm"], delta=BOUND * norm)
        steps = [(before - now, 0.5 * before.grad) for before, now in zip(model.parameters(), after.parameters())]
        largest = max(expected.abs().max().item() for _, expected in steps)
        self.assertGreater(largest, 1e-3)
        for step, expected in steps:
            self.assertLess((step - expected).abs().max().item(), BOUND * largest)

    def test_tokens_with_entropy_at_a_temperature(self):
        self.compare({"temperature": 1.5, "entropy_coef": 0.05},
                     lambda new, old, entropies, advantage, tokens:
                     (-torch.exp(new - old) * advantage - 0.05 * entropies).sum() / tokens)

    def test_samples(self):
        self.compare({"loss": "gspo", "aggregation": "seq-mean-token-mean"},
                     lambda new, old, entropies, advantage, tokens:
                     -torch.exp((new - old).mean()) * advantage / 16)


if __name__ == "__main__":
    unittest.main()
