#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900
"""Every command that the help, the README, the docs and the quickstart print is run, as printed, in a folder
where the model is tiny (cli_util.Sandbox). Left out: make and setup, which other tests run."""
import os
import re
import tempfile
import unittest

import cli_util
import docs

# `hocket ...`, also behind a pipe, with $ or build/ before it.
COMMAND = re.compile(r"^(?:\$ )?((?:echo [^|]*\| )?(?:build/)?hocket [^#]*?)(?:\s+#.*)?$")
# The order of a working day: what others need comes first.
ORDER = ["data train-tokenizer", "data prepare", "train", "profile", "graph"]


def printed_commands():
    """{command: where} of all that is printed anywhere."""
    found = {}
    for words in [[]] + docs.commands(cli_util.HOCKET):
        for line in docs.output(cli_util.HOCKET, *words, "--help").split("\n"):
            example = re.match(r"^    \$ (.*)$|^  ((?:echo|hocket) .*)$", line)
            if example:
                found.setdefault(example.group(1) or example.group(2), " ".join(["hocket", *words, "--help"]))
    pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "bench/README.md", "tools/quickstart.sh"]
    pages += [os.path.join("docs", n) for n in sorted(os.listdir(os.path.join(cli_util.ROOT, "docs")))
              if n != "cli.md"]
    pages += [os.path.join("configs", n) for n in sorted(os.listdir(os.path.join(cli_util.ROOT, "configs")))]
    for page in pages:
        path = os.path.join(cli_util.ROOT, page)
        if not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8") as f:
            text = f.read()
        lines = []
        if page.endswith(".md"):
            for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, re.S | re.M):
                lines += block.replace("\\\n", " ").split("\n")
            # `hocket check run.yaml` in running text is a way of speaking, not a command to copy.
        elif page.endswith(".yaml"):
            lines = [re.sub(r"^#\s*", "", x) for x in text.split("\n") if x.startswith("#")]
        else:
            lines = [m for m in re.findall(r"^\s*(?:echo|say|printf '%s\\n'|cat) .*?((?:build/)?hocket [^\"'\n]*)",
                                           text, re.M)]
        for line in lines:
            match = COMMAND.match(line.strip())
            if match and not match.group(1).rstrip().endswith("..."):
                found.setdefault(re.sub(r"\s+", " ", match.group(1)).strip(), page)
    return found


def rank(command):
    verb = command.split("hocket ", 1)[1]
    for i, start in enumerate(ORDER):
        if verb.startswith(start):
            return i
    return len(ORDER)


class Commands(unittest.TestCase):
    def test_all(self):
        found = printed_commands()
        self.assertGreater(len(found), 25)
        # RUN, MODEL, VERB: a form, not a command.
        concrete = {c: w for c, w in found.items() if not re.search(r"\b(RUN|MODEL|VERB|COMMAND|FILE|DIR|A B)\b", c)}
        with tempfile.TemporaryDirectory() as folder:
            box = cli_util.Sandbox(folder)
            failed = []
            for command in sorted(concrete, key=lambda c: (rank(c), list(concrete).index(c))):
                verb = command.split("hocket ", 1)[1].split()
                needs_torch = verb[0] in ("train", "eval", "generate", "profile") or verb[:2] == ["bench", "step"]
                needs_torch &= "--print-" not in command
                needs_torch |= "--profile" in command
                if "runs/quickstart" in command and verb[0] in ("eval", "generate"):
                    needs_torch = True
                if needs_torch and not cli_util.HAS_TORCH:
                    continue
                r = box.shell(command)
                if r.returncode != 0:
                    failed.append(f"{concrete[command]}: {command}\n  exit code {r.returncode}\n{r.stderr[-600:]}")
            self.assertEqual([], failed, "\n".join(failed))


if __name__ == "__main__":
    unittest.main()
