#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=1800
"""Ids and decoded texts of vocabularies of real models, on a few MB of text and 100,000 random strings, have the hashes that
make.py wrote with Hugging Face tokenizers, and those of GGUF files the hashes of llama.cpp's ids."""
import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"), "hocket")
REAL = ROOT / ".venv-peers/tokenizers/real"


def hashes(lists, chunk):
    return [hashlib.sha256(json.dumps(lists[i:i + chunk]).encode()).hexdigest()[:16] for i in range(0, len(lists), chunk)]


class Real(unittest.TestCase):
    def run_lines(self, verb, tokenizer, source, target):
        done = subprocess.run([HOCKET, "data", verb, tokenizer, "--lines", "--in", source, "--out", target], check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(target, encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def test_every_vocabulary(self):
        if not (REAL / "expected.json").is_file():
            self.skipTest("no vocabularies in .venv-peers/tokenizers/real; try ./test peers tokenizers")
        with open(REAL / "expected.json", encoding="utf-8") as f:
            expected = json.load(f)
        with open(REAL / "texts.jsonl", encoding="utf-8") as f:
            texts = f.readlines()
        for name, want in expected["files"].items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                source, ids, back = (os.path.join(folder, each) for each in ("texts", "ids", "back"))
                with open(source, "w", encoding="utf-8") as f:
                    f.writelines(text for i, text in enumerate(texts[:want["texts"]]) if i not in want.get("left_out", []))
                got = self.run_lines("encode", REAL / name, source, ids)
                self.check("ids", hashes(got, expected["chunk"]), want["ids"])
                if "decoded" in want:
                    self.check("texts", hashes(self.run_lines("decode", REAL / name, ids, back), expected["chunk"]),
                               want["decoded"])
                print(f"{name}: {len(got)} texts, {sum(map(len, got))} ids equal")

    def check(self, what, got, want):
        wrong = [i for i, (a, b) in enumerate(zip(got, want)) if a != b]
        self.assertEqual(len(got), len(want))
        self.assertEqual([], wrong, f"other {what} in these chunks of texts")


if __name__ == "__main__":
    unittest.main()
