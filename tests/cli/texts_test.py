#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Tests rewritten texts of programs: evaluation beside them, the commands in them, and refusals before anything
runs."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import cli_util

PLAN = ["--set", "plan.dp=2", "--set", "plan.micro_batch=2"]
HEAD = """
import re, sys
sys.path.insert(0, "docs/examples")
from program_text import Program
program = Program(sys.stdin.read())
cls = program.classes[0]
(weight,) = [i for i, b in enumerate(cls.buffers) if 'name="lm_head.weight"' in b and b.startswith("persistent")]
rows, width = 4096, 32
"""
# The parameter as a view of a bucket that has another name.
MOVED = HEAD + """
bucket = cls.add_buffer(f'persistent f32[{rows * width}] layout="B" name="bucket" slots="0:lm_head.weight:B"')
view = cls.add_buffer(f"view f32[{rows},{width}] base={bucket} begin=0")
for task in cls.tasks:
    for field in ("in", "out"):
        if field in task.fields:
            task.fields[field] = ",".join(str(view if b == weight else b) for b in task.buffers(field))
cls.buffers[weight] = "step f32[1]"
sys.stdout.write(program.text())
"""
# Every rank has half of the parameter and of its states, updates that half, and gathers the whole.
SHARDED = HEAD + """
(update,) = [t for t in cls.tasks if t.op == "adamw" and t.buffers("out")[0] == weight]
gradient = update.buffers("in")[1]
states = update.buffers("out")[1:]
begins = program.add_table(1, [0, rows // 2])
whole = cls.add_buffer(f"step f32[{rows},{width}]")
for task in cls.tasks:
    if task is update:
        continue
    for field in ("in", "out"):
        if field in task.fields:
            task.fields[field] = ",".join(str(whole if b == weight else b) for b in task.buffers(field))
for buffer in [weight] + states:
    text = re.sub(r' layout="[^"]*"', "", cls.buffers[buffer])
    cls.buffers[buffer] = text.replace(f"f32[{rows},{width}]", f'f32[{rows // 2},{width}] layout="edp:S0"')
view = cls.add_buffer(f"view f32[{rows // 2},{width}] base={gradient} dim=0 begin=0 by={begins}")
half = f"f32[{rows // 2},{width}]"
gather = cls.tasks[0].copy(program.add_kind("all_gather", [half], "{dim=0}"))
gather.words[:2] = ["all_gather", "intra"]
gather.fields = {"mb": "0", "layer": "-1", "in": str(weight), "out": str(whole), "group": str(program.add_group("axes=1"))}
kind = program.add_kind("adamw", [half] * 4 + ["f64[1]", "f64[3]"], program.kinds[update.kind].split('attrs="')[1].split('"')[0])
inputs = update.buffers("in")
inputs[1] = view
update.words[3] = f"k{kind}"
update.fields["in"] = ",".join(map(str, inputs))
cls.tasks.insert(0, gather)
sys.stdout.write(program.text())
"""


