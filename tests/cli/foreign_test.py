#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Files that are damaged, edited or of something else are refused by the verbs that execute, or an older checkpoint is
used with a warning. A run never trains on them in silence."""
import json
import os
import shutil
import subprocess
import tempfile
import time
import unittest

from cli_util import HOCKET, Sandbox


class Foreign(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.box = Sandbox(cls.tmp.name)
        cls.box.prepare()
        cls.box.train("--set", "train.save_every=2", "--set", "train.keep_last=0", "--set", "output.report=false")
        cls.box.good("data", "train-tokenizer", "--files", "include/**", "--vocab-size", "600", "--out", "tok2")
        cls.box.good("data", "prepare", "--files", "include/**", "--tokenizer", "tok2", "--valid-fraction", "0.4",
                     "--out", "data2")

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def refused(self, expected, *words, code=2):
        r = self.box.run(*words)
        self.assertEqual(code, r.returncode, r.stdout + r.stderr)
        for text in [expected] if isinstance(expected, str) else expected:
            self.assertIn(text, r.stderr)
        self.assertNotIn("internal error", r.stderr)

    def copy(self, name, checkpoints=(2, 4)):
        """Copies the finished run with some of its checkpoints; returns the arguments that resume it."""
        run = self.box.path(f"runs/{name}")
        shutil.copytree(self.box.path("runs/quickstart"), run)
        for step in {2, 4, 6} - set(checkpoints):
            shutil.rmtree(f"{run}/checkpoints/step-{step:06d}")
        return ["train", "configs/quickstart.yaml", "--set", f"output.dir=runs/{name}", "--set", "output.report=false",
                "--set", "cluster.profile="]

    def edit(self, name, change):
        """Rewrites a JSON file; `change` alters the object."""
        path = self.box.path(name)
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
        change(value)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(value, f)

    def make_old(self, checkpoint):
        def old(run):
            run["hocket_checkpoint"] = 1
            del run["xxh3"]
            run["files"] = {name: file["bytes"] for name, file in run["files"].items()}

        self.edit(checkpoint + "/run.json", old)

    def flip(self, name, at):
        with open(self.box.path(name), "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1]))

    def losses(self, name):
        with open(self.box.path(f"runs/{name}/metrics.jsonl"), encoding="utf-8") as f:
            return [x["train/loss"] for x in map(json.loads, f) if "train/loss" in x]

    # ---- tokenizers -------------------------------------------------------------------------------
    def test_data_of_another_tokenizer(self):
        model = "runs/quickstart/checkpoints/step-000006"
        both = ["[data2] the tokenizer (600 tokens, hash", f"that of the model, {model}/tokenizer.json ("]
        self.refused(both, "eval", "runs/quickstart", "--data", "data2")
        start = ["train", "configs/quickstart.yaml", "--set", f"model.path={model}", "--set", "model.init=weights",
                 "--set", "data.dir=data2", "--set", "output.dir=runs/tuned", "--set", "output.report=false"]
        self.refused(both, *start)
        self.assertFalse(os.path.exists(self.box.path("runs/tuned/profile.json")), "told before anything is timed")
        # A model without its own tokenizer, or a training from random weights, accepts any tokenizer.
        shutil.copytree(self.box.path(model), self.box.path("bare"))
        os.remove(self.box.path("bare/tokenizer.json"))
        os.remove(self.box.path("bare/run.json"))
        self.box.good("eval", "bare", "--data", "data2", "--set", "train.seq_len=32")
        self.box.good(*start, "--set", "model.path=bare", "--set", "train.steps=1", "--set", "output.dir=runs/bare")
        self.box.good(*start, "--set", "model.init=random", "--set", "train.steps=1", "--set", "output.dir=runs/anew")

    def test_generate_with_another_tokenizer(self):
        words = ["generate", "runs/quickstart", "--prompt", "int x", "--max-new-tokens", "5", "--temperature", "0"]
        self.refused(["[tok2] the tokenizer (600 tokens", "leave --tokenizer out"], *words, "--tokenizer", "tok2")
        same = self.box.good(*words)
        # The same content in another spelling.
        self.edit("runs/quickstart/tokenizer/tokenizer.json", lambda t: t.update(truncation=None))
        self.assertEqual(same, self.box.good(*words, "--tokenizer", "runs/quickstart/tokenizer"))

    def test_generate_with_a_tokenizer_of_more_tokens(self):
        """A model without a tokenizer accepts any with at most its number of tokens; a larger one is refused before the
        prompt is printed."""
        model = self.box.path("no_tokenizer")
        shutil.copytree(self.box.path("runs/quickstart/checkpoints/step-000006"), model)
        for name in ("tokenizer.json", "tokenizer_config.json", "run.json"):
            if os.path.exists(f"{model}/{name}"):
                os.remove(f"{model}/{name}")
        shutil.copytree(self.box.path("tok2"), self.box.path("tok_more"))
        with open(f"{model}/config.json", encoding="utf-8") as f:
            tokens = json.load(f)["vocab_size"]
        words = ["generate", model, "--prompt", "int x", "--max-new-tokens", "2", "--tokenizer", "tok_more"]
        for more, code in ((0, 0), (1, 2)):
            def add(tokenizer, last=tokens + more):
                first = len(tokenizer["model"]["vocab"])
                tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] < first] + [
                    {"id": i, "content": f"<{i}>", "single_word": False, "lstrip": False, "rstrip": False,
                     "normalized": False, "special": True} for i in range(first, last)]
            self.edit("tok_more/tokenizer.json", add)
            r = self.box.run(*words)
            self.assertEqual(code, r.returncode, r.stderr)
            self.assertEqual(code == 2, f"has {tokens + 1} tokens; expected at most the model's vocab_size {tokens}" in r.stderr)
            self.assertEqual(code == 2, r.stdout == "")

    # ---- checkpoints ------------------------------------------------------------------------------
    def test_a_flipped_bit_is_not_trained_on(self):
        want = self.losses("quickstart")
        for number, file in enumerate(("model.safetensors", "optimizer.safetensors", "run.json", "tokenizer.json")):
            words = self.copy(f"bit{number}")
            path = f"runs/bit{number}/checkpoints/step-000004/{file}"
            self.flip(path, os.path.getsize(self.box.path(path)) - 9)
            r = self.box.run(*words)
            self.assertEqual(0, r.returncode, r.stderr)
            self.assertIn("step-000004 (", r.stderr)
            self.assertIn(file, r.stderr)
            self.assertIn("using step-000002, which is intact", r.stderr)
            self.assertIn("(step 2)", r.stdout)
            self.assertEqual(want, self.losses(f"bit{number}"))

    def test_eval_and_generate_compare_too(self):
        self.copy("read")
        weights = "runs/read/checkpoints/step-000004/model.safetensors"
        self.flip(weights, os.path.getsize(self.box.path(weights)) - 9)
        r = self.box.run("eval", "runs/read", "--ids", "ids.json")
        self.assertEqual(0, r.returncode, r.stderr)
        self.assertIn("using step-000002, which is intact", r.stderr)
        self.refused("model.safetensors has a wrong checksum", "generate", "runs/read/checkpoints/step-000004",
                     "--max-new-tokens", "1")

    def test_files_of_another_step(self):
        for file in ("model.safetensors", "optimizer.safetensors", "run.json"):
            words = self.copy("swap")
            top = self.box.path("runs/swap/checkpoints/")
            shutil.copy(f"{top}step-000002/{file}", f"{top}step-000004/{file}")
            r = self.box.run(*words)
            self.assertEqual(0, r.returncode, r.stderr)
            self.assertIn("of step", r.stderr)
            self.assertEqual(self.losses("quickstart"), self.losses("swap"))
            shutil.rmtree(self.box.path("runs/swap"))
        words = self.copy("named", (4,))
        os.rename(self.box.path("runs/named/checkpoints/step-000004"),
                  self.box.path("runs/named/checkpoints/step-000400"))
        self.refused("run.json is of step 4; the folder is named after step 400", *words)

    def test_checkpoints_from_before(self):
        words = self.copy("before", (4,))
        self.make_old("runs/before/checkpoints/step-000004")
        r = self.box.run(*words)
        self.assertEqual(0, r.returncode, r.stderr)
        self.assertEqual(1, r.stderr.count("saved without checksums; only lengths were compared"), r.stderr)
        self.assertEqual(self.losses("quickstart"), self.losses("before"))

    def test_edited_files_are_errors(self):
        folder = "runs/edited/checkpoints/step-000004/run.json"
        words = self.copy("edited", (4,))
        self.make_old("runs/edited/checkpoints/step-000004")
        self.edit(folder, lambda run: run["data"].update(time_s="x"))
        self.refused("run.json: data] time_s is 'x'; expected a number", *words)
        self.edit(folder, lambda run: run["data"].update(time_s=1))
        with open(self.box.path("runs/edited/metrics.jsonl"), "a", encoding="utf-8") as f:
            f.write('{"step": "a"}\n')
        self.refused(["metrics.jsonl:", "step is 'a'; expected an integer"], *words)
        self.edit(folder, lambda run: run.update(step=-4))
        self.refused("step is -4; expected 0", *words)
        self.edit(folder, lambda run: run.update(step=10**18))
        self.refused("step is 1000000000000000000; expected 0", *words)
        self.edit(folder, lambda run: run.update(step=4, files={}))
        self.refused("files lacks config.json", *words)

    def test_a_name_that_no_checkpoint_can_take(self):
        words = self.copy("link", (2,))
        os.symlink("nowhere", self.box.path("runs/link/checkpoints/step-000004"))
        before = self.losses("link")
        self.refused("checkpoints/step-000004] is a link to nothing", *words)
        self.assertEqual(before, self.losses("link"))

    def test_the_end_of_text_is_exported(self):
        """An exported folder names the end-of-text token."""
        for file in ("config.json", "generation_config.json"):
            with open(self.box.path("runs/quickstart/checkpoints/step-000006/" + file), encoding="utf-8") as f:
                config = json.load(f)
            self.assertEqual((0, 0), (config["eos_token_id"], config["bos_token_id"]), file)

    # ---- shards -----------------------------------------------------------------------------------
    def test_overwritten_tokens_are_not_trained_on(self):
        shutil.copytree(self.box.path("runs/quickstart/data"), self.box.path("bad"))
        shard = self.box.path("bad/train-00000.bin")
        with open(shard, "r+b") as f:
            f.seek(-6000, os.SEEK_END)
            f.write(b"\1\0" * 3000)
        self.refused("train-00000.bin: the ids are damaged", "train", "configs/quickstart.yaml", "--set", "data.dir=bad",
                     "--set", "output.dir=runs/overwritten")

    def test_a_shard_that_is_cut_off_while_it_is_read(self):
        shutil.copytree(self.box.path("runs/quickstart/data"), self.box.path("cut"))
        words = ["train", "configs/quickstart.yaml", "--set", "data.dir=cut", "--set", "output.dir=runs/cut", "--set",
                 "train.steps=100000", "--set", "train.eval_every=0"]
        p = subprocess.Popen([HOCKET, *words], cwd=self.box.folder, env=self.box.environment(), stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, errors="replace")
        metrics = self.box.path("runs/cut/metrics.jsonl")
        end = time.monotonic() + 120
        while time.monotonic() < end and not (os.path.exists(metrics) and os.path.getsize(metrics) > 500):
            time.sleep(0.05)
        os.truncate(self.box.path("cut/train-00000.bin"), 4096)
        _, err = p.communicate(timeout=120)
        self.assertEqual(1, p.returncode, err)
        self.assertIn("cut/train-00000.bin] was cut off while it was read; got 4096 bytes", err)


if __name__ == "__main__":
    unittest.main()
