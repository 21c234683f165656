#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts of `hocket rl`: what is held out, and prompts that cannot be sampled."""
import json
import os
import unittest

import rl_util


class Prompts(rl_util.RlTest):
    def lines(self, name, rows):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        return self.path(name)

    def test_sources_that_are_held_out_are_one_set(self):
        held_out = [self.lines(f"{digit}.jsonl", [{"prompt": f"{digit}234=", "ground_truth": f"432{digit}"}]) for digit in (1, 2)]
        sources = [{"path": self.path("task/train.jsonl")}] + [{"path": path, "split": "valid"} for path in held_out]
        self.write_run("run", data={"sources": sources, "evaluation": []}, train={"steps": 1})
        self.rl("run")
        with open(self.path("run", "metrics.jsonl"), encoding="utf-8") as f:
            for line in f:
                names = [name for name, _ in json.loads(line, object_pairs_hook=list)]
                self.assertEqual(len(names), len(set(names)), line)
        with open(self.path("run", "trajectories", "eval-000001.jsonl"), encoding="utf-8") as f:
            self.assertEqual(["4321", "4322"], [json.loads(line)["label"] for line in f])

    def test_data_show_has_prompts_as_they_are_sampled(self):
        path = self.lines("some.jsonl", [{"prompt": "1234=", "ground_truth": "4321", "data_source": "digits"}, {"prompt": "12="}])
        held_out = self.lines("held.jsonl", [{"prompt": "56=", "ground_truth": "65"}])
        run = self.write_run("run", data={"sources": [{"path": path}], "evaluation": [{"name": "held", "path": held_out}]})

        def shown(*words):
            self.hocket("data", "show", run, "--json", "--out", "shown.json", *words)
            with open(self.path("shown.json"), encoding="utf-8") as f:
                return json.load(f)

        out = shown()
        self.assertEqual(2, out["prompts"])
        self.assertEqual({"4321", None}, {prompt["ground_truth"] for prompt in out["shown"]})
        for prompt in out["shown"]:
            self.assertEqual(prompt["text"], "".join(prompt["texts"]))
            self.assertEqual(len(prompt["ids"]), len(prompt["texts"]))
            self.assertTrue(prompt["text"].endswith("=" if prompt["ground_truth"] is None else "1234="), prompt)
        self.assertTrue(any("1 prompt without a ground truth" in note for note in out["notes"]), out["notes"])
        self.assertEqual(1, len(shown("-n", "1")["shown"]))
        self.assertEqual(["65"], [prompt["ground_truth"] for prompt in shown("--split", "held")["shown"]])
        said = self.hocket("data", "show", run)
        self.assertIn('-- ground truth: "4321"\n-- data_source: digits\n', said)
        self.assertIn("training: 2 prompts\n", said)
        self.assertIn("expected train, held", self.hocket("data", "show", run, "--split", "valid", code=2))
        self.assertIn("--seq-len is of examples, and objective is rl", self.hocket("data", "show", run, "--seq-len", "9", code=2))

    def test_the_ground_truth_of_verl_goes_before_other_columns(self):
        row = {"prompt": "1234=", "answer": "so 4321", "reward_model": {"ground_truth": "4321"}, "extra_info": {"deep": {"answer": 5}}}
        path = self.lines("verl.jsonl", [row, {"prompt": "12=", "answer": "21"}, {**row, "answer": 4321},
                                         {"prompt": "3=", "target": 9, "reward_model": {"ground_truth": {"target": 9, "numbers": [3]}}}])

        def shown(**columns):
            data = {"sources": [{"path": path, "columns": columns}], "evaluation": [], "valid_fraction": 0}
            self.hocket("data", "show", self.write_run("run", data=data), "-n", "9", "--json", "--out", "shown.json")
            with open(self.path("shown.json"), encoding="utf-8") as f:
                out = json.load(f)
            return {str(prompt["ground_truth"]) for prompt in out["shown"]}, out["notes"]

        truths, notes = shown()
        self.assertEqual({"4321", "21", "{'target': 9, 'numbers': [3]}"}, truths)
        self.assertEqual(["the ground truth of 1 prompt is reward_model.ground_truth, and column answer has another value; to choose, try "
                          "columns: {ground_truth: answer} in data.sources"], notes)
        with open(path, "w", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")
        self.assertEqual(({"so 4321"}, []), shown(ground_truth="answer"))
        self.assertEqual(({"5"}, []), shown(ground_truth="extra_info.deep.answer"))
        self.hocket("data", "show", self.write_run("run", data={"sources": [{"path": path, "columns": {"ground_truth": "extra_info.x"}}]}),
                    code=2)

    def test_a_held_out_set_without_prompts_is_refused(self):
        path = self.lines("long.jsonl", [{"prompt": "1" * 30 + "=", "ground_truth": "1"}] * 3)
        self.write_run("run", data={"evaluation": [{"name": "long", "path": path}]})
        said = self.rl("run", code=2)
        self.assertIn("set long of data.evaluation has no prompt: 3 are longer than 27 tokens", said)

    def test_messages_may_have_any_order(self):
        with open(self.path("chat.jinja"), "w", encoding="utf-8") as f:
            f.write("{% for m in messages %}{{ m['content'] }}{% endfor %}")
        user, tool, answer = ({"role": role, "content": "12="} for role in ("user", "tool", "assistant"))
        path = self.lines("chat.jsonl", [{"prompt": turns, "ground_truth": "1"} for turns in
                                         ([user, user], [user, tool], [answer, user], [{**user, "role": "system"}])])
        data = {"sources": [{"path": path}], "evaluation": [], "valid_fraction": 0, "chat_template": self.path("chat.jinja")}
        self.write_run("run", data=data, train={"steps": 1})
        self.assertIn("4 prompts to train on", self.rl("run"))
        self.lines("chat.jsonl", [{"prompt": [user, answer], "ground_truth": "1"}])
        self.assertIn("its last message is of role assistant", self.rl("run", code=2))

    def test_templates_get_tools_and_variables(self):
        with open(self.path("chat.jinja"), "w", encoding="utf-8") as f:
            f.write("{% for m in messages %}{{ m['content'] }}{% endfor %}{% if tools %}{{ tools | length }}{% endif %}{{ last }}")
        tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
        row = {"prompt": [{"role": "user", "content": "12"}], "ground_truth": "1", "chat_template_kwargs": {"last": "="}}
        path = self.lines("chat.jsonl", [{**row, "tools": [tool]}, {**row, "tools": json.dumps([tool, tool])}, row])
        data = {"sources": [{"path": path}], "evaluation": [], "valid_fraction": 0, "chat_template": self.path("chat.jinja")}
        self.write_run("run", data=data, train={"steps": 1}, rl={"prompts_per_step": 3})
        self.rl("run")
        with open(self.path("run", "trajectories", "step-000001.jsonl"), encoding="utf-8") as f:
            self.assertEqual({"121=", "122=", "12="}, {json.loads(line)["prompt"] for line in f})
        self.lines("chat.jsonl", [{**row, "chat_template_kwargs": ["="]}])
        self.assertIn("its chat_template_kwargs is a list; expected an object", self.rl("run", code=2))

    def test_a_full_disk_is_told_once(self):
        self.write_run("run", train={"steps": 1}, data={"evaluation": [], "valid_fraction": 0})
        os.makedirs(self.path("run"))
        with open(self.path("run", "trajectories"), "w", encoding="utf-8"):
            pass  # a file where a folder is to be
        self.assertEqual(1, self.rl("run", code=2).count("there is no checkpoint yet"))

    def test_prompts_without_a_ground_truth_are_told(self):
        path = self.lines("bare.jsonl", [{"prompt": "1234="}])
        self.write_run("run", data={"sources": [{"path": path}], "evaluation": []}, rl={"max_failed_rewards": 1},
                       train={"steps": 1})
        said = self.rl("run")
        self.assertIn("without a ground truth", said)
        update = self.metrics("run")[0][0]
        self.assertEqual(1, update["rewards/failed"])
        self.assertIsNone(update["reward"])  # of rewards that all failed there is no mean


if __name__ == "__main__":
    unittest.main()
