#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""The classes of bugs that GraphGuard (arXiv 2508.09505) reports, as passes (docs/examples/bugs.py). `hocket check`
refuses each at its cause, and accepts the same pass without the mistake."""
import os
import re
import subprocess
import unittest

import cli_util

INPUTS = os.path.join(cli_util.ROOT, "tests", "golden", "inputs")
# One key and value head per rank of tp.
KV = "model.config.num_key_value_heads=2"


class Bugs(unittest.TestCase):
    def check(self, bug, model, *settings):
        words = [cli_util.HOCKET, "check", os.path.join(INPUTS, f"{model}.yaml"), "--set",
                 f"plan.passes=exec:python3 docs/examples/bugs.py {bug}"]
        for setting in (KV,) + settings:
            words += ["--set", setting]
        return subprocess.run(words, cwd=cli_util.ROOT, capture_output=True, text=True, check=False)

    def refused(self, rule, task, why, bug, model, *settings):
        """Asserts that the bug is refused, first by this rule at this task for this reason, and that the right pass is
        accepted. Returns the number of problems."""
        good = self.check(bug + " right", model, *settings)
        self.assertEqual(0, good.returncode, good.stdout + good.stderr)
        bad = self.check(bug, model, *settings)
        self.assertEqual(2, bad.returncode, bad.stdout + bad.stderr)
        first = re.search(r"^1\. .*$", bad.stdout, re.M).group(0)
        self.assertRegex(first, rf"^1\. \[value: {rule}\] {task}[: ]")
        self.assertIn(why, first)
        return int(re.search(r"^refused: (\d+) problem", bad.stdout, re.M).group(1))

    def test_wrong_scale_in_gradient_accumulation(self):
        # Both micro-batches, each reported once; the task that made the scale is named.
        problems = self.refused("not-in-graph", r"linear_cross_entropy head mb0 forward \(stage0 task \d+\)",
                                "has input 'loss_scale' too often (written by add head mb0", "scale", "dense",
                                "plan.micro_batch=2")
        self.assertEqual(2, problems)

    def test_gradients_summed_over_ranks_more_than_once(self):
        self.refused("sum-layout", r"linear_dw L1 mb1 backward \(stage0 task \d+\)",
                     "written by all_reduce L1 mb1 backward", "accumulate", "dense", "plan.dp=2",
                     "plan.micro_batch=1")

    def test_missing_all_reduce_under_a_configuration(self):
        # One data-parallel axis leaves none to forget.
        plain = self.check("axes", "dense", "plan.dp=2", "plan.micro_batch=2")
        self.assertEqual(0, plain.returncode, plain.stdout + plain.stderr)
        problems = self.refused("layout-legal", r"sumsq optimizer \(stage0 task \d+\)", "on axis cp",
                                "axes", "dense", "plan.dp=2", "plan.cp=2", "plan.micro_batch=2")
        # 19 parameters and the loss.
        self.assertEqual(20, problems)

    def test_missing_all_reduce_of_an_mlp_or_of_experts(self):
        why = "is tp:P (written by copy L0 mb0 forward"
        self.assertEqual(1, self.refused("layout-legal", r"add L0 mb0 forward \(stage0 task \d+\)", why,
                                         "mlp", "dense", "plan.tp=2"))
        why = "is tp_etp:P (written by copy L1 mb0 forward"
        self.assertEqual(1, self.refused("layout-legal", r"add L1 mb0 forward \(stage0 task \d+\)", why,
                                         "experts", "moe", "plan.tp=2", "plan.etp=2"))

    def test_missing_all_reduce_of_gradients_of_norms(self):
        # Two per layer, and the final one.
        problems = self.refused("layout-legal", r"sumsq optimizer \(stage0 task \d+\)", "on axis tp",
                                "norms", "dense", "plan.dp=2", "plan.tp=2", "plan.sequence_parallel=true",
                                "plan.micro_batch=2")
        self.assertEqual(5, problems)


if __name__ == "__main__":
    unittest.main()
