#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Verbs that write report a shell's resource limits, and leave nothing half written."""
import os
import resource
import subprocess
import tempfile
import unittest

from cli_util import HOCKET, Sandbox


def files_below(folder):
    """Returns all files except the locks of folders that are written."""
    return sorted(os.path.join(where, name) for where, _, names in os.walk(folder) for name in names if name != ".lock")


class Limits(unittest.TestCase):
    def test_files_that_may_not_grow(self):
        """A write beyond the limit of `ulimit -f 1` fails like one on a full disk."""
        with tempfile.TemporaryDirectory() as folder:
            box = Sandbox(folder)
            box.good("data", "train-tokenizer", "--files", "include/**", "--vocab-size", "300", "--out", "tok")
            before = files_below(folder)
            for words in (("data", "prepare", "--files", "include/**", "--tokenizer", "tok", "--valid-fraction", "0.4",
                           "--out", "data"),
                          ("graph", "configs/quickstart.yaml", "--stage", "program", "--out", "program.txt")):
                done = subprocess.run([HOCKET, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)))
                self.assertEqual(1, done.returncode, done.stdout + done.stderr)
                self.assertIn("File too large", done.stderr)
                self.assertEqual(before, files_below(folder))


if __name__ == "__main__":
    unittest.main()
