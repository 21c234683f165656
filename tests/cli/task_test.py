#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""`hocket data task`: the files of every task, read by the program and by `tokenizers`; the warm-up trains; bad input is
named."""
import json
import os
import subprocess
import tempfile
import unittest

import cli_util

TASKS = ["copy", "reverse", "sort", "addition", "multi_addition", "countdown"]
SMALL = ["--train", "40", "--held-out", "20", "--warmup", "60"]


def read_lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def read_text(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Task(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def hocket(self, *words, code=0):
        done = subprocess.run([cli_util.HOCKET, *words], capture_output=True, text=True, check=False, cwd=self.folder,
                              timeout=240)
        self.assertEqual(code, done.returncode, done.stderr)
        return done.stderr if code else done.stdout

    def test_list(self):
        text = self.hocket("data", "task", "--list")
        for name in TASKS:
            self.assertRegex(text, rf"(?m)^{name} +\w")
        self.assertRegex(text, r"(?m)^ +r\d{8}= -> \d{8}$")

    def test_files_of_every_task(self):
        for name in TASKS:
            said = self.hocket("data", "task", name, "--out", name, *SMALL)
            self.assertIn(f"{name}: {name}, 40 problems to train on, 20 held out, 60 examples of the form", said)
            self.assertIn(f"hocket train {name}/warmup.yaml && hocket rl {name}/rl.yaml", said)
            train, held_out = read_lines(self.path(name, "train.jsonl")), read_lines(self.path(name, "held_out.jsonl"))
            self.assertEqual((40, 20), (len(train), len(held_out)))
            for split, rows in (("train", train), ("held_out", held_out)):
                for index, row in enumerate(rows):
                    self.assertEqual(["prompt", "ground_truth", "data_source", "extra_info"], list(row))
                    self.assertEqual(f"task/{name}", row["data_source"])
                    self.assertEqual({"split": split, "index": index}, row["extra_info"])
            self.assertFalse({row["prompt"] for row in train} & {row["prompt"] for row in held_out})
            examples = read_lines(self.path(name, "warmup.jsonl"))
            self.assertEqual(60, len(examples))
            self.assertFalse({row["prompt"] for row in examples} & {row["prompt"] for row in held_out})

    def test_reverse_is_right(self):
        self.hocket("data", "task", "reverse", "--out", "a", "--digits", "5", *SMALL)
        for row in read_lines(self.path("a", "train.jsonl")):
            self.assertRegex(row["prompt"], r"^r\d{5}=$")
            self.assertEqual(row["prompt"][1:6][::-1], row["ground_truth"])

    def test_the_same_words_write_the_same_bytes(self):
        for out in ("a", "b"):
            self.hocket("data", "task", "countdown", "--out", out, *SMALL, "--seed", "5")
        self.hocket("data", "task", "countdown", "--out", "c", *SMALL, "--seed", "6")
        for name in ("train.jsonl", "held_out.jsonl", "warmup.jsonl"):
            self.assertEqual(read_text(self.path("a", name)), read_text(self.path("b", name)))
            self.assertNotEqual(read_text(self.path("a", name)), read_text(self.path("c", name)))

    def test_warm_up_as_the_model_reads_it(self):
        """Every character is a token, the completion alone is trained, and the end of text ends it."""
        self.hocket("data", "task", "multi_addition", "--out", "a", *SMALL)
        out = json.loads(self.hocket("data", "show", "a/warmup.yaml", "--json", "-n", "60", "--valid-fraction", "0"))
        examples = {row["prompt"] + row["completion"]: row["completion"] for row in read_lines(self.path("a", "warmup.jsonl"))}
        self.assertTrue(out["shown"])
        for shown in out["shown"]:
            begin, *characters, end = shown["texts"]
            self.assertEqual(("<|endoftext|>", "<|endoftext|>"), (begin, end))
            self.assertTrue(all(len(text) == 1 for text in characters), characters)
            completion = examples["".join(characters)]
            trained = [text for text, flag in zip(shown["texts"], shown["trained"]) if flag]
            self.assertEqual([*completion, end], trained)

    def test_both_runs_train(self):
        """A few steps of the warm-up lower its loss, and an update of `hocket rl` starts from its result."""
        self.hocket("data", "task", "copy", "--out", "a", "--digits", "2", "--train", "40", "--held-out", "10", "--warmup",
                    "200")
        few = ["--set", "output.report=false", "--set", "train.seq_len=64"]
        self.hocket("train", "a/warmup.yaml", *few, "--set", "train.steps=25", "--set", "train.global_batch=2", "--set",
                    "plan.micro_batch=2")
        losses = [row["train/loss"] for row in read_lines(self.path("a", "warmup", "metrics.jsonl")) if "train/loss" in row]
        self.assertLess(losses[-1], 0.8 * losses[0])
        self.hocket("rl", "a/rl.yaml", *few, "--set", "train.steps=1", "--set", "rl.prompts_per_step=2", "--set",
                    "rl.samples_per_prompt=2")
        rows = read_lines(self.path("a", "rl", "metrics.jsonl"))
        self.assertTrue(any("reward" in row for row in rows))
        self.assertTrue(any("eval/held_out/pass@1" in row for row in rows))

    def test_chats_for_a_language_model(self):
        self.hocket("data", "task", "countdown", "--out", "a", *SMALL, "--chat", "some/model")
        self.assertEqual(["held_out.jsonl", "rl.yaml", "task.json", "train.jsonl"], sorted(os.listdir(self.path("a"))))
        for row in read_lines(self.path("a", "train.jsonl")):
            [message] = row["prompt"]
            self.assertEqual("user", message["role"])
            self.assertIn("<answer>", message["content"])
            for number in row["ground_truth"]["numbers"]:
                self.assertIn(str(number), message["content"])
        text = read_text(self.path("a", "rl.yaml"))
        self.assertIn('model: {path: "some/model"}', text)
        self.assertIn("extract: answer", text)

    def test_runs_are_read(self):
        """Both files have only known keys, with values in their bounds; paths may have blanks."""
        for name in TASKS:
            self.hocket("data", "task", name, "--out", "a b/" + name, *SMALL)
            run = json.loads(self.hocket("train", f"a b/{name}/warmup.yaml", "--print-config", "--json"))
            self.assertEqual("sft", run["objective"])
            # The model of rl.yaml is the warm-up's result.
            run = json.loads(self.hocket("train", f"a b/{name}/rl.yaml", "--print-config", "--json", "--set",
                                         f"model.path=a b/{name}"))
            self.assertEqual("rl", run["objective"])
            self.assertEqual(f"a b/{name}/train.jsonl", run["data"]["sources"][0]["path"])
            self.assertEqual(1, len(run["rl"]["rewards"]))
            self.assertEqual({"reverse": 0.1, "countdown": 0.05}.get(name, 0), run["rl"]["kl_coef"])

    def test_bad_input_is_named(self):
        for words, said in {
                ("revers", "--out", "a"): "no task is called 'revers'",
                ("reverse",): "expected --out DIR",
                ("--out", "a"): "try --list",
                ("reverse", "--out", "-"): "expected --out DIR",
                ("reverse", "--list"): "got --list and a task",
                ("reverse", "--out", "a", "--digits", "99"): "--digits",
                ("countdown", "--out", "a", "--digits", "9"): "digits of countdown are 9; expected 1 to 3",
                ("countdown", "--out", "a", "--operators", "+%"): "operators are '+%'",
                ("countdown", "--out", "a", "--operands", "1"): "operands of countdown are 1; expected 2 to 6",
                ("sort", "--out", "a", "--reversed"): "sort has no reversed answers",
                ("copy", "--out", "a", "--digits", "1"): "try more digits, or fewer problems",
                ("copy", "--out", "a", "--train", "0"): "--train",
                ("copy", "--out", "a", "--seed", "-1"): "--seed"}.items():
            self.assertIn(said, self.hocket("data", "task", *words, code=2))
        self.assertFalse(os.path.exists(self.path("a")))

    def test_files_of_others_stay(self):
        os.mkdir(self.path("a"))
        with open(self.path("a", "config.json"), "w", encoding="utf-8") as f:
            f.write("mine")
        self.assertIn("config.json of others", self.hocket("data", "task", "copy", "--out", "a", *SMALL, code=2))
        self.assertEqual("mine", read_text(self.path("a", "config.json")))
        self.assertEqual(["config.json"], os.listdir(self.path("a")))

    def test_tokenizers_reads_the_same_ids(self):
        try:
            import tokenizers  # noqa: PLC0415
        except ImportError:
            self.skipTest("no tokenizers here")
        self.hocket("data", "task", "addition", "--out", "a", *SMALL)
        theirs = tokenizers.Tokenizer.from_file(self.path("a", "tokenizer.json"))
        self.assertEqual("<|endoftext|>", theirs.id_to_token(0))
        with open(self.path("a", "lines"), "w", encoding="utf-8") as f:
            texts = [row["prompt"] + row["ground_truth"] + "<|endoftext|>" for row in read_lines(self.path("a", "train.jsonl"))]
            f.write("".join(json.dumps(text) + "\n" for text in texts))
        ours = [json.loads(line) for line in self.hocket(
            "data", "encode", "a", "--in", "a/lines", "--lines", "--add-special-tokens").splitlines()]
        self.assertEqual([theirs.encode(text).ids for text in texts], ours)
        for text, ids in zip(texts, ours):
            self.assertEqual("<|endoftext|>" + text, theirs.decode(ids, skip_special_tokens=False))


if __name__ == "__main__":
    unittest.main()
