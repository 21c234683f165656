# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Trains with the optimizer states in shards of buckets (docs/examples/shards.py). Losses equal those without it bit
for bit, and each training resumes from the other's checkpoint."""
import re
import tempfile
import unittest

import cli_util

PASS = "plan.passes=exec:python3 docs/examples/shards.py"


class Shards(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.box = cli_util.Sandbox(folder.name)
        self.box.prepare()

    def train(self, out, steps, *more):
        self.box.train("--set", "plan.dp=4", "--set", "plan.micro_batch=1", "--set", f"train.steps={steps}",
                       "--set", f"output.dir={out}", *more)
        with open(self.box.path(f"{out}/checkpoints/step-{steps:06d}/optimizer.safetensors"), "rb") as f:
            states = f.read()
        with open(self.box.path(f"{out}/checkpoints/step-{steps:06d}/model.safetensors"), "rb") as f:
            return f.read(), states

    def test_same_bits_and_checkpoints_of_either(self):
        plain = self.train("runs/plain", 3)
        shards = self.train("runs/shards", 3, "--set", PASS)
        self.assertEqual(plain, shards)
        onwards = self.train("runs/plain", 5, "--set", PASS)
        self.assertEqual(onwards, self.train("runs/shards", 5))

    def test_a_rank_keeps_a_part_of_the_states(self):
        plan = ["--set", "plan.dp=4", "--set", "plan.micro_batch=1"]
        with_states = []
        for passes in ("none", "exec:python3 docs/examples/shards.py"):
            self.box.good("graph", "configs/quickstart.yaml", *plan, "--passes", passes, "--check", "--out", "p.txt")
            with open(self.box.path("p.txt"), encoding="utf-8") as f:
                kept = [line for line in f if re.match(r"buffer \d+ persistent", line)]
            with_states.append(sum(elements(line) for line in kept if "exp_avg" in line))
        # A rank's block, plus a quarter at most.
        self.assertLess(with_states[1], with_states[0] / 4 + 64)


    def test_blocks_of_sums_over_stages(self):
        """Gradient norms are reduced over the pipeline, too, with docs/examples/scatter_gather.py."""
        plan = ["--set", "plan.dp=2", "--set", "plan.pp=2", "--set", "plan.micro_batch=1"]
        self.box.good("graph", "configs/quickstart.yaml", *plan, "--passes",
                      "exec:python3 docs/examples/scatter_gather.py", "--check", "--out", "blocks.txt")
        with open(self.box.path("blocks.txt"), encoding="utf-8") as f:
            scattered = [line for line in f if re.match(r"kind k\d+ reduce_scatter .*in=\"f64", line)]
        self.assertTrue(scattered)


def elements(line):
    count = 1
    for dim in re.search(r"\[([\d,]+)\]", line).group(1).split(","):
        count *= int(dim)
    return count


if __name__ == "__main__":
    unittest.main()
