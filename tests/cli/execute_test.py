#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600
"""The verbs that execute, on a tiny model: data, train, eval, generate, profile, bench step."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

import cli_util
from cli_util import HOCKET, Sandbox, floats, read_safetensors


@unittest.skipUnless(cli_util.HAS_TORCH, f"no {cli_util.TORCH_LIB}")
class Execute(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.box = Sandbox(cls.tmp.name)
        cls.box.prepare()
        cls.output = cls.box.train()

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def test_train_shows_and_writes(self):
        for word in ("model", "plan", "check", "predicted", "bits/byte"):
            self.assertIn(word, self.output)
        for name in ("metrics.jsonl", "report.html", "trace.json.gz", "checkpoints/step-000006/model.safetensors",
                     "checkpoints/step-000006/config.json", "checkpoints/step-000006/tokenizer.json"):
            self.assertTrue(os.path.exists(self.box.path("runs/quickstart/" + name)), name)

    def test_program_text_trains_the_same(self):
        self.box.good("graph", "configs/quickstart.yaml", "--set", "output.dir=runs/text", "--set", "plan.dp=2",
                      "--set", "plan.micro_batch=2", "--out", "text.txt")
        self.box.good("train", "text.txt")
        self.box.train("--set", "output.dir=runs/yaml", "--set", "plan.dp=2", "--set", "plan.micro_batch=2")
        losses = []
        for run in ("text", "yaml"):
            with open(self.box.path(f"runs/{run}/metrics.jsonl"), encoding="utf-8") as f:
                losses.append([x["train/loss"] for x in map(json.loads, f) if "train/loss" in x])
        self.assertEqual(6, len(losses[0]))
        self.assertEqual(losses[0], losses[1])

    def test_interrupted_training_goes_on(self):
        words = ["configs/quickstart.yaml", "--set", "output.dir=runs/stopped", "--set", "train.steps=4000"]
        p = subprocess.Popen([HOCKET, "train", *words], cwd=self.box.folder, env=self.box.environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace")
        metrics = self.box.path("runs/stopped/metrics.jsonl")
        end = time.monotonic() + 120
        while time.monotonic() < end and not (os.path.exists(metrics) and os.path.getsize(metrics) > 500):
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)
        out, _ = p.communicate(timeout=120)
        self.assertEqual(0, p.returncode, out)
        self.assertIn("the same command goes on", out)
        saved = os.listdir(self.box.path("runs/stopped/checkpoints"))
        self.assertEqual(1, len(saved), saved)
        step = int(saved[0].split("-")[1])
        out = self.box.good("train", *words[:3], "--set", f"train.steps={step + 2}")
        self.assertIn(f"resumed from runs/stopped/checkpoints/{saved[0]}", out)

    def test_eval_held_out(self):
        j = json.loads(self.box.good("eval", "runs/quickstart", "--json"))
        with open(self.box.path("runs/quickstart/metrics.jsonl"), encoding="utf-8") as f:
            last = [x for x in map(json.loads, f) if x.get("eval/complete")][-1]
        self.assertAlmostEqual(last["eval/bits_per_byte"], j["eval/bits_per_byte"], places=6)
        two = json.loads(self.box.good("eval", "runs/quickstart/checkpoints/step-000006", "--data",
                                       "runs/quickstart/data", "--set", "plan.dp=2", "--json"))
        self.assertAlmostEqual(j["eval/loss"], two["eval/loss"], places=5)
        few = json.loads(self.box.good("eval", "runs/quickstart", "--sequences", "3", "--json"))
        self.assertLess(few["targets"], j["targets"])

    def test_eval_ids(self):
        self.box.good("eval", "runs/quickstart", "--ids", "ids.json", "--save-logits", "l.safetensors",
                      "--save-grads", "g.safetensors")
        logits = read_safetensors(self.box.path("l.safetensors"))
        self.assertEqual({"logits.0": [5, 4096], "logits.1": [2, 4096], "logits.2": [3, 4096]},
                         {k: v[1] for k, v in logits.items()})
        self.assertEqual({"F32"}, {v[0] for v in logits.values()})
        grads = read_safetensors(self.box.path("g.safetensors"))
        model = read_safetensors(self.box.path("runs/quickstart/checkpoints/step-000006/model.safetensors"))
        self.assertEqual({k: v[1] for k, v in model.items()}, {k: v[1] for k, v in grads.items()})
        # Other plans, and fp64, give the same.
        for i, more in enumerate((["--set", "plan.dp=2", "--set", "plan.ep=2"], ["--set", "plan.pp=2"],
                                  ["--dtype", "f64"])):
            self.box.good("eval", "runs/quickstart", "--ids", "ids.json", "--save-logits", "l2.safetensors",
                          "--save-grads", "g2.safetensors", *more)
            for mine, path in ((logits, "l2.safetensors"), (grads, "g2.safetensors")):
                other = read_safetensors(self.box.path(path))
                self.assertEqual(set(mine), set(other))
                for name in mine:
                    a, b = floats(mine[name]), floats(other[name])
                    norm = sum(x * x for x in a) ** 0.5
                    self.assertLessEqual(sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5, 1e-4 * norm + 1e-7,
                                         (i, name))
            self.assertEqual({"F64" if i == 2 else "F32"},
                             {v[0] for v in read_safetensors(self.box.path("g2.safetensors")).values()})

    def test_eval_loss_agrees_with_its_logits(self):
        """The gradient program's loss, and the one from the logits, are the same number."""
        a = json.loads(self.box.good("eval", "runs/quickstart", "--ids", "ids.json", "--json"))
        b = json.loads(self.box.good("eval", "runs/quickstart", "--ids", "ids.json", "--save-grads", "x.safetensors",
                                     "--json"))
        self.assertAlmostEqual(a["loss"], b["loss"], places=5)

    def test_eval_bad_input(self):
        def refused(words, text):
            r = self.box.run("eval", "runs/quickstart", *words)
            self.assertEqual(2, r.returncode, r.stderr)
            self.assertIn(text, r.stderr)

        for ids in ("[]", "{}", "[[1, 2], []]", "[[4096]]", "[[-1]]", "[[1.5]]", "[[1"):
            with open(self.box.path("bad.json"), "w", encoding="utf-8") as f:
                f.write(ids)
            refused(["--ids", "bad.json"], "bad.json")
        refused(["--save-logits", "x"], "--ids")
        refused(["--ids", "ids.json", "--data", "runs/quickstart/data"], "one")
        refused(["--ids", "ids.json", "--dtype", "bf16"], "dtype")
        self.assertEqual(2, self.box.run("eval", "runs/quickstart", "--ids", "ids.json", "--save-logits",
                                         "no/such/folder/x.safetensors").returncode)

    def test_generate(self):
        words = ["generate", "runs/quickstart", "--prompt", "template <", "--max-new-tokens", "12"]
        a = self.box.good(*words)
        self.assertTrue(a.startswith("template <"))
        self.assertEqual(a, self.box.good(*words))
        self.assertNotEqual(a, self.box.good(*words, "--seed", "2"))
        j = json.loads(self.box.good(*words, "--json"))
        self.assertEqual("template <", j["prompt"])
        greedy = self.box.good(*words, "--temperature", "0", "--seed", "1")
        self.assertEqual(greedy, self.box.good(*words, "--temperature", "0", "--seed", "9"))
        for bad in (["--temperature", "-1"], ["--top-p", "2"], ["--max-new-tokens", "0"], ["--tokenizer", "none"]):
            self.assertEqual(2, self.box.run(*words[:4], *bad).returncode, bad)
        r = subprocess.run([HOCKET, "generate", "runs/quickstart", "--prompt", "-", "--max-new-tokens", "2"],
                           input="struct", cwd=self.box.folder, env=self.box.environment(), stdout=subprocess.PIPE,
                           text=True, errors="replace", check=True)
        self.assertTrue(r.stdout.startswith("struct"))

    def test_profile_calibrates(self):
        self.box.good("profile", "configs/quickstart.yaml", "--out", "profile.json", "--seconds", "0")
        text = self.box.good("simulate", "configs/quickstart.yaml", "--profile", "profile.json")
        self.assertNotIn("uncalibrated", text)
        self.assertIn("100.0 % of the time from tasks timed", text)

    def test_bench_step_protocol(self):
        p = subprocess.Popen([HOCKET, "bench", "step", "--config", "configs/models/quickstart", "--interactive",
                              "--set", "train.seq_len=64"], cwd=self.box.folder, env=self.box.environment(),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def ask(line):
            p.stdin.write(line + "\n")
            p.stdin.flush()
            return json.loads(p.stdout.readline())

        first = ask("step")
        self.assertGreater(first["ms"], 0)
        self.assertAlmostEqual(8.3, first["loss"], delta=0.5)  # ln 4096
        for _ in range(40):
            last = ask("step")
        self.assertLess(last["loss"], first["loss"])
        memory = ask("memory")
        self.assertGreaterEqual(memory["peak_mib"], memory["idle_mib"])
        self.assertIn("error", ask("dance"))
        p.stdin.write("quit\n")
        p.stdin.flush()
        self.assertEqual(0, p.wait(timeout=60))
        p.stdin.close()
        p.stdout.close()

    def test_data(self):
        stats = json.loads(self.box.good("data", "stats", "runs/quickstart/data", "--verify", "--baselines", "--json"))
        self.assertIn("trigram", json.dumps(stats))
        again = json.loads(self.box.good("data", "prepare", "configs/quickstart.yaml", "--files", "include/**",
                                         "--json"))
        self.assertTrue(again["up_to_date"])
        ids = json.loads(self.box.good("data", "encode", "runs/quickstart/tokenizer", "--in", "include/base_error.h"))
        self.assertGreater(len(ids), 100)
        with open(self.box.path("one.json"), "w", encoding="utf-8") as f:
            json.dump(ids, f)
        with open(self.box.path("include/base_error.h"), encoding="utf-8") as f:
            self.assertEqual(f.read(), self.box.good("data", "decode", "runs/quickstart/tokenizer", "--in", "one.json"))


if __name__ == "__main__":
    unittest.main()
