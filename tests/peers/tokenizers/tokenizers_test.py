#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ids and decoded texts of small tokenizers of every kind are those of fixtures/tokenizers.json, which make.py wrote with
Hugging Face tokenizers."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", HERE.parents[2] / "build"), "hocket")


def lines(verb, tokenizer, values, *options):
    """Results of `hocket data encode|decode --lines` for the values."""
    done = subprocess.run([HOCKET, "data", verb, tokenizer, "--lines", *options], check=False, capture_output=True, text=True,
                          input="".join(json.dumps(value) + "\n" for value in values))
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.rstrip("\n").split("\n")]


class Tokenizers(unittest.TestCase):
    def test_every_kind(self):
        with open(HERE / "fixtures/tokenizers.json", encoding="utf-8") as f:
            held = json.load(f)
        self.assertGreater(len(held["tokenizers"]), 10)
        for name, want in held["tokenizers"].items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "tokenizer.json")
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(want["tokenizer"], f)
                for text, got, ids in zip(held["texts"], lines("encode", path, held["texts"]), want["ids"]):
                    self.assertEqual(got, ids, repr(text))
                special = lines("encode", path, held["texts"][:len(want["with_special"])], "--add-special-tokens")
                self.assertEqual(special, want["with_special"])
                self.assertEqual(lines("decode", path, want["ids"]), want["decoded"])


if __name__ == "__main__":
    unittest.main()
