#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tests hocket whatif on simulated PyTorch profiles whose steps and causes are known (known_truth.py). The benchmark
bench/whatif_known.py runs all of them."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
import cli_util  # noqa: E402

from known_truth import KINDS, cases  # noqa: E402
from profile_sim import Job, profiles, step_seconds  # noqa: E402

EACH = 1  # cases of a kind


class KnownTruth(unittest.TestCase):
    def analyse(self, job):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for rank, profile in enumerate(profiles(job)):
                paths.append(os.path.join(folder, f"rank{rank}.json"))
                with open(paths[-1], "w", encoding="utf-8") as f:
                    json.dump(profile, f)
            done = subprocess.run([cli_util.HOCKET, "whatif", *paths, "--json"], capture_output=True, text=True,
                                  check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check(self, job, cause=None, where=None):
        """Asserts the step to 1 %, measured and replayed, and the cause."""
        found = self.analyse(job)
        seconds = step_seconds(job)
        for key in ("T_measured", "T"):
            self.assertLessEqual(abs(found[key] / seconds - 1), 0.01, (key, job))
        self.assertEqual(found["cause"], cause, job)
        if where:
            self.assertEqual(found["causes"][0]["where"], where)
        return found

    def test_each_kind(self):
        taken = dict.fromkeys(KINDS, 0)
        for case in cases(7, EACH):
            taken[case.kind] += 1
            with self.subTest(kind=case.kind, number=taken[case.kind]):
                self.check(case.job, case.cause or None, case.where)
        self.assertEqual(set(taken.values()), {EACH})

    def test_a_profile_that_begins_with_queues(self):
        """Steps launched before the profile still run on the compute stream, while its first copy has already ended."""
        found = self.check(Job(seed=3, before=4, steps=3, kernel_us=300))
        self.assertEqual(len(found["T_measured_step"]), 3)

    def test_a_lead_absorbs_a_pause(self):
        """A host that is ahead by more than its pause costs nothing."""
        job = Job(seed=4, before=6, steps=6, kernel_us=300, pauses={3: (0, 0.5, 20000.0)})
        self.assertLess(step_seconds(job), 1.01 * step_seconds(job.mended()))
        self.check(job)
        longer = replace(job, pauses={3: (0, 0.5, 400000.0)})
        self.assertGreater(step_seconds(longer), 1.5 * step_seconds(job.mended()))
        found = self.check(longer, "pauses")
        self.assertLessEqual(abs(found["causes"][0]["T_fixed"] / step_seconds(job.mended()) - 1), 0.01)

    def test_ranks_that_are_alike_but_for_one_step(self):
        """Members of nine in ten collectives start at once. In the paused step the others wait within theirs."""
        job = Job(seed=9, ranks=2, steps=12, noise=0.001, kernel_us=80, bucket=4, pauses={5: (1, 0.8, 60000.0)})
        found = self.check(job, "pauses")
        self.assertLessEqual(abs(found["causes"][0]["T_fixed"] / step_seconds(job.mended()) - 1), 0.01)

    def test_an_idle_device(self):
        """A device that is idle with work in its queue is paused; the replay includes the time."""
        job = Job(seed=5, steps=6, device_pauses={2: (0, 0.4, 30000.0), 4: (0, 0.4, 30000.0)})
        found = self.check(job, "pauses")
        self.assertIn("of a device between ops in which nothing is waited for", found["causes"][0]["evidence"])

    def test_a_host_that_is_behind(self):
        """A device that waits for launches is no straggler; the report tells what its host costs."""
        behind = self.check(Job(seed=6, kernel_us=10, host_us=60))
        self.assertLess(behind["T_without_host"], 0.5 * behind["T"])
        ahead = self.check(Job(seed=6, kernel_us=300))
        self.assertGreater(ahead["T_without_host"], 0.99 * ahead["T"])

    def test_only_one_step_confirms_no_pause(self):
        """In one step an op that is long on one rank may be as long in every step."""
        job = Job(seed=8, ranks=4, steps=1, wait="device", pauses={0: (2, 0.5, 60000.0)})
        found = self.check(job)
        pauses = next(c for c in found["causes"] if c["cause"] == "pauses")
        self.assertGreater(pauses["gain"], 2)
        self.assertIn("no other step", pauses["doubt"])

    def test_transfers_that_take_no_longer_than_usual_are_no_slow_link(self):
        """Kernels of a healthy job take very unequal times. The only step that counts has the longer transfer of two, and
        all transfers together take the usual time."""
        job = Job(seed=462174991, ranks=2, steps=2, layers=1, kernels=2, kernel_us=5, host_us=50, noise=0.5, bucket=0,
                  copies=False, wait="item", cold=True, marks_on_device=False, clocks_us=1e6)
        found = self.analyse(job)
        link = next(c for c in found["causes"] if c["cause"] == "slow link")
        self.assertGreater(found["S"], 1.1)
        self.assertGreater(link["explains"], 0.5)
        self.assertIn("take no longer than the usual ones", link["evidence"])
        self.assertIn("no longer than usual", link["doubt"])
        self.assertNotEqual(found["cause"], "slow link")


if __name__ == "__main__":
    unittest.main()
