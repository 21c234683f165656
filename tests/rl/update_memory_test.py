#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Memory of `hocket rl` is planned for the most micro-batches that an update can have: no update takes more, and a plan
that could is refused before the first sample."""
import re
import unittest

import rl_util

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class UpdateMemory(rl_util.RlTest):
    def write(self, name, schedule, **sections):
        self.write_run(name, plan={"pp": 2, "pp_schedule": schedule}, rl={"samples_per_prompt": 24}, **sections)

    def run_plan(self, schedule):
        """Returns the planned bytes and those that the fullest rank took."""
        self.write(schedule, schedule)
        said = self.rl(schedule)
        self.assertNotIn("more than planned", said)
        number, unit, micro_batches = re.search(
            r"^memory +(\S+) (\S+) planned per rank, for updates of up to (\d+) micro-batches$", said, re.M).groups()
        self.assertGreater(int(micro_batches), 20)
        updates, _ = self.metrics(schedule)
        return float(number) * UNITS[unit], max(line["memory/peak_gib"] for line in updates) * UNITS["GiB"]

    def test_updates_take_no_more_than_planned(self):
        planned = {}
        for schedule in ("gpipe", "1f1b"):
            with self.subTest(schedule):
                planned[schedule], taken = self.run_plan(schedule)
                self.assertLessEqual(taken, 1.01 * planned[schedule])
        self.assertLess(1.5 * planned["1f1b"], planned["gpipe"])
        between = {"memory_budget": f"{int((planned['1f1b'] + planned['gpipe']) / 2 / UNITS['KiB'])}KiB"}
        self.write("refused", "gpipe", cluster=between)
        said = self.rl("refused", code=2)
        self.assertIn("cluster.memory_budget allows", said)
        self.assertIn("try plan.pp_schedule: 1f1b, a smaller rl.prompts_per_update", said)
        self.write("fits", "1f1b", cluster=between)
        self.rl("fits")

    def test_reference_and_critic_are_planned(self):
        self.write_run("all", plan={"pp": 2, "pp_schedule": "gpipe"},
                       rl={"samples_per_prompt": 24, "advantage": "gae", "kl_coef": 0.1, "old_logprobs": "trainer"})
        self.assertNotIn("more than planned", self.rl("all"))


if __name__ == "__main__":
    unittest.main()
