#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits and loss of tiny models equal the fixtures that make.py wrote with Hugging Face transformers."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
sys.path.insert(0, os.path.dirname(HERE))
import formula


def read_floats(path):
    """Returns {name: values} of a safetensors file of fp32."""
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    places = {name: tensor["data_offsets"] for name, tensor in header.items()}
    return {name: struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin:8 + length + end])
            for name, (begin, end) in places.items()}


def next_token_loss(logits, ids):
    """Returns the sum over a document's targets."""
    return sum(math.log(sum(math.exp(x) for x in row)) - row[target] for row, target in zip(logits, ids[1:]))


class Logits(unittest.TestCase):
    def test_every_fixture(self):
        folder = os.path.join(HERE, "fixtures")
        names = sorted(os.listdir(folder))
        self.assertGreaterEqual(len(names), 2)
        for name in names:
            with self.subTest(fixture=name), open(os.path.join(folder, name), encoding="utf-8") as f:
                self.compare(json.load(f))

    def compare(self, want):
        with tempfile.TemporaryDirectory() as folder:
            path = lambda name: os.path.join(folder, name)
            for name, value in (("config.json", want["config"]), ("ids.json", want["ids"])):
                with open(path(name), "w", encoding="utf-8") as f:
                    json.dump(value, f)
            formula.write_safetensors(path("model.safetensors"), want["shapes"])
            r = subprocess.run([HOCKET, "eval", folder, "--ids", path("ids.json"), "--dtype", "f64", "--save-logits",
                                path("logits.safetensors")], capture_output=True, text=True, check=False)
            self.assertEqual(0, r.returncode, r.stderr)
            got = read_floats(path("logits.safetensors"))
        loss, targets = 0.0, 0
        for number, (ids, rows) in enumerate(zip(want["ids"], want["logits"])):
            flat, width = got[f"logits.{number}"], len(rows[0])
            self.assertEqual(len(ids) * width, len(flat))
            ours = [flat[i:i + width] for i in range(0, len(flat), width)]
            for ours_row, row in zip(ours, rows):
                for a, b in zip(ours_row, row):
                    self.assertAlmostEqual(a, b, delta=1e-6)
            loss += next_token_loss(ours, ids)
            targets += len(ids) - 1
        self.assertAlmostEqual(want["loss"], loss / targets, delta=1e-6)


if __name__ == "__main__":
    unittest.main()
