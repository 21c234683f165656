#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=900
"""`hocket rl` under every plan: log-probabilities of sampling and of training are equal in every bit (rl.strict ends a run
otherwise, and the metric is 0), samples are those of one rank, and so are losses, up to the order of sums."""
import json
import os
import unittest

import rl_util
from rl_util import cli_util

# A command for rewards whose first answer takes 12 s.
SLOW = """import sys, json, time
time.sleep(12)
for line in sys.stdin:
    row = json.loads(line)
    print(sum(a == b for a, b in zip(row["solution_str"], row["ground_truth"])), flush=True)
"""

PLANS = {"dp 2": {"dp": 2}, "tp 2": {"tp": 2}, "pp 2": {"pp": 2}, "dp 2, tp 2": {"dp": 2, "tp": 2},
         "dp 2, pp 2": {"dp": 2, "pp": 2}, "dp 2, tp 2, pp 2": {"dp": 2, "tp": 2, "pp": 2},
         "dp 2, micro_batch 2": {"dp": 2, "micro_batch": 2}, "sharded": {"dp": 2, "shard": {"params": "all"}}}
ALL_OF_EXPERTS = {"dp": 2, "ep": 2, "tp": 2, "pp": 2}
OF_EXPERTS = {"ep 2": {"dp": 2, "ep": 2}, "dp 2, tp 2, ep 2": {"dp": 2, "tp": 2, "ep": 2},
              "dp 2, ep 2, tp 2, pp 2": ALL_OF_EXPERTS}


