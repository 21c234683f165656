#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Trajectories of `hocket rl` beside transformers on the same checkpoint: the experts of every token, and the tokens that
each one was drawn from; the same under every plan, from cached prefixes and after preemption."""
import glob
import json
import unittest

import torch
import transformers

import rl_util

LIMITS = {"temperature": 0.7, "top_k": 6, "top_p": 0.9}
PLANS = {"dp 2": {"dp": 2}, "ep 2": {"dp": 2, "ep": 2}, "tp 2": {"tp": 2}, "pp 2": {"pp": 2},
         "dp 2, ep 2, tp 2, pp 2": {"dp": 2, "ep": 2, "tp": 2, "pp": 2}}


class Trajectories(rl_util.RlTest):
    def rows(self, name, shares=True, gives_way=False, **plan):
        """Runs a step with prompts that fill a page; `shares`: a group's samples share it; `gives_way`: there is room for few
        samples."""
        config, sections = self.long_prompts(rl_util.MOE, prefix_caching=shares, **LIMITS)
        if gives_way:
            sections["rl"]["kv_cache_memory"] = rl_util.FEW_PAGES
        sections["train"].update(lr=0, save_every=1)
        self.write_run(name, config, **sections, **plan)
        self.rl(name)
        line = self.metrics(name)[0][0]
        self.assertEqual((shares, gives_way), (line["rl/cached_tokens"] > 0, line["rl/preemptions"] > 0))
        with open(self.path(name, "trajectories/step-000001.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def test_experts_and_nuclei(self):
        rows = self.rows("one")
        folder = sorted(glob.glob(self.path("one", "checkpoints", "step-*")))[-1]
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        routes, cut = 0, 0
        for row in rows:
            ids = row["tokens"]
            out = model(torch.tensor([ids]), output_router_logits=True)
            found = row["rollout_routed_experts"]
            self.assertEqual((len(ids) - 1, 4, 2), (len(found), len(found[0]), len(found[0][0])))
            for layer, logits in enumerate(out.router_logits):
                for token in range(len(ids) - 1):
                    best = torch.topk(logits[token], 3)
                    if best.values[1] - best.values[2] < 1e-4:
                        continue
                    routes += 1
                    self.assertEqual(set(best.indices[:2].tolist()), set(found[token][layer]))
            offsets, drawn = row["rollout_top_p_token_offsets"], row["rollout_top_p_token_ids"]
            self.assertEqual([], row["rollout_top_p_unrecorded"])
            self.assertEqual(row["group_index"] * 4 + row["index"], row["rollout_id"])
            self.assertEqual([1] * row["response_length"], row["loss_mask"])
            self.assertEqual(row["response_length"] + 1, len(offsets))
            for i in range(row["response_length"]):
                at = len(ids) - row["response_length"] + i
                kept = drawn[offsets[i]:offsets[i + 1]]
                self.assertIn(ids[at], kept)
                logits = out.logits[0, at - 1] / LIMITS["temperature"]
                best = torch.topk(logits, LIMITS["top_k"])
                shares = torch.softmax(best.values, 0).cumsum(0)
                wanted = int((shares < LIMITS["top_p"]).sum()) + 1
                if (shares - LIMITS["top_p"]).abs().min() < 1e-4:
                    continue
                cut += wanted < LIMITS["top_k"]
                self.assertEqual(sorted(best.indices[:wanted].tolist()), kept)
        print(f"{routes} routes, {cut} nuclei smaller than top_k")
        self.assertGreater(routes, 500)
        self.assertGreater(cut, 10)
        for title, plan in PLANS.items():
            with self.subTest(plan=title):
                self.expect_same(rows, self.rows("other", gives_way=True, plan=plan))
                self.remove("other")
        self.expect_same(rows, self.rows("preempted", gives_way=True))
        self.expect_same(rows, self.rows("uncached", shares=False))

    def expect_same(self, rows, others):
        for row, other in zip(rows, others, strict=True):
            for key in ("tokens", "rollout_routed_experts", "rollout_top_p_token_ids", "rollout_top_p_token_offsets"):
                self.assertEqual(row[key], other[key], key)

    def test_dense_without_limits(self):
        self.write_run("one", train={"steps": 1})
        self.rl("one")
        with open(self.path("one/trajectories/step-000001.jsonl"), encoding="utf-8") as f:
            row = json.loads(f.readline())
        for key in ("rollout_routed_experts", "rollout_top_p_token_ids"):
            self.assertNotIn(key, row)
        for key in ("values", "returns", "log_probs"):
            self.assertNotIn(key, row)

    def test_critics_and_old_log_probabilities(self):
        self.write_run("one", train={"steps": 1}, rl={"advantage": "gae", "old_logprobs": "trainer"})
        self.rl("one")
        with open(self.path("one/trajectories/step-000001.jsonl"), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        for row in rows:
            self.assertEqual(row["rollout_log_probs"], row["log_probs"])  # equal bits
            self.assertEqual(row["response_length"], len(row["values"]))
            for target in row["returns"]:  # gamma and lambda are 1
                self.assertAlmostEqual(row["reward"], target, places=5)


if __name__ == "__main__":
    unittest.main()
