#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=600
"""The commands of docs/new-pass.md run in order and print the output that the page shows; its quotes of the pass match
the file."""
import json
import os
import re
import tempfile
import unittest

import cli_util


class NewPass(unittest.TestCase):
    def test_the_page_as_written(self):
        with open(os.path.join(cli_util.ROOT, "docs", "new-pass.md"), encoding="utf-8") as f:
            page = f.read()
        with open(os.path.join(cli_util.ROOT, "docs", "examples", "chunk.py"), encoding="utf-8") as f:
            script = f.read()
        blocks = re.findall(r"^```(sh|text|python)\n(.*?)^```", page, re.S | re.M)
        self.assertGreaterEqual(sum(kind == "sh" for kind, _ in blocks), 8)
        with tempfile.TemporaryDirectory() as folder:
            box = cli_util.Sandbox(folder)
            said, refused = "", []
            for kind, text in blocks:
                if kind == "text":
                    self.assertIn(text.rstrip("\n"), said)
                elif kind == "python":
                    self.assertIn(text, script)
                else:
                    for command in text.rstrip("\n").split("\n"):
                        r = box.shell(command)
                        self.assertEqual(0, r.returncode, f"{command}\n{r.stdout}{r.stderr}")
                        said = r.stdout
                        refused += [said] if "|| echo refused" in command else []
            self.refusals(*refused)
            plain, pieces = (self.losses(box.path(f"runs/{name}")) for name in ("plain", "pieces"))
        self.assertEqual(4, len(plain))
        self.assertEqual(plain[0], pieces[0])
        for loss, other in zip(plain, pieces, strict=True):
            self.assertAlmostEqual(loss, other, delta=1e-5 * loss)

    def refusals(self, without_sum, whole_routing):
        self.assertIn("refused\n", without_sum)
        first = re.search(r"^1\. .*$", without_sum, re.M).group(0)
        self.assertRegex(first, r"sumsq .* addends \[1:2\)\[3:4\)/4 \(written by grouped_linear_dw L")
        self.assertIn("refused\n", whole_routing)
        self.assertRegex(whole_routing, r"(?m)^1\. \[value: [a-z-]+\] dispatch L")

    def losses(self, folder):
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        return [line["train/loss"] for line in lines if "train/loss" in line]


if __name__ == "__main__":
    unittest.main()