class Plans(rl_util.RlTest):
    def compare(self, plans, config=None, updates_made=3, **sections):
        self.write_run("one", config, **sections)
        self.rl("one")
        updates, evaluations = self.metrics("one")
        samples = self.samples("one")
        self.assertEqual(updates_made, len(updates))
        self.assertEqual(48, len(samples))
        self.assertTrue(any(advantage != 0 for row in samples for advantage in row[4]), "no sample has an advantage")
        self.assertGreater(abs(updates[0]["train/grad_norm"]), 1e-4)
        self.expect_equal_logprobs(updates)
        self.assertEqual([0, updates_made], [line["step"] for line in evaluations])
        for title, plan in plans.items():
            with self.subTest(plan=title):
                self.write_run("other", config, plan=plan, **sections)
                self.rl("other")
                others, _ = self.metrics("other")
                self.expect_equal_logprobs(others)
                # The first step has the weights of one rank, and so its samples.
                for one, other in zip(samples[:16], self.samples("other")[:16]):
                    self.assertEqual(one[:3], other[:3])
                    for a, b in zip(one[3], other[3]):
                        self.assertAlmostEqual(a, b, delta=1e-5)
                for key in ("train/loss", "train/grad_norm", "entropy", "reward"):
                    self.assertAlmostEqual(updates[0][key], others[0][key], delta=2e-5 * max(1, abs(updates[0][key])),
                                           msg=key)
                self.remove("other")
        self.remove("one")

    def expect_equal_logprobs(self, updates):
        for line in updates:
            self.assertEqual((0, 0), (line["sampling/sampling_logp_difference/max"], line["sampling/sampling_logp_difference/mean"]))

    def test_dense(self):
        self.compare(PLANS)

    def test_experts(self):
        self.compare({**OF_EXPERTS, "pp 2": {"pp": 2}}, rl_util.MOE)

    def test_experts_of_sampling_are_taken_again(self):
        """In every update of a step, by the policy's own log-probabilities, too."""
        keys = {"routing_replay": True, "prompts_per_update": 2, "old_logprobs": "trainer", "kl_coef": 0.1}
        self.compare({"ep 2": {"dp": 2, "ep": 2}, "tp 2": {"tp": 2}, "pp 2": {"pp": 2}, "all": ALL_OF_EXPERTS}, rl_util.MOE, 6,
                     rl=keys, train={"steps": 6, "lr": 0.01})
        losses = {}
        for replays in (True, False):
            self.write_run("one", rl_util.MOE, rl={**keys, "routing_replay": replays},
                           train={"lr": 0.1, "steps": 2})
            self.rl("one")
            losses[replays] = [line["train/loss"] for line in self.metrics("one")[0]]
            self.remove("one")
        self.assertEqual(losses[True][0], losses[False][0])
        self.assertNotEqual(losses[True][1], losses[False][1])

    def test_two_updates_of_a_step_at_a_temperature(self):
        self.compare({"dp 2": {"dp": 2}},
                     rl={"temperature": 0.7, "top_k": 12, "prompts_per_update": 4, "epochs": 1, "kl_coef": 0.1,
                         "entropy_coef": 0.01})

    def test_a_group_computes_its_prompt_once(self):
        """Its samples start together, and their prompt is shorter than a page."""
        for config, plans in ((None, ({}, {"tp": 2, "pp": 2}, {"dp": 2})), (rl_util.MOE, ({}, {"dp": 2, "ep": 2}))):
            found = {}
            for caches in (False, True):
                for plan in plans:
                    self.write_run("one", config, plan=plan, train={"steps": 1},
                                   rl={"prefix_caching": caches, "max_num_seqs": 16, "max_num_batched_tokens": 256,
                                       "routing_replay": config is not None})
                    self.rl("one")
                    (line,) = self.metrics("one")[0]
                    self.expect_equal_logprobs([line])
                    found[caches, str(plan)] = samples = self.samples("one")
                    again = sum(len(tokens) - len(logprobs) - 1 for _, _, tokens, logprobs, _, _ in samples) * 3 // 4
                    with self.subTest(plan=plan, caches=caches):
                        self.assertEqual(found[False, str(plan)], samples)
                        if "dp" not in plan:
                            self.assertEqual(again if caches else 0, line["rl/cached_tokens"])
                        elif caches:
                            self.assertGreaterEqual(line["rl/cached_tokens"], again * 2 // 3)
                    self.remove("one")

    def test_samples_as_units_of_the_ratio(self):
        self.compare({"dp 2, tp 2": {"dp": 2, "tp": 2}}, rl={"loss": "gspo", "aggregation": "seq-mean-token-mean"})

    def test_critic(self):
        self.compare({"dp 2": {"dp": 2}, "tp 2": {"tp": 2}}, rl={"advantage": "gae", "lambda": 0.95})

    def test_few_pages_are_shared_and_taken(self):
        """Prompts of a group share pages, and samples that give way to others are computed again: under every plan the
        samples are those of a cache with room for all, without sharing."""
        for config, plans in ((rl_util.DENSE, ({}, {"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2, "pp": 2})),
                              (rl_util.MOE, ({}, ALL_OF_EXPERTS))):
            config, sections = self.long_prompts(config, prefix_caching=False)
            self.write_run("room", config, **sections)
            self.rl("room")
            samples, (line,) = self.samples("room"), self.metrics("room")[0]
            self.expect_equal_logprobs([line])
            self.assertEqual((0, 0), (line["rl/cached_tokens"], line["rl/preemptions"]))
            for plan in plans:
                with self.subTest(model=config["model_type"], plan=plan):
                    config, sections = self.long_prompts(config, kv_cache_memory=rl_util.FEW_PAGES)
                    self.write_run("few", config, plan=plan, **sections)
                    self.rl("few")
                    (line,) = self.metrics("few")[0]
                    self.expect_equal_logprobs([line])
                    self.assertGreater(line["rl/cached_tokens"], 0)
                    self.assertGreater(line["rl/preemptions"], 0)
                    for one, other in zip(samples, self.samples("few"), strict=True):
                        self.assertEqual(one[:3], other[:3])
                    self.remove("few")
            self.remove("room")

    def test_samples_of_long_prompts_share_their_places(self):
        """Prompts of several blocks of keys, in full and in windows."""
        with open(self.path("task/train.jsonl"), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        with open(self.path("long.jsonl"), "w", encoding="utf-8") as f:
            for i, row in enumerate(rows):
                row["prompt"] = row["prompt"].replace("=", "") * (20 + 3 * (i % 12)) + "="
                f.write(json.dumps(row) + "\n")
        windows = {"model_type": "gemma3_text", "query_pre_attn_scalar": 4, "sliding_window": 90, "hidden_act": "gelu_pytorch_tanh",
                   "layer_types": ["sliding_attention", "full_attention"] * 2}
        for config in (rl_util.DENSE, {**rl_util.WIDTHS, **windows}, rl_util.MOE):
            self.write_run("one", {**config, "max_position_embeddings": 640}, plan={"dp": 2, "micro_batch": 4},
                           data=rl_util.only(self.path("long.jsonl")), train={"seq_len": 512, "steps": 2},
                           rl={"routing_replay": "num_experts" in config, "max_num_batched_tokens": 128})
            self.rl("one")
            lines = self.metrics("one")[0]
            self.expect_equal_logprobs(lines)
            apart = [len(row[2]) - 1 for row in self.samples("one")[:16]]
            self.assertGreater(max(apart), 224)
            self.assertLess(lines[0]["tokens"], sum(apart) / 3)
            self.remove("one")

    def test_adapter(self):
        """Beside a frozen base: the weights of one step of the warm-up."""
        self.hocket("train", self.path("task/warmup.yaml"), "--set", "train.steps=1", "--set", "output.report=false")
        self.compare({"dp 2, tp 2": {"dp": 2, "tp": 2}, "pp 2": {"pp": 2}}, model={"path": self.path("task/warmup")},
                     adapter={"type": "lora", "r": 2, "targets": ["all-linear"]}, rl={"kl_coef": 0.1})

    @unittest.skipUnless(os.path.exists(os.path.join(cli_util.BINARY_DIR, "libhocket_torch.so")), "no c10d")
    def test_processes_wait_for_a_slow_reward(self):
        """Longer than they wait for one another; the samples are those of threads."""
        with open(self.path("slow.py"), "w", encoding="utf-8") as f:
            f.write(SLOW)
        rewards = [{"type": "exec", "command": "python3 " + self.path("slow.py"), "timeout_s": 60}]
        keys = {"train": {"steps": 1}, "rl": {"rewards": rewards, "dynamic_sampling": {"on": True}}}
        self.write_run("threads", plan={"dp": 2}, **keys)
        self.rl("threads")
        self.write_run("processes", plan={"dp": 2, "ranks": "gloo", "timeout_s": 8}, **keys)
        self.hocket("launch", "-n", 2, "rl", self.path("processes.yaml"))
        self.assertEqual(self.samples("threads"), self.samples("processes"))
        self.expect_equal_logprobs(self.metrics("processes")[0])

    def test_further_plans(self):
        for plan in ({"pp": 4}, {"pp": 2, "pp_schedule": "zb-h1"}, {"pp": 2, "pp_schedule": "gpipe"},
                     {"tp": 2, "sequence_parallel": False, "recompute": "full"}):
            self.write_run("one", plan=plan)
            self.rl("one")
            self.expect_equal_logprobs(self.metrics("one")[0])
            self.remove("one")
        for plan in ({"tp": 2, "etp": 2}, {"dp": 2, "ep": 2, "moe_chunks": 2}, {"dp": 4, "ep": 4, "ranks_per_node": 2},
                     {"dp": 2, "ep": 2, "tp": 2, "sequence_parallel": True}):
            self.write_run("one", rl_util.MOE, plan=plan, rl={"routing_replay": True})
            self.rl("one")
            self.expect_equal_logprobs(self.metrics("one")[0])
            self.remove("one")

    def test_refuses_plans_whose_bits_differ(self):
        """Plans that can run measure and print the difference with strict: false. Tiles may have the same bits."""
        self.write_run("one", plan={"tp": 3})
        self.assertIn("plan.tp is 3, which does not divide the", self.rl("one", code=2))
        four_keys = dict(rl_util.DENSE, num_key_value_heads=4)
        for config, plan, refused, may_be_equal in (
                (rl_util.DENSE, {"cp": 2}, "plan.cp is 2: keys are added in the order of ranks", False),
                (rl_util.DENSE, {"tp": 4}, "plan.tp is 4, which does not divide the 2 key heads", False),
                (four_keys, {"tp": 4, "comm_tiles": 2}, "plan.comm_tiles is 2: sums have another order", True),
                (four_keys, {"tp": 4, "all_reduce": "ring"}, "plan.all_reduce is ring: sums have another order", False)):
            with self.subTest(plan=plan):
                self.write_run("one", config, plan=plan)
                said = self.rl("one", code=2)
                self.assertIn(refused, said)
                self.assertIn("try rl.strict: false", said)
                self.write_run("one", config, plan=plan, rl={"strict": False}, train={"steps": 1})
                said = self.rl("one")
                largest = self.metrics("one")[0][0]["sampling/sampling_logp_difference/max"]
                print(f"{plan}: log-probabilities differ by up to {largest:.2g}", flush=True)
                self.assertLessEqual(largest, 1e-4)
                if not may_be_equal:
                    self.assertGreater(largest, 0)
                self.assertEqual(largest > 0, "log-probabilities differ up to" in said)
                self.remove("one")


if __name__ == "__main__":
    unittest.main()
