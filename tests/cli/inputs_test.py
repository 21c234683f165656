#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""A command's output never replaces its inputs or files of other programs, nor a good checkpoint by broken weights."""
import os
import shutil
import tempfile
import unittest

from cli_util import Sandbox


class Inputs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.box = Sandbox(cls.tmp.name)
        cls.box.prepare()
        cls.box.train("--set", "output.report=false")
        cls.model = "foreign"
        shutil.copytree(cls.box.path("runs/quickstart/checkpoints/step-000006"), cls.box.path(cls.model))
        os.remove(cls.box.path("foreign/run.json"))

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def stays(self, path, expected, *words, code=2):
        """Asserts that the command is refused with these words, and that the file is unchanged."""
        with open(self.box.path(path), "rb") as f:
            before = f.read()
        r = self.box.run(*words)
        self.assertEqual(code, r.returncode, r.stdout + r.stderr)
        self.assertIn(expected, r.stderr)
        with open(self.box.path(path), "rb") as f:
            self.assertEqual(before, f.read())

    def test_tokenizers_of_others(self):
        files = ["--files", "include/**"]
        self.stays("foreign/tokenizer.json", "was not trained here", "data", "train-tokenizer", *files,
                   "--vocab-size", "600", "--out", "foreign")
        self.stays("foreign/tokenizer.json", "was not prepared here", "data", "prepare", *files,
                   "--tokenizer", "runs/quickstart/tokenizer", "--out", "foreign")
        # Each command may replace its own earlier output.
        for size in ("500", "600"):
            self.box.good("data", "train-tokenizer", *files, "--vocab-size", size, "--out", "own")
            self.box.good("data", "prepare", *files, "--tokenizer", "own", "--valid-fraction", "0.4", "--out", "data3")

    def test_an_index_of_others(self):
        os.mkdir(self.box.path("site"))
        with open(self.box.path("site/index.json"), "w", encoding="utf-8") as f:
            f.write('{"pages": []}')
        self.stays("site/index.json", "was not prepared here", "data", "prepare", "--files", "include/**",
                   "--tokenizer", "runs/quickstart/tokenizer", "--out", "site")

    def test_outputs_that_are_inputs(self):
        with open(self.box.path("ids.json"), "w", encoding="utf-8") as f:
            f.write("[[1, 2, 3]]")
        weights = "foreign/model.safetensors"
        run = "configs/quickstart.yaml"
        eval_ids = ["eval", "foreign", "--ids", "ids.json"]
        self.stays(weights, "is an input", *eval_ids, "--save-logits", weights)
        self.stays(weights, "is an input", *eval_ids, "--save-grads", weights)
        self.stays("ids.json", "is an input", *eval_ids, "--save-logits", "ids.json")
        self.stays(weights, "expected two files", *eval_ids, "--save-logits", "both.st", "--save-grads", "both.st")
        self.stays(run, "is an input", "profile", run, "--out", run)
        self.stays(run, "is an input", "graph", run, "--out", run)
        self.stays(run, "is an input", "simulate", run, "--trace", run)
        os.symlink("quickstart.yaml", self.box.path("configs/link.yaml"))
        self.stays(run, "is an input", "graph", run, "--out", "configs/link.yaml")
        self.stays("ids.json", "is an input", "data", "encode", "foreign", "--in", "ids.json", "--out", "ids.json")

    def test_weights_that_a_step_destroyed(self):
        words = ["train", "configs/quickstart.yaml", "--set", "output.dir=runs/far", "--set", "output.report=false",
                 "--set", "train.keep_last=1", "--set", "train.save_every=0"]
        self.box.good(*words, "--set", "train.steps=2")
        self.stays("runs/far/checkpoints/step-000002/model.safetensors", "that are not finite; it is not saved",
                   *words, "--set", "train.steps=3", "--set", "train.lr=1e300", "--set", "train.min_lr=1e300", code=1)
        self.assertEqual(["step-000002"], os.listdir(self.box.path("runs/far/checkpoints")))


if __name__ == "__main__":
    unittest.main()