class Texts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.box = cli_util.Sandbox(cls.tmp.name)
        cls.box.prepare()
        for name, text in {"moved.py": MOVED, "sharded.py": SHARDED}.items():
            with open(cls.box.path(name), "w", encoding="utf-8") as f:
                f.write(text)
        cls.box.good("graph", "configs/quickstart.yaml", *PLAN, "--passes", "none", "--out", "plain.txt")

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def edited(self, name, pattern, to):
        """Writes plain.txt with a replacement to a file; returns its name."""
        with open(self.box.path("plain.txt"), encoding="utf-8") as f:
            text, count = re.subn(pattern, to, f.read())
        self.assertGreater(count, 0, pattern)
        with open(self.box.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return name

    def refused(self, expected, *words, code=2):
        r = self.box.run(*words)
        self.assertEqual(code, r.returncode, r.stdout + r.stderr)
        self.assertIn(expected, r.stderr)
        return r.stderr

    def losses(self, text, out):
        """Returns the losses of every step and evaluation of a training of 3 steps."""
        self.box.good("train", text, "--set", "train.steps=3", "--set", "train.eval_every=2", "--set",
                      f"output.dir={out}", "--set", "output.report=false")
        with open(self.box.path(f"{out}/metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        found = [(line["step"], key, line[key]) for line in lines for key in ("train/loss", "eval/loss") if key in line]
        self.assertEqual(2, sum(key == "eval/loss" for _, key, _ in found), lines)
        return found

    def test_evaluation_uses_the_trained_parameters_wherever_they_lie(self):
        want = self.losses("plain.txt", "runs/plain")
        for name in ("moved", "sharded"):
            self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--passes", f"exec:python3 {name}.py", "--check",
                          "--out", f"{name}.txt")
            self.box.good("check", f"{name}.txt")
            got = self.losses(f"{name}.txt", f"runs/{name}")
            for (step, key, loss), other in zip(want, got, strict=True):
                self.assertEqual((step, key), other[:2])
                self.assertAlmostEqual(loss, other[2], delta=1e-6 * abs(loss), msg=name)

    def test_the_halves_of_the_page_train(self):
        passes = "exec:python3 docs/examples/halves.py"
        two = ["--set", "train.steps=2", "--set", "train.eval_every=0"]
        self.box.train(*PLAN, *two, "--set", f"plan.passes={passes}", "--set", "output.dir=runs/halves")
        self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--passes", passes, "--out", "halves.txt")
        self.box.good("train", "halves.txt", *two, "--set", "output.dir=runs/halves-text")

    def test_commands_in_a_text_are_not_run(self):
        text = self.edited("evil.txt", r'"passes":\[[^\]]*\]', '"passes":["exec:touch ran; cat"]')
        for words in (["check"], ["simulate"], ["train", "--set", "train.steps=2", "--set", "output.dir=runs/evil"],
                      ["graph"]):
            self.box.good(words[0], text, *words[1:])
            self.assertFalse(os.path.exists(self.box.path("ran")), words)

    def test_a_failing_command_says_for_which_program_it_ran(self):
        with open(self.box.path("only_training.sh"), "w", encoding="utf-8") as f:
            f.write("cat > seen.txt; grep -q ' adamw ' seen.txt && cat seen.txt\n")
        self.refused("the given program has purpose evaluate", "check", "configs/quickstart.yaml", *PLAN,
                     "--set", "plan.passes=exec:sh only_training.sh", code=1)

    def test_programs_for_every_purpose_are_checked_from_their_texts(self):
        roles = ["--set", "plan.expert_ranks=2", "--set", "plan.ep=1"]
        for purpose, more in (("evaluate", []), ("gradients", []), ("logits", []), ("generate", []), ("evaluate", roles)):
            text = f"{purpose}.txt"
            self.box.good("graph", "configs/quickstart.yaml", *PLAN, *more, "--for", purpose, "--out", text)
            self.assertIn("good", self.box.good("check", text))
            self.refused(f"the program has the purpose {purpose}", "train", text, "--set", "output.dir=runs/purpose")
        guess = self.edited("guess.txt", "(?m)^micro_batches", "purpose guess\nmicro_batches")
        self.refused("the purpose is 'guess'; expected one of train, evaluate", "check", guess)

    def test_a_text_is_checked_whatever_the_plan_in_it_is(self):
        text = self.edited("other.txt", r'"tp":1', '"tp":3')
        said = self.box.run("check", text)
        self.assertEqual(0, said.returncode, said.stderr)
        self.assertIn("has other ranks than the plan in its configuration", said.stderr)

    def test_micro_batches_are_those_of_the_configuration(self):
        text = self.edited("more.txt", r'"global_batch":(\d+)', lambda m: f'"global_batch":{3 * int(m.group(1))}')
        for verb in ("check", "simulate", "train"):
            said = self.refused("micro-batches, the configuration in it", verb, text)
            self.assertRegex(said, r"has \d+ micro-batches, the configuration in it \d+")

    def test_what_is_not_finished_is_not_simulated(self):
        unfinished = self.edited("unfinished.txt", r" (deps|at|ws|arena|flops|bytes)=\S+", "")
        said = self.refused("hocket graph --finish unfinished.txt", "simulate", unfinished)
        self.assertRegex(said, r"refuses the program: \d+ problems, one is \[")
        with open(self.box.path(unfinished), encoding="utf-8") as f:
            text = f.read()
        for name in ("-", "/dev/stdin"):
            finished = subprocess.run([cli_util.HOCKET, "graph", "--finish", name], input=text, text=True,
                                      stdout=subprocess.PIPE, cwd=self.box.folder, check=True).stdout
            with open(self.box.path("plain.txt"), encoding="utf-8") as f:
                self.assertEqual(f.read(), finished)

    def test_a_command_may_have_commas(self):
        with open(self.box.path("words.sh"), "w", encoding="utf-8") as f:
            f.write('echo "$@" >> words.txt; cat\n')
        self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--passes", "recompute,bucket", "--passes",
                      'exec:sh words.sh a,b "c: [d]"', "--times")
        with open(self.box.path("words.txt"), encoding="utf-8") as f:
            self.assertEqual("a,b c: [d]\n", f.read())

    def test_ops_are_listed_with_kinds_that_can_be_copied(self):
        names = [line.split()[0] for line in self.box.good("graph", "--list-ops").splitlines() if line.strip()]
        self.assertIn("linear", names)
        self.assertIn("all_to_all", names)
        said = self.box.good("graph", "--list-ops", "linear_dw")
        self.assertIn("outputs 0 (acc)", said)
        kind = next(line.strip() for line in said.splitlines() if line.startswith("  linear_dw "))
        self.refused("linear_dwx", "graph", "--list-ops", "linear_dwx")
        outs = kind.rpartition(' out="')[0]
        self.assertRegex(outs, r'attrs="[^"]*" in="[^"]+"$')


if __name__ == "__main__":
    unittest.main()
