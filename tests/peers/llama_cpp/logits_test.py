#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tiny models of every GGUF architecture are exported to the very files that llama.cpp opened for the fixtures, and have
its log probabilities; a folder made of such a file is exported to it again."""
import hashlib
import json
import os
import sys
import tempfile
import unittest

import tiny

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Logits(unittest.TestCase):
    def test_every_fixture(self):
        names = sorted(os.listdir(FIXTURES))
        self.assertGreaterEqual(len(names), 12)
        for name in names:
            with self.subTest(fixture=name), open(os.path.join(FIXTURES, name), encoding="utf-8") as f:
                with tempfile.TemporaryDirectory() as top:
                    self.compare(json.load(f), top)

    def compare(self, want, top):
        path = lambda name: os.path.join(top, name)
        tiny.write_folder(path("hf"), want["config"], want["shapes"])
        tiny.hocket("checkpoint", "export", path("hf"), "--out", path("one.gguf"))
        self.assertEqual(want["sha256"], sha256(path("one.gguf")), "the file is not the one that llama.cpp opened")
        rows = [tiny.log_softmax(row) for row in tiny.logits(path("one.gguf"), want["ids"], top)]
        largest = max(abs(x) for row in rows for x in row)
        for ours, theirs in zip(rows, want["log_probabilities"]):
            worst = max(abs(a - b) for a, b in zip(ours, theirs))
            self.assertLessEqual(worst, want["tolerance"] * largest + 1e-6)
        tiny.hocket("checkpoint", "import", path("one.gguf"), "--out", path("back"))
        tiny.hocket("checkpoint", "export", path("back"), "--out", path("two.gguf"))
        self.assertEqual(sha256(path("one.gguf")), sha256(path("two.gguf")))


if __name__ == "__main__":
    sys.exit(unittest.main())
