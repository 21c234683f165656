#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""Runs every command that the help, the README, the docs and the quickstart print, as printed, in a folder with a tiny
model (cli_util.Sandbox). Left out are make and setup, which other tests run, and the pages whose commands build on each
other (new_pass_test.py, new_schedule_test.py, fine_tuning_test.py)."""
import collections
import json
import os
import re
import tempfile
import unittest

import cli_util
import docs
import importers_test
import megatron_script
import nccl_log

# `hocket ...`, also behind a pipe, with $ or build/ before it.
COMMAND = re.compile(r"^(?:\$ )?((?:echo [^|]*\| )?(?:build/)?hocket .*?)(?:\s+# .*)?$")
# The order of a workday: commands come after those that they depend on.
ORDER = ["data train-tokenizer", "data prepare", "data task", "train", "rl", "plan", "profile", "graph", "simulate"]


def printed_commands():
    """Returns {command: source} of all printed commands, and {source: number of commands}."""
    found, sources = {}, collections.Counter()
    for words in [[]] + docs.commands(cli_util.HOCKET):
        for line in docs.output(cli_util.HOCKET, *words, "--help").split("\n"):
            example = re.match(r"^    \$ (.*)$|^  ((?:echo|hocket) .*)$", line)
            if example:
                found.setdefault(example.group(1) or example.group(2), " ".join(["hocket", *words, "--help"]))
                sources["--help"] += 1
    pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tools/quickstart.sh"]
    pages += [os.path.join("docs", n) for n in sorted(os.listdir(os.path.join(cli_util.ROOT, "docs")))
              if n not in ("cli.md", "fine-tuning.md", "new-pass.md", "new-schedule.md")]
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
            # `hocket check run.yaml` in running text is no command to copy.
        elif page.endswith(".yaml"):
            lines = [re.sub(r"^#\s*", "", x) for x in text.split("\n") if x.startswith("#")]
        elif page.endswith(".sh"):
            # The script prints commands in here-documents; this is its output without MINUTES.
            out = re.search(r"^out=(\S+)$", text, re.M).group(1)
            for block in re.findall(r"<<(TXT)\n(.*?)^\1$", text, re.S | re.M):
                lines += block[1].replace("$out", out).split("\n")
        for line in lines:
            match = COMMAND.match(line.strip())
            if match and not match.group(1).rstrip().endswith("..."):
                found.setdefault(re.sub(r"\s+", " ", match.group(1)).strip(), page)
                sources[page] += 1
    return found, sources


def rank(command):
    verb = command.split("hocket ", 1)[1]
    for i, start in enumerate(ORDER):
        if verb.startswith(start):
            return i
    return len(ORDER)


# A build runs ranks as processes only where it found PyTorch.
LIBRARY = os.path.exists(os.path.join(cli_util.BINARY_DIR, "libhocket_torch.so"))


# A search with a limit of a second takes the same options as a longer or unlimited one. Tasks of short sequences
# are measured like those of a model's 4,096 tokens. Trainings of tasks make one update.
SEARCH_S = 1
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")


def shortened(commands):
    """Returns {command: shorter form}: duplicates run once, and searches end soon."""
    if LONG:
        return {c: c for c in commands}
    print(f"searches of {SEARCH_S} s, profiles of short sequences; HOCKET_LONG=1 runs every command as it is printed", flush=True)
    kept = {}
    for command in commands:
        short = re.sub(r"--time-limit \d+", f"--time-limit {SEARCH_S}", command)
        if re.search(r"hocket plan .*--(cluster|codecs) ", command) and "--time-limit" not in command:
            short += f" --time-limit {SEARCH_S}"
        if re.search(r"hocket profile configs/models/", command):
            short += " --set train.seq_len=128"
        # One update of a task's trainings, on few held-out problems.
        short = re.sub(r"(hocket train runs/\S+/warmup\.yaml)", r"\1 --set train.steps=1", short)
        short = re.sub(r"(hocket rl runs/\S+/rl\.yaml)", r"\1 --set train.steps=1 --set rl.eval_prompts=4", short)
        kept.setdefault(re.sub(r"\bbuild/hocket", "hocket", short), command)
    return {command: short for short, command in kept.items()}


class Commands(unittest.TestCase):
    def test_all(self):
        found, sources = printed_commands()
        # A page whose commands are no longer recognised is not a page without commands.
        for source, least in {"--help": 40, "README.md": 4, "tools/quickstart.sh": 3,
                              "configs/qwen3-30b-a3b.yaml": 1, "docs/systems.md": 15}.items():
            self.assertGreaterEqual(sources[source], least, (source, sources))
        # Commands with RUN, MODEL or VERB are forms, which cannot run.
        concrete = {c: w for c, w in found.items() if not re.search(r"\b(RUN|MODEL|VERB|COMMAND|FILE|DIR|A B)\b", c)}
        with tempfile.TemporaryDirectory() as folder:
            box = cli_util.Sandbox(folder)
            for ranks in (1, 2, 4, 8):  # for docs/cluster-files.md
                with open(box.path(f"nccl_{ranks}.log"), "w", encoding="utf-8") as f:
                    f.write(nccl_log.log(ranks))
            with open(box.path("args.sh"), "w", encoding="utf-8") as f:  # for docs/planner.md
                f.write(megatron_script.DENSE)
            for name, text in (("config.json", importers_test.torchtitan()), ("ds.json", json.dumps(importers_test.DEEPSPEED)),
                               ("run_grpo.sh", importers_test.VERL), ("lora.yml", importers_test.AXOLOTL)):  # for docs/interop.md
                with open(box.path(name), "w", encoding="utf-8") as f:
                    f.write(text)
            with open(box.path("gradients.yaml"), "w", encoding="utf-8") as f:  # for docs/whatif.md
                f.write("step: 120ms\ngradients:\n  - {bytes: 16MB, ready: 41ms}\n  - {bytes: 9MB, gap: 380us}\n")
            failed = []
            shown = shortened(concrete)
            for command in sorted(shown, key=lambda c: (rank(c), list(concrete).index(c))):
                r = box.shell(shown[command])
                if "hocket launch" in command and not LIBRARY:
                    # The error names the missing part.
                    self.assertEqual((2, True), (r.returncode, "tools/setup.sh --torch" in r.stderr), command)
                elif r.returncode != 0:
                    failed.append(f"{concrete[command]}: {command}\n  exit code {r.returncode}\n{r.stderr[-600:]}")
            self.assertEqual([], failed, "\n".join(failed))


if __name__ == "__main__":
    unittest.main()
