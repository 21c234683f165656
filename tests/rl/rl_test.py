#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""`hocket rl` with hostile rewards, killed reward processes, data of other trainers, and bad configurations."""
import glob
import json
import os
import signal
import statistics
import subprocess
import time
import unittest

import rl_util
from rl_util import cli_util

# Does what the column `fault` of a prompt says.
HOSTILE = r"""import json, os, signal, sys
for line in sys.stdin:
    row = json.loads(line)
    fault = row["fault"]
    if fault == "flood":
        while True:
            sys.stdout.write("1" * 65536)
    elif fault == "noise":
        while True:
            sys.stderr.write("trouble\n" * 8192)
    elif fault == "exit":
        sys.stderr.write("no more of this\n")
        sys.exit(3)
    elif fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = {"nan": "NaN", "nan in text": '{"score": "nan"}', "huge": "1e999", "string": '"good"',
              "words": "well done", "none": "null", "list": "[1]", "no score": '{"reward": 1}',
              "other": '{"request_id": -1, "score": 1}', "two": "1\n1", "error": '{"error": "too hard"}'
              }.get(fault, '{"score": 0.5, "style": 2}')
    print(answer, flush=True)
"""
# Words of the trajectory, by fault.
NONE = "expected a finite number"
FAULTS = {"nan": "NaN", "nan in text": NONE, "huge": "1e999", "string": NONE, "words": "which is no JSON", "none": NONE,
          "list": NONE, "no score": NONE, "other": "answered -1 to", "two": "more than one line", "error": "too hard",
          "flood": "without a line's end", "noise": "to standard error for one sample",
          "exit": "ended with status 3; the last line of its standard error: no more of this", "killed": "signal 9"}
# Scores as it should, and is killed with the first sample of the run; tells its number.
SCORER = """import json, os, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
open(os.path.join(here, "pids", str(os.getpid())), "w").close()
for line in sys.stdin:
    row = json.loads(line)
    if len(sys.argv) > 1:
        try:
            os.close(os.open(os.path.join(here, sys.argv[1]), os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        except FileExistsError:
            pass
    time.sleep(0.01)
    print(sum(a == b for a, b in zip(row["solution_str"], row["ground_truth"])), flush=True)
"""


