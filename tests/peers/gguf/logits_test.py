#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits of the tiny GGUF models are those of the fixtures, which make.py wrote with Hugging Face transformers; a model
written as GGUF and as a folder, and read again, still has them."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
FIXTURES = os.path.join(HERE, "fixtures")


def read_floats(path):
    """{name: values} of a safetensors file of fp32."""
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    places = {name: tensor["data_offsets"] for name, tensor in header.items()}
    return {name: struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin:8 + length + end])
            for name, (begin, end) in places.items()}


class Logits(unittest.TestCase):
    def compare(self, model, want, folder):
        ids, out = os.path.join(folder, "ids.json"), os.path.join(folder, "logits.safetensors")
        with open(ids, "w", encoding="utf-8") as f:
            json.dump(want["ids"], f)
        done = subprocess.run([HOCKET, "eval", model, "--ids", ids, "--save-logits", out], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        got = read_floats(out)
        for i, rows in enumerate(want["logits"]):
            flat = [x for row in rows for x in row]
            largest = max(map(abs, flat))
            self.assertEqual(len(flat), len(got[f"logits.{i}"]))
            worst = max(abs(a - b) for a, b in zip(flat, got[f"logits.{i}"]))
            self.assertLessEqual(worst, 1e-5 * largest, f"{model}, list {i}")

    def test_every_model(self):
        names = sorted(name[:-5] for name in os.listdir(FIXTURES) if name.endswith(".gguf") and name != "every_type.gguf")
        self.assertGreaterEqual(len(names), 2)
        for name in names:
            with self.subTest(model=name), tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(FIXTURES, name + ".json"), encoding="utf-8") as f:
                    self.compare(os.path.join(FIXTURES, name + ".gguf"), json.load(f), folder)


if __name__ == "__main__":
    sys.exit(unittest.main())
