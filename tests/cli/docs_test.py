#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""docs/cli.md, docs/config.md and docs/serving-fields.md match the program (tools/docs.py writes them)."""
import os
import re
import subprocess
import tempfile
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
            self.assertGreaterEqual(len(commands), 2 if len(words) == 1 and words[0] != "data" else 1, words)
            for line in text.split("\n"):
                # A printed command is never broken over lines.
                if line not in commands:
                    self.assertLessEqual(len(line), 100, line)

    def test_every_group_has_two_examples(self):
        text = docs.output(cli_util.HOCKET, "--help")
        for group in text.split("usage:")[1].split("\n\n")[1:-1]:
            self.assertEqual(2, group.count("\n    $ hocket "), group)

    def test_a_refusal_reads_as_check_says(self):
        """docs/check.md quotes the check's refusal of halves.txt with one number changed. Numbers of buffers and tasks
        depend on the model; all else is compared."""
        with open(os.path.join(cli_util.ROOT, "docs", "check.md"), encoding="utf-8") as f:
            shown = re.search(r"^```text\n(.*?)^```", f.read(), re.S | re.M).group(1)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "halves.txt")
            subprocess.run([cli_util.HOCKET, "graph", "configs/quickstart.yaml", "--set", "plan.dp=2",
                            "--set", "plan.micro_batch=2", "--passes",
                            "exec:python3 docs/examples/halves.py", "--out", path],
                           cwd=cli_util.ROOT, check=True, capture_output=True)
            with open(path, encoding="utf-8") as f:
                text = f.read()
            second = [line for line in text.split("\n") if re.match(r"task \d+ rms_norm ", line)][1]
            view = re.search(r" out=(\d+)", second).group(1)
            text, changed = re.subn(rf"^(buffer {view} view .* begin=)512$", r"\g<1>256", text, flags=re.M)
            self.assertEqual(1, changed)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            ran = subprocess.run([cli_util.HOCKET, "check", path], capture_output=True, text=True, check=False)
        self.assertNotEqual(0, ran.returncode)
        numbers = lambda said: re.sub(r"\b(buffer|task|view) \d+", r"\1 N", said)
        said = "\n".join((ran.stdout + ran.stderr).split("\n"))
        self.assertIn(numbers(shown), numbers(said), said)

    def test_every_system_has_a_command_and_a_status(self):
        with open(os.path.join(cli_util.ROOT, "docs", "systems.md"), encoding="utf-8") as f:
            page = f.read()
        rows = re.findall(r"^\| \[(.+?)\]\(#(\S+)\) \| `([a-z ]+)` \| (.+) \| (.+) \|$", page, re.M)
        self.assertGreaterEqual(len(rows), 30)
        sections = re.split(r"^### ", page, flags=re.M)[1:]
        self.assertEqual([row[0] for row in rows], [section.split("\n", 1)[0] for section in sections])
        for (name, anchor, status, here, paper), section in zip(rows, sections):
            self.assertEqual(anchor, re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-"))
            self.assertIn(status, ("works", "partly"), name)
            self.assertTrue(here and paper, name)
            self.assertRegex(section, r"```\nhocket [^\n]+\n```\n", name)
            for part in ("Here", "Paper", "Measured here"):
                self.assertIn(f"- **{part}**: ", section, name)
            # The section of a partly reproduced result names the missing part.
            if status == "partly":
                self.assertRegex(section, r"\*\*Missing\*\*: |not\s+measured|no\s+figure|not\s+timed|not\s+compared", name)


if __name__ == "__main__":
    unittest.main()