class HostileRewards(rl_util.RlTest):
    """One step, whose prompts each have a fault, and as many that have none."""

    def setUp(self):
        super().setUp()
        self.scorer = self.path("hostile.py")
        with open(self.scorer, "w", encoding="utf-8") as f:
            f.write(HOSTILE)
        names = [*FAULTS, *("" for _ in FAULTS)]
        with open(self.path("faults.jsonl"), "w", encoding="utf-8") as f:
            for i, fault in enumerate(names):
                f.write(json.dumps({"prompt": f"r{i:04}=", "ground_truth": f"{i:04}"[::-1], "fault": fault}) + "\n")
        self.prompts = len(names)

    def write(self, name, **keys):
        reward = {"type": "exec", "command": "exec python3 -S " + self.scorer, "processes": 4, "retries": 0,
                  "timeout_s": 100, "failed_score": -0.25}
        self.write_run(name, data=rl_util.only(self.path("faults.jsonl")), train={"steps": 1},
                       rl={"prompts_per_step": self.prompts, "samples_per_prompt": 2, "rewards": [reward], **keys})

    def test_hangs(self):
        hangs = {"type": "exec", "command": "exec sleep 100", "retries": 1, "timeout_s": 0.2, "failed_score": 3}
        self.write("hangs", max_failed_rewards=1, prompts_per_step=1, rewards=[hangs, {"type": "digits"}])
        self.rl("hangs")
        rows = self.rows("hangs")
        self.assertEqual(2, len(rows))
        for row in rows:
            hung, right = row["rewards"]["exec"], row["rewards"]["digits"]
            self.assertIn("gave no answer within 0.2 s", hung["error"])
            self.assertEqual((True, 3, 2), (hung["failed"], hung["score"], hung["tries"]))
            self.assertFalse(right.get("failed"))
            self.assertEqual(3 + right["score"], row["reward"])
        self.assertEqual(1, self.metrics("hangs")[0][0]["rewards/failed"])

    def rows(self, name):
        with open(self.path(name, "trajectories", "step-000001.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def test_below_the_limit(self):
        self.write("below", max_failed_rewards=0.5)
        self.rl("below")
        updates, _ = self.metrics("below")
        self.assertEqual([0.5], [line["rewards/failed"] for line in updates])
        rows = self.rows("below")
        self.assertEqual(2 * self.prompts, len(rows))
        with open(self.path("faults.jsonl"), encoding="utf-8") as f:
            faults = {row["prompt"]: row["fault"] for row in map(json.loads, f)}
        seen = set()
        for row in rows:
            fault, part = faults[row["prompt"]], row["rewards"]["exec"]
            seen.add(fault)
            self.assertEqual(fault != "", row["remove_sample"])
            if fault:
                self.assertTrue(part["failed"], f"{fault}: {part}")
                self.assertIn(FAULTS[fault], part["error"], fault)
                self.assertEqual((-0.25, -0.25, 1), (part["score"], row["reward"], part.get("tries", 1)), fault)
            else:
                self.assertFalse(part.get("failed"), part)
                self.assertEqual((0.5, 0.5, {"style": 2}), (part["score"], row["reward"], part["details"]))
        self.assertEqual({*FAULTS, ""}, seen)
        # The reward of the step is that of the samples that were scored.
        self.assertAlmostEqual(0.5, updates[0]["reward"])
        self.assertAlmostEqual(0.5, updates[0]["rewards/exec/mean"])
        # All of these have one reward: the loss has no gradient, and failures give it none.
        self.assertEqual(0, updates[0]["train/grad_norm"])

    def test_failures_may_be_trained(self):
        self.write("trained", max_failed_rewards=0.5, failed_samples="score")
        self.rl("trained")
        updates, _ = self.metrics("trained")
        self.assertAlmostEqual(0.125, updates[0]["reward"])
        self.assertFalse(any(row["remove_sample"] for row in self.rows("trained")))

    def test_above_the_limit(self):
        self.write("above", max_failed_rewards=0.49)
        said = self.rl("above", code=1)
        self.assertIn(f"the reward of {self.prompts} of {2 * self.prompts} samples failed; expected at most the "
                      "share 0.49 (rl.max_failed_rewards); the first: exec: ", said)
        self.assertFalse(glob.glob(self.path("above", "trajectories", "step-*")))
        self.assertFalse(glob.glob(self.path("above", "checkpoints", "step-*")))


    def test_updates_before_a_failure_are_saved(self):
        """A judge that is gone ends the run: with a checkpoint of the updates that were made."""
        with open(self.path("gone.py"), "w", encoding="utf-8") as f:
            f.write("""import os, sys
for i, line in enumerate(sys.stdin):
    gone = os.path.exists("away") or i >= 32 and not os.path.exists("back")
    print('{"error": "gone"}' if gone else i % 2, flush=True)
""")
        reward = {"type": "exec", "command": "exec python3 -S gone.py", "processes": 1, "retries": 0}
        self.write_run("gone", data=rl_util.only(self.path("task/train.jsonl")), train={"steps": 4},
                       rl={"rewards": [reward]})
        said = self.rl("gone", code=1)
        self.assertIn("the reward of 16 of 16 samples failed", said)
        self.assertIn("step-000002 is intact, and the same command goes on from it", said)
        self.assertEqual([1, 2], [line["step"] for line in self.metrics("gone")[0]])
        # A run that resumes where the last one failed says so, until it is past that update.
        failed = "the last run into this folder failed in update 3: "
        self.assertNotIn(failed, said)
        for file, code in (("away", 1), ("back", 0)):
            with open(self.path(file), "w", encoding="utf-8"):
                pass
            said = self.rl("gone", code=code)
            self.assertRegex(said, failed + ".*the reward of 16 of 16 samples failed")
            if code:
                os.remove(self.path(file))
        self.assertEqual([1, 2, 3, 4], [line["step"] for line in self.metrics("gone")[0]])
        self.assertFalse(os.path.exists(self.path("gone", "failed.json")))

    def weights(self, *names):
        """Bytes of a checkpoint's tensors, those of the optimizer too, by file and name."""
        found = {}
        for path in glob.glob(os.path.join(self.path(*names), "**", "*.safetensors"), recursive=True):
            with open(path, "rb") as f:
                header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
                data = f.read()
            for name, tensor in header.items():
                if name != "__metadata__":
                    found[os.path.basename(path), name] = data[slice(*tensor["data_offsets"])]
        return found

    def test_nothing_to_train_changes_nothing(self):
        """Steps whose rewards all fail keep every bit of weights and moments, and measure nothing."""
        with open(self.path("once.py"), "w", encoding="utf-8") as f:
            f.write("""import sys
for line in sys.stdin:
    with open(sys.argv[1], "a") as f:  # outlives the command, which a failure ends
        f.write(".")
        i = f.tell()
    print(i % 2 if i <= 16 else "NaN", flush=True)
""")
        for name, advantage, plan in (("one", "grpo", {}), ("two", "grpo", {"dp": 2}), ("critic", "gae", {"dp": 2})):
            reward = {"type": "exec", "command": f"exec python3 -S once.py {name}.count", "processes": 1, "retries": 0}
            self.write_run(name, data=rl_util.only(self.path("task/train.jsonl")), plan=plan,
                           train={"steps": 4, "save_every": 1, "keep_last": 10},
                           rl={"rewards": [reward], "max_failed_rewards": 1, "advantage": advantage})
            self.rl(name)
            updates, _ = self.metrics(name)
            self.assertGreater(updates[0]["train/grad_norm"], 0)
            self.assertEqual([0, 1, 2, 3], [line.get("train/skipped", 0) for line in updates])
            for line in updates[1:]:
                for key in ("train/loss", "train/grad_norm", "entropy", "ratio", "approx_kl", "reward", "reward_std", "loss",
                            "actor/pg_loss", "critic/score/mean", "critic/advantages/mean"):
                    self.assertIsNone(line[key], key)
                self.assertEqual(1, line["rewards/failed"])
                if advantage == "gae":
                    for key in ("vf_loss", "vf_explained_var", "grad_norm", "values/mean"):
                        self.assertIsNone(line["critic/" + key], key)
            for part in ([], ["critic"])[:1 + (advantage == "gae")]:
                saved = [self.weights(name, *part, "checkpoints", f"step-{step:06}") for step in (1, 4)]
                self.assertEqual(saved[0].keys(), saved[1].keys())
                self.assertTrue(any("optimizer" in tensor or "exp_avg" in tensor for _, tensor in saved[0]), saved[0].keys())
                self.assertEqual([], [tensor for tensor in saved[0] if saved[0][tensor] != saved[1][tensor]], f"{name} {part}")

    def test_updates_before_one_that_ends_the_run_are_saved(self):
        """Ten updates in a row that change nothing end the run: with a checkpoint of those before the tenth."""
        with open(self.path("half.py"), "w", encoding="utf-8") as f:
            f.write("import sys\nfor i, line in enumerate(sys.stdin):\n    print(i % 2, flush=True)\n")
        reward = {"type": "exec", "command": "exec python3 -S half.py", "processes": 1}
        self.write_run("skipped", data=rl_util.only(self.path("task/train.jsonl")),
                       train={"steps": 12, "skip_grad_norm": 1e-12}, rl={"rewards": [reward]})
        said = self.rl("skipped", code=1)
        self.assertIn("steps 1 to 10 were all skipped", said)
        self.assertIn("step-000009 is intact", said)


class KilledRewards(rl_util.RlTest):
    def run_config(self, name, *words):
        with open(self.path("scorer.py"), "w", encoding="utf-8") as f:
            f.write(SCORER)
        os.makedirs(self.path("pids"), exist_ok=True)
        command = " ".join(["exec python3 -S", self.path("scorer.py"), *words])
        self.write_run(name, train={"steps": 6}, rl={"rewards": [{"type": "exec", "command": command, "retries": 40}],
                                                     "max_failed_rewards": 0})

    def lines(self, name):
        updates, evaluations = self.metrics(name)
        return [{key: value for key, value in line.items() if not key.startswith(("time", "timing_s/", "perf/", "memory/"))}
                for line in updates + evaluations]

    def test_run_goes_on(self):
        self.run_config("whole")
        self.rl("whole")
        self.run_config("disturbed", "killed-once")
        for path in glob.glob(self.path("pids", "*")):
            os.remove(path)
        process = subprocess.Popen([cli_util.HOCKET, "rl", self.path("disturbed.yaml")], cwd=self.folder, text=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        kills = 0
        while process.poll() is None:
            # A command that ends at the very beginning of a run is refused.
            begun = os.path.exists(self.path("disturbed", "metrics.jsonl"))
            for path in glob.glob(self.path("pids", "*"))[:1] if begun else []:
                os.remove(path)
                try:
                    os.kill(int(os.path.basename(path)), signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
        self.assertEqual(0, process.returncode, process.communicate()[1])
        process.stderr.close()
        self.assertGreater(kills, 2)
        self.assertTrue(os.path.exists(self.path("killed-once")))
        self.assertEqual(self.lines("whole"), self.lines("disturbed"))
        self.assertEqual(self.samples("whole"), self.samples("disturbed"))
        tries = []
        for path in glob.glob(self.path("disturbed", "trajectories", "*.jsonl")):
            with open(path, encoding="utf-8") as f:
                tries += [part.get("tries", 1) for row in map(json.loads, f) for part in row["rewards"].values()]
        self.assertGreater(max(tries), 1)


class Columns(rl_util.RlTest):
    def read(self, name, rows, **data):
        """Trains on the rows with an evaluation on the same; returns the samples of a step by prompt."""
        with open(self.path(name + ".jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        source = {"path": self.path(name + ".jsonl"), **data.pop("source", {})}
        self.write_run(name, data={**rl_util.only(""), "sources": [source], **data}, train={"steps": 1},
                       rl={"prompts_per_step": len(rows), "samples_per_prompt": 2})
        said = self.rl(name)
        with open(self.path(name, "trajectories", "step-000001.jsonl"), encoding="utf-8") as f:
            samples = [json.loads(line) for line in f]
        for sample in samples:
            # The rule `digits`, by its words in docs/rewards.md.
            text, truth = sample["response"].strip(), str(sample["label"])
            share = sum(a == b for a, b in zip(text, truth)) / max(len(text), len(truth))
            self.assertAlmostEqual(share + (text == truth), sample["reward"])
        self.assertEqual(2 * len(rows), len(samples))
        return {sample["prompt"]: sample for sample in samples}, said

    def test_verl(self):
        rows = [{"data_source": "numbers", "prompt": [{"role": "user", "content": f"r{i:04}="}], "ability": "math",
                 "reward_model": {"style": "rule", "ground_truth": f"{i:04}"[::-1]},
                 "extra_info": {"split": "train", "index": i}}
                for i in (1234, 5678, 9012)]
        with open(self.path("chat.jinja"), "w", encoding="utf-8") as f:
            f.write("{% for m in messages %}{{ m['content'] }}{% endfor %}")
        found, said = self.read("verl", rows, chat_template=self.path("chat.jinja"))
        self.assertNotIn("without a ground truth", said)
        self.assertEqual({"r1234=": "4321", "r5678=": "8765", "r9012=": "2109"},
                         {prompt.removeprefix("<|endoftext|>"): row["label"] for prompt, row in found.items()})
        self.assertEqual([{"split": "train", "index": i} for i in (1234, 5678, 9012)],
                         sorted((row["metadata"] for row in found.values()), key=lambda extra: extra["index"]))

    def test_trl(self):
        rows = [{"prompt": "r1234=", "ground_truth": "4321"}, {"prompt": "r5678=", "answer": "8765"},
                {"prompt": "r9012=", "solution": "2109"}, {"prompt": "r3456=", "label": "6543"},
                {"prompt": "r7890=", "target": "0987"}]
        found, _ = self.read("trl", rows)
        self.assertEqual({row["prompt"]: row["prompt"][4:0:-1] for row in rows},
                         {prompt.removeprefix("<|endoftext|>"): row["label"] for prompt, row in found.items()})

    def test_renamed(self):
        rows = [{"question": "r1234=", "prompt": "never this", "final": "4321"},
                {"question": "r5678=", "final": "8765"}]
        found, _ = self.read("renamed", rows, source={"columns": {"prompt": "question", "ground_truth": "final"}})
        self.assertEqual({"4321", "8765"}, {row["label"] for row in found.values()})

    def test_prompts_too_long_are_counted(self):
        rows = [{"prompt": "r1234=", "ground_truth": "4321"}, {"prompt": "r" + "1" * 40 + "=", "ground_truth": "1"},
                {"prompt": "r" + "2" * 60 + "=", "ground_truth": "2"}]
        with open(self.path("long.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        self.write_run("long", data=rl_util.only(self.path("long.jsonl")), train={"steps": 1},
                       rl={"prompts_per_step": 2})
        said = self.rl("long")
        # Rows of 32: 33 tokens of prompt and answer, of which the answer may have 6.
        self.assertIn("2 prompts left out of train: longer than 27 tokens", said)
        with open(self.path("long", "trajectories", "step-000001.jsonl"), encoding="utf-8") as f:
            self.assertEqual({"r1234="}, {json.loads(line)["prompt"].removeprefix("<|endoftext|>") for line in f})


class BadRuns(rl_util.RlTest):
    def refused(self, message, words=("rl",), code=2, **sections):
        path = self.write_run("bad", **sections)
        said = self.hocket(*words, path, code=code)
        self.assertIn(message, said)
        self.assertFalse(os.path.exists(self.path("bad", "metrics.jsonl")), message)

    def test_keys(self):
        for message, keys in (
                ("rl.prompts_per_update is 3; expected a divisor of rl.prompts_per_step 4", {"prompts_per_update": 3}),
                ("rl.advantage is reinforce_plus_plus, which divides by the deviation over the tokens of a step",
                 {"advantage": "reinforce_plus_plus", "prompts_per_step": 1, "samples_per_prompt": 1, "max_new_tokens": 1}),
                ("rl.rewards is empty; expected at least one", {"rewards": []}),
                ("reinforce_plus_plus_baseline", {"advantage": "best"}),
                ("rl.loss is gspo, whose ratio is of whole samples", {"loss": "gspo", "advantage": "gae"}),
                ("rl.stop has an empty string", {"stop": ["=", ""]}),
                ("rl.advantage is rloo, and rl.samples_per_prompt 1", {"advantage": "rloo", "samples_per_prompt": 1}),
                ("rl.dual_clip is 0.5; expected a number above 1", {"dual_clip": 0.5}),
                ("try rl.old_logprobs: trainer", {"correction": {"type": "tis"}}),
                ("a prompt and its answer have 33 tokens at most", {"max_new_tokens": 40}),
                ("two rewards are named 'digits'", {"rewards": [{"type": "digits"}, {"type": "digits"}]}),
                ("rewards[1]] exec needs command", {"rewards": [{"type": "digits"}, {"type": "exec"}]}),
                ("regex needs pattern", {"rewards": [{"type": "regex"}]}),
                ("pattern is a key of regex; the type is exact", {"rewards": [{"type": "exact", "pattern": "a"}]}),
                ("ended at once: it ended with status 7", {"rewards": [{"type": "exec", "command": "exit 7"}]}),
                ("group_size", {"group_size": 4})):
            with self.subTest(message):
                self.refused(message, rl=keys)

    def test_data(self):
        def source(*rows):
            with open(self.path("some.jsonl"), "w", encoding="utf-8") as f:
                f.writelines(json.dumps(row) + "\n" for row in rows)
            return {"sources": [{"path": self.path("some.jsonl")}], "evaluation": []}

        self.refused("data.sources is empty; expected files of prompts", data={"sources": [], "evaluation": []})
        self.refused("has no examples: it is empty", data=source())
        self.refused("has no column prompt", data=source({"question": "r1234="}))
        self.refused("it is a list of messages", data=source({"prompt": [{"role": "user", "content": "r1234="}]}))
        self.refused("has no chat template", data=source({"messages": [{"role": "user", "content": "r1234="}]}))
        self.refused("it is a number; expected a string or a list of messages", data=source({"prompt": 5}))
        self.refused("has no prompt to train on: 1 are longer than 27 tokens", data=source({"prompt": "1" * 60}))
        self.refused("has weight 2", data={"sources": [{"path": self.path("task/train.jsonl"), "weight": 2}]})
        for message, keys in (
                ("unknown name 'promt' in columns; expected one of prompt, messages", {"columns": {"promt": "question"}}),
                ("it has no column question (columns: {prompt: question})", {"columns": {"prompt": "question"}}),
                ("it has no column other (columns: {ground_truth: other})",
                 {"columns": {"ground_truth": "other", "answer": "truth"}, "path": self.path("some.jsonl")}),
                ("has format chat; objective rl reads prompts by columns", {"format": "chat"})):
            source({"prompt": "r12="})
            with self.subTest(message):
                self.refused(message, data=rl_util.only(self.path("task/train.jsonl")) | {
                    "sources": [{"path": self.path("task/train.jsonl"), **keys}]})
        self.refused("has no prompt to train on: 64 are longer than 2 tokens; try a larger train.seq_len, or less "
                     "rl.max_new_tokens", data=rl_util.only(self.path("task/train.jsonl")), rl={"max_new_tokens": 31})
        self.refused("/nope is not there; expected a tokenizer.json, for data.tokenizer", data={"tokenizer": "/nope"})
        self.refused("[/nope] no such file or folder; expected a Hugging Face folder, a checkpoint, a config.json or a hub id; "
                     "rl.reference names it", rl={"kl_coef": 0.1, "reference": "/nope"})
        self.refused("rl.critic.path names it", rl={"advantage": "gae", "critic": {"path": "/nope"}})

    def test_errors_name_the_key_of_the_data(self):
        with open(self.path("none.jsonl"), "w", encoding="utf-8"):
            pass
        self.refused("[data.evaluation: quick] " + self.path("none.jsonl") + " has no examples",
                     data={"evaluation": [{"name": "quick", "path": self.path("none.jsonl")}]})
        self.refused("[data.evaluation: quick] '/nope/*.jsonl' matches no data file",
                     data={"evaluation": [{"name": "quick", "sources": [{"path": "/nope/*.jsonl"}]}]})

    def test_chat_templates(self):
        with open(self.path("chat.jsonl"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"prompt": [{"role": "user", "content": "12="}], "ground_truth": "21"}) + "\n")
        for name, text, message in (
                ("absent.jinja", None, "cannot be opened: No such file or directory; data.chat_template names it, and "
                                       "expects a file with a Jinja template"),
                ("open.jinja", "{% if a %}", "; data.chat_template names it"),
                ("raises.jinja", "{{ raise_exception('no way') }}",
                 "line 1 refuses the messages: no way (chat template of data.chat_template "),
                ("empty.jinja", "", "the chat template of data.chat_template " + self.path("empty.jinja") +
                 " makes no text of it")):
            with self.subTest(name):
                if text is not None:
                    with open(self.path(name), "w", encoding="utf-8") as f:
                        f.write(text)
                self.refused(message, data={**rl_util.only(self.path("chat.jsonl")), "chat_template": self.path(name)})

    def test_lengths(self):
        self.refused("train.minutes gives no length of objective rl", train={"steps": None, "minutes": 1})

    def test_other_commands(self):
        self.refused("objective is rl; try: hocket rl", words=("train",))
        path = self.write_run("sft")
        with open(path, encoding="utf-8") as f:
            run = json.load(f)
        with open(path, "w", encoding="utf-8") as f:
            json.dump({**run, "objective": "sft"}, f)
        self.assertIn("objective is not rl; expected objective: rl, or `hocket train`", self.hocket("rl", path, code=2))


class Names(rl_util.RlTest):
    def test_metrics_of_trl_and_verl(self):
        """Names of both, by their definitions, beside the trajectories of the step."""
        self.write_run("run", rl={"prompts_per_update": 2, "epochs": 2, "overlong": {"buffer": 3, "penalty": 0.5},
                                  "clip_low": 0.01, "clip_high": 0.01}, train={"steps": 8})
        self.rl("run")
        updates, _ = self.metrics("run")
        with open(self.path("run/trajectories/step-000001.jsonl"), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        line, lengths = updates[0], [row["response_length"] for row in rows]
        rewards = [row["reward"] for row in rows]
        scores = [row.get("shaped_reward", row["reward"]) for row in rows]
        ended = [row["response_length"] for row in rows if row["status"] == "completed"]
        wanted = {"reward": statistics.fmean(rewards), "reward_std": statistics.stdev(rewards),
                  "critic/score/mean": statistics.fmean(scores), "critic/rewards/min": min(scores),
                  "response_length/mean": statistics.fmean(lengths), "completions/min_length": min(lengths),
                  "response_length/clip_ratio": statistics.fmean(n == 6 for n in lengths),
                  "completions/clipped_ratio": 1 - len(ended) / len(rows),
                  "completions/max_terminated_length": max(ended, default=0),
                  "num_tokens": sum(len(row["tokens"]) for row in rows),
                  "loss": line["train/loss"], "grad_norm": line["train/grad_norm"], "learning_rate": line["train/lr"],
                  "actor/pg_loss": line["train/loss"], "actor/grad_norm": line["train/grad_norm"], "actor/lr": 0.01,
                  "actor/entropy": line["entropy"], "actor/pg_clipfrac": line["clip_ratio/region_mean"],
                  "actor/ppo_kl": 0, "prompt_length/max": max(len(row["tokens"]) - row["response_length"] for row in rows)}
        for name, value in wanted.items():
            self.assertAlmostEqual(value, line[name], delta=1e-5 * max(1, abs(value)), msg=name)
        # A step has four updates; its tokens are counted once.
        self.assertEqual([line["num_tokens"]] * 4, [update["num_tokens"] for update in updates[:4]])
        with open(self.path("run/trajectories/step-000005.jsonl"), encoding="utf-8") as f:
            more = sum(len(json.loads(row)["tokens"]) for row in f)
        self.assertEqual(line["num_tokens"] + more, updates[4]["num_tokens"])
        for update in updates:
            self.assertAlmostEqual(update["loss"], update["train/loss"], delta=1e-5)
            self.assertLessEqual(update["clip_ratio/low_min"], update["clip_ratio/low_mean"])
            self.assertGreaterEqual(update["clip_ratio/high_max"], update["clip_ratio/high_mean"])
            self.assertAlmostEqual(0.5, update["rl/compared_share"], delta=0.3)
            for name in ("gen", "reward", "old_log_prob", "ref", "update_actor", "step"):
                self.assertGreaterEqual(update["timing_s/" + name], 0)


class Groups(rl_util.RlTest):
    def test_samples_without_a_group(self):
        """The advantage of a sample alone is its reward, as verl has it; a warning says so, and no metric of groups."""
        self.write_run("alone", train={"steps": 1}, rl={"samples_per_prompt": 1, "prompts_per_step": 8})
        said = self.rl("alone")
        self.assertIn("rl.advantage is grpo, and rl.samples_per_prompt 1: a sample alone is compared with no other", said)
        self.assertNotIn("equal groups", said)
        updates, _ = self.metrics("alone")
        self.assertNotIn("frac_reward_zero_std", updates[0])
        self.assertNotIn("rl/reward_std_in_group", updates[0])
        self.assertGreater(updates[0]["reward_std"], 0)
        for row in self.samples("alone"):
            self.assertAlmostEqual(row[5], row[4][0], delta=1e-5)
        self.write_run("groups", train={"steps": 1})
        said = self.rl("groups")
        self.assertNotIn("a sample alone", said)
        self.assertIn("equal groups", said)
        self.assertIn("frac_reward_zero_std", self.metrics("groups")[0][0])

    def test_one_token_alone_is_not_whitened(self):
        rewards = [{"type": "length", "target_length": 1}]
        self.write_run("one", train={"steps": 30}, data={"evaluation": [], "valid_fraction": 0},
                       rl={"advantage": "reinforce_plus_plus", "prompts_per_step": 1, "samples_per_prompt": 1,
                           "max_new_tokens": 2, "rewards": rewards, "overlong": {"filter": True}})
        said = self.rl("one", code=1)
        self.assertIn("reinforce_plus_plus divides by the deviation of advantages over the tokens of a step, and one "
                      "token alone counts in this step; expected 2 or more; try more rl.prompts_per_step", said)
        updates = len(self.metrics("one")[0])
        self.assertGreater(updates, 0)
        self.assertIn(f"step-{updates:06d} is intact", said)


class Critics(rl_util.RlTest):
    def rates(self, name, **critic):
        train = {"steps": 4, "lr": 0.01, "schedule": "linear", "min_lr": 0.002, "warmup_steps": 0}
        rl = {"advantage": "gae", "prompts_per_update": 2, "critic": critic}
        self.write_run(name, train=train, data={"evaluation": [], "valid_fraction": 0}, rl=rl)
        self.rl(name)
        return [line["critic/lr"] for line in self.metrics(name)[0][::2]]

    def expect_rates(self, expected, found):
        self.assertEqual(len(expected), len(found))
        for a, b in zip(expected, found):
            self.assertAlmostEqual(a, b, delta=1e-12)

    def test_learning_rates(self):
        """A step has two updates of the policy and two of the critic, whose last one is shown."""
        self.expect_rates([0.006, 0.002], self.rates("as_the_policy"))
        self.expect_rates([0.0006, 0.0002], self.rates("own_peak", lr=0.001))
        self.expect_rates([0.001, 0.001], self.rates("constant", lr=0.001, schedule="constant"))
        # Four updates that warm up, and then four more down to the end.
        self.expect_rates([0.625e-3, 0.25e-3],
                          self.rates("own_course", lr=0.001, min_lr=0.00025, lr_warmup_steps=4, warmup_steps=2))
        self.expect_rates([0.625e-3, 0.25e-3],
                          self.rates("share", lr=0.001, min_lr=0.00025, lr_warmup_share=0.5, warmup_steps=2))


    def test_groups_of_the_policy_alone(self):
        """Its head has a learning rate of its own; the critic has another head."""
        untied = dict(rl_util.DENSE, tie_word_embeddings=False)
        for name, pattern, code in (("head", "lm_head*", 0), ("neither", "lm_hed*", 2)):
            self.write_run(name, untied, train={"steps": 1}, data={"evaluation": [], "valid_fraction": 0},
                           optimizer={"groups": [{"match": [pattern], "lr_scale": 0.5}]}, rl={"advantage": "gae"})
            said = self.rl(name, code=code)
            if code:
                self.assertIn("'lm_hed*' matches no trained parameter", said)

    def test_one_that_is_not_finite_loses_no_update(self):
        self.write_run("apart", data={"evaluation": [], "valid_fraction": 0},
                       rl={"advantage": "gae", "critic": {"lr": 1e12}, "trajectories": False})
        said = self.rl("apart", code=1)
        updates = len(self.metrics("apart")[0])
        self.assertGreater(updates, 0)
        self.assertIn(f"the critic's update {updates + 1} has loss", said)
        self.assertIn(f"step-{updates:06d} is intact", said)

    def test_loss_is_the_mean_of_the_policy(self):
        """Over the same tokens: all of them, or without those of samples that were cut off."""
        found = {}
        for name, keys in (("mean", {}), ("sum", {"aggregation": "token-sum"}),
                           ("left_out", {"overlong": {"filter": True}})):
            self.write_run(name, train={"steps": 1, "lr": 0.01}, data={"evaluation": [], "valid_fraction": 0},
                           rl={"advantage": "gae", **keys})
            self.rl(name)
            found[name] = self.metrics(name)[0][0]
        self.assertGreater(found["mean"]["completions/clipped_ratio"], 0)
        tokens = 16 * found["mean"]["completions/mean_length"]
        self.assertAlmostEqual(tokens * found["mean"]["critic/vf_loss"], found["sum"]["critic/vf_loss"], delta=1e-4)
        self.assertEqual(found["mean"]["completions/mean_length"], found["left_out"]["completions/mean_length"])
        self.assertGreater(abs(found["mean"]["critic/vf_loss"] - found["left_out"]["critic/vf_loss"]), 1e-6)


if __name__ == "__main__":
    unittest.main()
