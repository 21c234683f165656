#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wrong and doubtful data of `hocket train` on examples: each message names the key, the file and the reason."""
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rl"))
import rl_util  # pylint: disable=wrong-import-position
from rl_util import cli_util  # pylint: disable=wrong-import-position


class Refusals(rl_util.RlTest):
    def setUp(self):
        super().setUp()
        self.rows = self.path("rows.jsonl")
        with open(self.rows, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": "r12=", "completion": "21"}) + "\n" for _ in range(4))

    def train(self, code, data, **sections):
        run = {"objective": "sft", "model": {"config": rl_util.DENSE},
               "data": {"tokenizer": self.path("task"), "sources": [{"path": self.rows}], "valid_fraction": 0, **data},
               "train": {"steps": 1, "seq_len": 32, "warmup_steps": 0, "global_batch": 2},
               "output": {"dir": self.path("out"), "trace": False, "report": False}, **sections}
        path = self.path("run.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(run, f)
        done = subprocess.run([cli_util.HOCKET, "train", path], capture_output=True, text=True, cwd=self.folder,
                              check=False, timeout=120)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_data(self):
        chats = self.path("chats.jsonl")
        with open(chats, "w", encoding="utf-8") as f:
            f.write(json.dumps({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}))
        absent = "/nope.jinja"
        for message, data in (
                ("data.tokenizer /nope is not there; expected a tokenizer.json", {"tokenizer": "/nope"}),
                ("data.sources have weight 0 each; expected one above 0", {"sources": [{"path": self.rows, "weight": 0}]}),
                ("it has no column question (columns: {prompt: question}); expected one of its columns",
                 {"sources": [{"path": self.rows, "columns": {"prompt": "question"}}]}),
                ("[/nope.jinja] cannot be opened: No such file or directory; data.chat_template names it",
                 {"sources": [{"path": chats}], "chat_template": absent}),
                ("[data.evaluation: quick] '/nope.jsonl' matches no data file",
                 {"evaluation": [{"name": "quick", "path": "/nope.jsonl"}]})):
            with self.subTest(message):
                said = self.train(2, data)
                self.assertIn(message, said)
                self.assertNotIn("it is for data.evaluation", said)

    def test_what_is_left_out_of_held_out_sets_is_reported(self):
        """A note of what held-out examples lose names their set, as those of the training have none."""
        def rows(name, lengths):
            with open(self.path(name), "w", encoding="utf-8") as f:
                f.writelines(json.dumps({"prompt": "r12=", "completion": "1" * n}) + "\n" for n in lengths)
            return self.path(name)

        sources = [{"path": rows("train.jsonl", (2, 2, 2, 60)), "split": "train"},
                   {"path": rows("held.jsonl", (2, 2, 60, 60)), "split": "valid"}]
        said = self.train(0, {"sources": sources, "truncate": "drop",
                              "evaluation": [{"name": "quick", "path": rows("quick.jsonl", (2, 60, 60, 60))}]})
        for note in ("1 example left out, longer than train.seq_len\n",
                     "2 examples left out, longer than train.seq_len, of those held out\n",
                     "3 examples left out, longer than train.seq_len, of data.evaluation: quick\n"):
            self.assertIn(note, said)

    def test_too_few_held_out(self):
        def judged(name, count):
            with open(self.path(name), "w", encoding="utf-8") as f:
                f.writelines(json.dumps({"prompt": f"r{i}=", "completion": str(i), "label": i % 2 == 0}) + "\n" for i in range(count))
            return self.path(name)

        sources = [{"path": judged("train.jsonl", 4), "split": "train"}, {"path": judged("one.jsonl", 1), "split": "valid"}]
        said = self.train(2, {"sources": sources}, objective="kto")
        self.assertIn("behind the prompt of another example; got 1 example; expected two examples or more", said)
        self.assertIn("these are the examples held out; try another data.valid_fraction", said)
        # By default two are held out of a few.
        for count in (4, 8):
            self.train(0, {"sources": [{"path": judged(f"{count}.jsonl", count)}], "valid_fraction": 0.05}, objective="kto",
                       output={"dir": self.path(f"out-{count}"), "trace": False, "report": False})
        with open(self.path("long.jsonl"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"prompt": "r" + "1" * 60 + "=", "completion": "1"}))
        said = self.train(2, {"sources": [{"path": self.rows}, {"path": self.path("long.jsonl"), "split": "valid"}]})
        self.assertIn("lose them to rows of 32", said)
        self.assertIn("these are the examples held out", said)

    def test_one_label(self):
        with open(self.path("good.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": f"r{i}=", "completion": str(i), "label": True}) + "\n" for i in range(4))
        said = self.train(0, {"sources": [{"path": self.path("good.jsonl")}]}, objective="kto")
        self.assertIn("4 examples (4 desirable, 0 undesirable), ", said)
        self.assertIn("warning: no example is undesirable; ", said)

    def test_texts_that_the_template_leaves_out(self):
        with open(self.path("chats.jsonl"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"messages": [{"role": "system", "content": "3"}, {"role": "user", "content": "1"},
                                             {"role": "assistant", "content": "2"}]}) + "\n")
        with open(self.path("two.jinja"), "w", encoding="utf-8") as f:
            f.write("{% for m in messages if m.role != 'system' %}{{ m.content }}={% endfor %}")
        said = self.train(0, {"sources": [{"path": self.path("chats.jsonl")}], "chat_template": self.path("two.jinja"),
                              "train_on": "all"})
        self.assertIn("warning: 1 example with messages of role 'system' that the template leaves out (the first: ", said)

    def test_keys_of_another_objective(self):
        said = self.train(0, {}, rl={"samples_per_prompt": 4}, preference={"beta": 0.1})
        self.assertIn("rl.samples_per_prompt has no effect: objective is sft", said)
        self.assertNotIn("preference.beta", said)  # as it is by default


if __name__ == "__main__":
    unittest.main()
