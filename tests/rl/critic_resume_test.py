#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""A critic's warm-up that was stopped or killed goes on after its last checkpoint, with the samples and losses that the run
would have had, bit for bit."""
import os
import signal
import subprocess
import time
import unittest

import rl_util
from rl_util import cli_util

WARMUPS = 30


class CriticResume(rl_util.RlTest):
    def run_config(self, name, save_every):
        self.write_run(name, train={"steps": 2, "save_every": save_every},
                       rl={"advantage": "gae", "critic": {"warmup_steps": WARMUPS, "lr": 0.02}})

    def lines(self, name):
        """Metrics of updates and evaluations, without times."""
        updates, evaluations = self.metrics(name)
        return [{key: value for key, value in line.items() if not key.startswith(("time", "timing_s/", "perf/", "memory/"))}
                for line in updates + evaluations]

    def warmups(self, name):
        """Texts of the samples of the critic's steps."""
        folder = self.path(name, "trajectories")
        found = {}
        for file in sorted(os.listdir(folder)):
            if file.startswith("critic-"):
                with open(os.path.join(folder, file), encoding="utf-8") as f:
                    found[file] = f.read()
        return found

    def interrupt(self, name, number, code):
        """Sends a signal once the second step of the warm-up has samples; returns what was printed."""
        process = subprocess.Popen([cli_util.HOCKET, "rl", self.path(name + ".yaml")], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while not os.path.exists(self.path(name, "trajectories", "critic-000002.jsonl")):
            self.assertIsNone(process.poll())
            time.sleep(0.005)
        process.send_signal(number)
        said = process.communicate(timeout=120)[0]
        self.assertEqual(code, process.returncode, said)
        return said

    def test_goes_on(self):
        self.run_config("whole", 0)
        self.rl("whole")
        self.assertEqual(WARMUPS, len(self.warmups("whole")))
        for name, number, code, save_every in (("stopped", signal.SIGTERM, 143, 0), ("killed", signal.SIGKILL, -9, 1)):
            with self.subTest(name):
                self.run_config(name, save_every)
                self.interrupt(name, number, code)
                self.assertTrue(os.path.isdir(self.path(name, "critic", "checkpoints", "step-000000")))
                said = self.rl(name)
                self.assertIn("resumed from", said)
                self.assertNotIn(f"critic 1/{WARMUPS}:", said)
                self.assertIn(f"critic {WARMUPS}/{WARMUPS}:", said)
                self.assertEqual(self.lines("whole"), self.lines(name))
                self.assertEqual(self.samples("whole"), self.samples(name))
                self.assertEqual(self.warmups("whole"), self.warmups(name))


if __name__ == "__main__":
    unittest.main()
