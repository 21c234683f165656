#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""tools/reward_shim.py runs reward files of verl's and TRL's interface unchanged."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

SHIM = pathlib.Path(__file__).resolve().parents[2] / "tools/reward_shim.py"
LINE = {"data_source": "numbers", "solution_str": "4", "ground_truth": "4", "extra_info": {"split": "train"}, "prompt": "2+2=",
        "completion_ids": [5, 6], "level": 3}
CHAT = [{"role": "user", "content": "2+2="}]


class Shim(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_shim(self, source, lines, *words, name="", module=""):
        """Returns the answers to the lines, and standard error."""
        path = os.path.join(self.folder.name, "reward.py")
        pathlib.Path(path).write_text(textwrap.dedent(source), encoding="utf-8")
        asked = "".join(json.dumps({"request_id": i, **LINE, **line}) + "\n" for i, line in enumerate(lines))
        done = subprocess.run([sys.executable, SHIM, (module or path) + name, *words], input=asked, capture_output=True, text=True,
                              timeout=60, check=False, cwd=self.folder.name)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode != 2:  # of the command line
            self.assertEqual({"ready": False}, answers.pop(0))
        if done.returncode == 0:
            self.assertEqual({"ready": True}, answers.pop(0))
            self.assertEqual(list(range(len(lines))), [answer.pop("request_id") for answer in answers])
        return answers, done.stderr, done.returncode

    def answers(self, *arguments, **keys):
        answers, errors, code = self.run_shim(*arguments, **keys)
        self.assertEqual(0, code, errors)
        return answers

    def test_verl(self):
        source = """
            import os
            from helper import right
            from other import compute_score as _builtin  # as files that dispatch do

            def compute_score(data_source, solution_str, ground_truth, extra_info=None):
                print("a print of the file's")
                os.system("echo one of a child")
                assert data_source == "numbers" and extra_info["split"] == "train"
                return right(solution_str, ground_truth)

            def helper_function(x):
                return x
        """
        pathlib.Path(self.folder.name, "other.py").write_text("def compute_score(solution_str, ground_truth):\n    return 5\n", encoding="utf-8")
        pathlib.Path(self.folder.name, "helper.py").write_text("def right(a, b):\n    return a == b\n", encoding="utf-8")
        answers, errors, code = self.run_shim(source, [{}, {"solution_str": "5"}])
        self.assertEqual((0, [{"score": 1}, {"score": 0}]), (code, answers))
        self.assertEqual(2, errors.count("a print of the file's"))
        self.assertEqual(2, errors.count("one of a child"))

    def test_verl_with_fewer_arguments(self):
        self.assertEqual([{"score": 2}], self.answers("def compute_score(solution_str, ground_truth, method='strict'):\n    return 2\n", [{}]))

    def test_verl_dictionaries(self):
        source = """
            def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
                return {"score": Scalar(), "acc": True, "pred": solution_str, "style": 2, "inf": float("inf")}

            class Scalar:  # as those of NumPy and PyTorch
                def item(self):
                    return 0.5
        """
        self.assertEqual([{"score": 0.5, "acc": 1, "style": 2}], self.answers(source, [{}]))

    def test_verl_async(self):
        source = """
            import asyncio
            LOCK = None

            async def compute_score(data_source, solution_str, ground_truth, extra_info=None):
                global LOCK
                LOCK = LOCK or asyncio.Lock()
                async with LOCK:
                    await asyncio.sleep(0.001)
                return (float(solution_str), "more")
        """
        self.assertEqual([{"score": 4}, {"score": 7}], self.answers(source, [{}, {"solution_str": "7"}]))

    def test_verl_without_extra_info(self):
        source = """
            def compute_score(data_source, solution_str, ground_truth, extra_info=None):
                return extra_info.get("level", 2)
        """
        self.assertEqual([{"score": 2}, {"score": 5}], self.answers(source, [{"extra_info": None}, {"extra_info": {"level": 5}}]))

    def test_verl_keywords(self):
        source = """
            def compute_score(data_source, solution_str, ground_truth, extra_info, threshold, scale=1):
                return scale if float(solution_str) > threshold else 0
        """
        self.assertEqual([{"score": 3}], self.answers(source, [{}], "--kwargs", '{"threshold": 2, "scale": 3}'))
        self.assertEqual([{"score": 0}], self.answers(source, [{}], "--kwargs", '{"threshold": 9}'))
        _, errors, code = self.run_shim(source, [{}])
        self.assertEqual(1, code)
        self.assertIn("compute_score needs threshold, which verl does not give; try --kwargs", errors)
        self.assertIn("takes no other", self.run_shim(source, [{}], "--kwargs", '{"threshold": 9, "other": 1}')[1])
        for text in ("{", "[1]"):
            self.assertEqual(2, self.run_shim(source, [{}], "--kwargs", text)[2])
        everything = "def compute_score(solution_str, **kwargs):\n    return kwargs['threshold']\n"
        self.assertEqual([{"score": 9}], self.answers(everything, [{}], "--kwargs", '{"threshold": 9}'))

    def test_verl_batches(self):
        source = """
            def compute_score(data_sources, solution_strs, ground_truths, extra_infos, scale=1):
                assert data_sources == ["numbers"] and extra_infos == [{}]
                return [{"score": scale * (a == b), "acc": a == b} for a, b in zip(solution_strs, ground_truths)]
        """
        lines = [{"extra_info": None}, {"extra_info": None, "solution_str": "5"}]
        self.assertEqual([{"score": 2, "acc": 1}, {"score": 0, "acc": 0}], self.answers(source, lines, "--kwargs", '{"scale": 2}'))

    def test_modules(self):
        package = pathlib.Path(self.folder.name, "pack")
        package.mkdir()
        package.joinpath("__init__.py").write_text("", encoding="utf-8")
        package.joinpath("rewards.py").write_text("def right(completions, ground_truth, trainer_state=None, **kwargs):\n"
                                                  "    return [completions == ground_truth]\n", encoding="utf-8")
        self.assertEqual([{"score": 1}], self.answers("", [{}], module="pack.rewards", name=":right"))
        self.assertEqual([{"score": 1}], self.answers("", [{}], module="pack.rewards"))
        self.assertIn("No module named 'pack.none'", self.run_shim("", [{}], module="pack.none")[1])
        self.assertIn("no file pack/none.py", self.run_shim("", [{}], module="pack/none.py")[1])

    def test_trl(self):
        source = """
            def length_reward(prompts, completions, completion_ids, ground_truth, level, **kwargs):
                assert prompts == ["2+2="] and completion_ids == [[5, 6]] and level == [3]
                assert kwargs["data_source"] == ["numbers"] and "request_id" not in kwargs
                kwargs["log_metric"]("asked", 1)
                kwargs["log_extra"]("text", completions)
                return [None if c == "skip" else float(c == t) for c, t in zip(completions, ground_truth)]
        """
        self.assertEqual([{"score": 1, "asked": 1}, {"score": 0, "asked": 1}, {"score": 0, "not_applicable": 1, "asked": 1}],
                         self.answers(source, [{}, {"solution_str": "5"}, {"solution_str": "skip"}]))

    def test_trl_messages_async_and_few_arguments(self):
        source = """
            async def chat_reward(completions, level):
                return [level[0] if completions[0][0] == {"role": "assistant", "content": "4"} else 0]

            def other_reward(completions):
                return [9]
        """
        self.assertEqual([{"score": 3}], self.answers(source, [{"prompt": CHAT}], name=":chat_reward"))
        _, errors, code = self.run_shim(source, [{}])
        self.assertEqual(1, code)
        self.assertIn("has 2 reward functions; try FILE:FUNCTION", errors)

    def test_style(self):
        source = """
            def by_position(**arguments):
                return [2.0] if "completions" in arguments else 1.0
        """
        self.assertEqual([{"score": 1}], self.answers(source, [{}], "--style", "verl", name=":by_position"))
        self.assertEqual([{"score": 2}], self.answers(source, [{}], "--style", "trl", name=":by_position"))
        self.assertIn("try --style", self.run_shim(source, [{}], name=":by_position")[1])
        self.assertIn("has no function none", self.run_shim(source, [{}], name=":none")[1])

    def test_failures_are_answers(self):
        source = """
            import sys
            def compute_score(data_source, solution_str, ground_truth, extra_info=None):
                if solution_str == "read":
                    return len(sys.stdin.read())
                return {"nan": float("nan"), "text": "good", "none": None, "dict": {"acc": 1}}[solution_str]
        """
        answers = self.answers(source, [{"solution_str": text} for text in ("nan", "text", "none", "dict", "missing", "read")])
        self.assertEqual({"error": "ValueError: the score is nan"}, answers[0])
        self.assertEqual({"error": "TypeError: the score is 'good', no number"}, answers[1])
        self.assertEqual({"error": "TypeError: the score is None, no number"}, answers[2])
        self.assertEqual({"error": "KeyError: 'score'"}, answers[3])
        self.assertEqual({"error": "KeyError: 'missing'"}, answers[4])
        self.assertEqual({"score": 0}, answers[5])
        two = "def f(completions):\n    return [1, 2]\n"
        self.assertEqual([{"error": "ValueError: 2 scores for one completion"}], self.answers(two, [{}]))

    def test_files_that_do_not_load(self):
        _, errors, code = self.run_shim("import no_such_module_here\n", [{}])
        self.assertEqual(1, code)
        self.assertIn("no_such_module_here", errors.strip().splitlines()[-1])
        state = "def f(completions, trainer_state):\n    return [1]\n"
        self.assertIn("needs trainer_state", self.run_shim(state, [{}])[1])


if __name__ == "__main__":
    unittest.main()
