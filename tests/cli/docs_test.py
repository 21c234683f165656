#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md and docs/config.md say what the program says (tools/docs.py writes them)."""
import os
import subprocess
import unittest

import cli_util
import docs


class Docs(unittest.TestCase):
    def test_pages_are_up_to_date(self):
        self.assertEqual([], docs.stale(cli_util.HOCKET), "run tools/docs.py")

    def test_every_command_teaches(self):
        for words in docs.commands(cli_util.HOCKET):
            text = docs.output(cli_util.HOCKET, *words, "--help")
            self.assertIn("usage: hocket " + " ".join(words), text)
            shown = text.split("\nexamples\n")
            self.assertEqual(2, len(shown), f"{words}: no examples")
            commands = [line for line in shown[1].split("\n") if line.startswith("  ") and line[2] != " "]
            self.assertGreaterEqual(len(commands), 1 if words[0] == "data" else 2, words)
            for line in text.split("\n"):
                # A printed command is never broken.
                if line not in commands:
                    self.assertLessEqual(len(line), 100, line)

    def test_every_group_has_two_examples(self):
        text = docs.output(cli_util.HOCKET, "--help")
        for group in text.split("usage:")[1].split("\n\n")[1:-1]:
            self.assertEqual(2, group.count("\n    $ hocket "), group)

    def test_what_is_not_built_is_marked(self):
        env = dict(os.environ, HOCKET_TORCH_LIB="/nonexistent/libhocket_torch.so")
        text = subprocess.run([cli_util.HOCKET, "--help"], env=env, stdout=subprocess.PIPE, text=True,
                              check=True).stdout
        for verb in docs.verbs(cli_util.HOCKET):
            line = [x for x in text.split("\n") if x.startswith(f"  {verb} ")][0]
            self.assertEqual(verb in ("train", "eval", "generate", "profile"), "needs LibTorch" in line, line)
        r = subprocess.run([cli_util.HOCKET, "bench", "step", "--config", "configs/models/dense-26m"], env=env,
                           cwd=cli_util.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(1, r.returncode)
        self.assertIn("/nonexistent/libhocket_torch.so", r.stderr)


if __name__ == "__main__":
    unittest.main()
