#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md and docs/config.md say what the program says (tools/docs.py writes them)."""
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


if __name__ == "__main__":
    unittest.main()
