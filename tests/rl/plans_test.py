#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=900
"""`hocket rl` under every plan: log-probabilities of sampling and of training are equal in every bit (rl.strict ends a run
otherwise, and the metric is 0), samples are those of one rank, and so are losses, up to the order of sums."""
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
         "dp 2, pp 2": {"dp": 2, "pp": 2}, "sharded": {"dp": 2, "shard": {"params": "all"}}}
OF_EXPERTS = {"ep 2": {"dp": 2, "ep": 2}, "dp 2, tp 2, ep 2": {"dp": 2, "tp": 2, "ep": 2}}


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
            self.assertEqual((0, 0), (line["rollout/logprob_diff_max"], line["rollout/logprob_diff_mean"]))

    def test_dense(self):
        self.compare(PLANS)

    def test_experts(self):
        self.compare({**OF_EXPERTS, "pp 2": {"pp": 2}}, rl_util.MOE)

    def test_experts_of_sampling_are_taken_again(self):
        """In every update of a step, by the policy's own log-probabilities, too."""
        keys = {"routing_replay": True, "prompts_per_update": 2, "old_logprobs": "trainer", "kl_coef": 0.1}
        self.compare({**OF_EXPERTS, "tp 2": {"tp": 2}, "pp 2": {"pp": 2}}, rl_util.MOE, 6,
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

    def test_few_pages_preempt(self):
        """With little room in the cache samples give way to each other, and are computed again."""
        self.write_run("one", rl={"kv_cache_memory": 16 * 1024, "max_num_seqs": 8})
        self.rl("one")
        self.write_run("all")
        self.rl("all")
        self.assertEqual(self.samples("one")[:16], self.samples("all")[:16])
        self.expect_equal_logprobs(self.metrics("one")[0])

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
        for plan in ({"pp": 4}, {"pp": 2, "pp_schedule": "zb-h1"}, {"pp": 2, "pp_schedule": "gpipe"}, {"dp": 2, "micro_batch": 2},
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
        for tp in (3, 4):
            self.write_run("one", plan={"tp": tp})
            self.assertIn(f"plan.tp is {tp}, which does not divide the", self.rl("one", code=2))
        self.write_run("one", plan={"cp": 2})
        self.assertIn("rl.strict", self.rl("one", code=2))
        self.write_run("one", plan={"cp": 2}, rl={"strict": False})
        self.rl("one")
        for line in self.metrics("one")[0]:
            self.assertLess(line["rollout/logprob_diff_max"], 1e-4)


if __name__ == "__main__":
    unittest.main()
