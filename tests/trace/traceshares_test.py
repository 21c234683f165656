#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/traceshares.py on a trace with known shares, and on a simulated trace against the simulator's report."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("HOCKET_SOURCE_DIR") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR") or os.path.join(ROOT, "build"), "hocket")
TOOL = os.path.join(ROOT, "tools", "traceshares.py")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import traceshares  # noqa: E402

LANES = ["compute", "intra", "inter"]


def event(rank, lane, begin, end, phase, step=1):
    return {"ph": "X", "pid": rank + 1, "tid": LANES.index(lane) + 1, "ts": begin, "dur": end - begin,
            "args": {"phase": phase, "step": step}}


class Shares(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "trace.json")

    def write(self, events, schema="hocket-trace-2"):
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump({"otherData": {"schema": schema, "lanes": LANES}, "traceEvents": events}, f)

    def test_shares_of_a_handmade_trace(self):
        # Rank 0 computes 0-4 and 6-8 and the optimizer's 9-10; its links are in use 3-7, twice in part.
        self.write([
            event(0, "compute", 0, 4000, "forward"), event(0, "compute", 6000, 8000, "backward"),
            event(0, "compute", 9000, 10000, "optimizer"), event(0, "intra", 3000, 5000, "forward"),
            event(0, "inter", 4000, 7000, "grad"), event(1, "compute", 2000, 8000, "backward"),
        ])
        found = traceshares.shares(self.path)
        zero = found[0]
        self.assertAlmostEqual(zero["step_ms"], 10)
        self.assertAlmostEqual(zero["busy"], 0.7)
        self.assertAlmostEqual(zero["bubble"], 0.25)  # 2 of 8
        self.assertAlmostEqual(zero["comm_ms"], 4)
        self.assertAlmostEqual(zero["hidden_ms"], 2)
        self.assertAlmostEqual(zero["hidden"], 0.5)
        self.assertAlmostEqual(zero["exposed_ms"], 2)
        self.assertIsNone(found[1]["hidden"])
        self.assertAlmostEqual(found[1]["bubble"], 0.25)
        self.assertAlmostEqual(found["all"]["busy"], 0.65)

    def test_steps_are_separate(self):
        self.write([event(0, "compute", 0, 1000, "forward", 1), event(0, "intra", 0, 2000, "grad", 1),
                    event(0, "compute", 9000, 10000, "forward", 2), event(0, "intra", 9000, 10000, "grad", 2)])
        zero = traceshares.shares(self.path)[0]
        self.assertAlmostEqual(zero["step_ms"], 1.5)
        self.assertAlmostEqual(zero["busy"], 0.75)
        self.assertAlmostEqual(zero["hidden"], 2 / 3)

    def test_other_files_are_refused(self):
        self.write([], "other")
        ran = subprocess.run([sys.executable, TOOL, self.path], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("is no trace of hocket", ran.stderr)

    def test_agrees_with_the_simulators_report(self):
        words = [HOCKET, "simulate", "configs/quickstart.yaml", "--set", "plan.pp=2", "--set", "plan.dp=2", "--set",
                 "plan.micro_batch=1"]
        subprocess.run([*words, "--trace", self.path], cwd=ROOT, check=True, capture_output=True)
        said = json.loads(subprocess.run([*words, "--json"], cwd=ROOT, check=True, capture_output=True,
                                         text=True).stdout)
        found = traceshares.shares(self.path)
        rows = {row["rank"]: row for row in said["breakdown"]}
        self.assertGreater(len(set(rows) & set(found)), 1)
        for rank in set(rows) & set(found):
            self.assertAlmostEqual(found[rank]["exposed_ms"] / 1e3, rows[rank]["exposed_communication_s"], places=6)
            self.assertAlmostEqual(found[rank]["busy"] * said["step_s"], rows[rank]["compute_s"], places=6)


if __name__ == "__main__":
    unittest.main(verbosity=1)
