#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=600
"""The commands of docs/new-schedule.md run in order and print the output that the page shows."""
import os
import re
import tempfile
import unittest

import cli_util


class NewSchedule(unittest.TestCase):
    def test_commands_as_written(self):
        with open(os.path.join(cli_util.ROOT, "docs", "new-schedule.md"), encoding="utf-8") as f:
            page = f.read()
        blocks = re.findall(r"^```(sh|text)\n(.*?)^```", page, re.S | re.M)
        self.assertGreaterEqual(sum(kind == "sh" for kind, _ in blocks), 7)
        with tempfile.TemporaryDirectory() as folder:
            box = cli_util.Sandbox(folder)
            printed = {}
            said = ""
            for kind, text in blocks:
                if kind == "text":
                    self.assertIn(text.rstrip("\n"), said)
                    continue
                for command in text.rstrip("\n").split("\n"):
                    r = box.shell(command)
                    self.assertEqual(0, r.returncode, f"{command}\n{r.stdout}{r.stderr}")
                    said = r.stdout
                    printed[command] = r.stdout + r.stderr
            refused = next(text for command, text in printed.items() if "|| echo refused" in command)
            self.assertRegex(refused, r"wrong\.csv\] row \d, column \d+: \d[FI]\d waits for .*\(row \d, column \d+\)")
            steps = [self.read(box.path(f"runs/{name}")) for name in ("mine", "1f1b")]
            self.assertEqual(steps[0], steps[1])
            self.assertGreaterEqual(len(steps[0]), 4)

    def read(self, folder):
        """Returns the losses of the run's steps from its metrics."""
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as f:
            return re.findall(r'"train/loss": ?([^,}]*)', f.read())


if __name__ == "__main__":
    unittest.main()
