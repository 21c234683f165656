#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: serial
# ctest: slow, without sanitizers
"""Tests bench/compare_dist.py with sides of known figures."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("HOCKET_SOURCE_DIR") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
TOOL = os.path.join(ROOT, "bench", "compare_dist.py")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import netbox  # noqa: E402

WHY_NOT = netbox.why_not()
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")
PYTHON = os.path.join(ROOT, ".venv", "bin", "python")
HAS_TORCH = (
    subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0
    if os.path.exists(PYTHON)
    else False
)
TINY = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

# A side whose steps take argv[1] ms, argv[2] of them for communication.
SIDE = """
import json, os, sys
assert os.environ["WORLD_SIZE"] == "2"
step, exposed = float(sys.argv[1]), float(sys.argv[2])
if os.environ["RANK"] == "0":
    print("a line of its own")
    print(json.dumps({"step_ms": [step, step + 2, step + 1], "quiet_ms": [step - exposed], "exposed_ms": exposed,
                      "tokens_per_step": 100, "loss": 1.5}))
"""


def call(*words):
    return subprocess.run([sys.executable, TOOL, "--hosts", "2", "--rate", "none", "--sides", "", *words],
                          capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


class CompareDist(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.script = os.path.join(self.folder.name, "side.py")
        with open(self.script, "w") as f:
            f.write(SIDE)

    def side(self, name, *words):
        return ["--side", f"{name}={sys.executable} {self.script} {' '.join(words)}"]

    def test_bad_words(self):
        for words, text in (
            (["--sides", "dpp"], "no side 'dpp'; expected some of ddp"),
            (["--side", "x"], "expected NAME=COMMAND"),
            ([], "at least one side"),
            (["--rate", "fast"], "got the rate 'fast'"),
        ):
            done = call(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)

    @unittest.skipIf(WHY_NOT, f"no cluster in a box here: {WHY_NOT}")
    def test_compares_step_and_exposed_communication(self):
        out = os.path.join(self.folder.name, "out.json")
        done = call(
            *self.side("ours", "99", "30"),
            *self.side("other", "199", "60"),
            "--rounds",
            "2",
            "--json",
            out,
            "--results",
            self.folder.name,
            "--label",
            "known",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(
            "ours over other: 2.000 (2.000 to 2.000) times as fast; exposed communication 0.500 (0.500 to 0.500)",
            done.stdout,
        )
        order = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("round")]
        self.assertEqual(order, ["ours", "other", "other", "ours"])
        with open(out) as f:
            found = json.load(f)
        self.assertEqual([run["median_ms"] for run in found["sides"]["ours"]], [100, 100])
        with open(os.path.join(self.folder.name, "compare_dist.md")) as f:
            self.assertIn("| ours | 100.0 | 69.0 | 30.0 | 2 | known |", f.read())

    @unittest.skipIf(WHY_NOT, f"no cluster in a box here: {WHY_NOT}")
    @unittest.skipUnless(HAS_TORCH, "no PyTorch in .venv (tools/setup.sh --tests)")
    def test_the_sides_of_pytorch_learn_the_same(self):
        out, config = os.path.join(self.folder.name, "out.json"), os.path.join(self.folder.name, "config.json")
        with open(config, "w") as f:
            json.dump(TINY, f)
        sides = "ddp,ddp-best,fsdp2,fsdp2-best,fsdp2-keep" if LONG else "ddp,fsdp2"
        done = call(
            "--sides",
            sides,
            "--config",
            config,
            "--seq",
            "64",
            "--blocks",
            "2",
            "--peer-args",
            "--gemm mkl",
            "--rounds",
            "1",
            "--json",
            out,
            "--no-row",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out) as f:
            found = json.load(f)["sides"]
        first = found["ddp"][0]
        self.assertEqual((first["world"], first["tokens_per_step"], len(first["quiet_ms"])), (2, 128, 2))
        for name in sides.split(","):
            self.assertAlmostEqual(found[name][0]["loss"], first["loss"], delta=1e-4, msg=name)
        # With 2 ranks, a step of plain data parallelism sends every gradient once; 3 + 2 * 2 real steps.
        gradients = 4 * first["parameters"]
        self.assertAlmostEqual(found["ddp"][0]["out_bytes"][1] / (7 * gradients), 1, delta=0.25)

    @unittest.skipIf(WHY_NOT, f"no cluster in a box here: {WHY_NOT}")
    def test_says_what_a_side_did_wrong(self):
        done = call("--side", "a=sh -c 'echo about; exit 3'")
        self.assertEqual(done.returncode, 1)
        self.assertIn("a: rank 0 ended with 3:\nabout", done.stderr)
        done = call("--side", "a=echo nothing")
        self.assertIn("a: rank 0 printed no JSON object with step_ms, quiet_ms", done.stderr)
        done = call("--side", "a=sleep 60", "--timeout", "1")
        self.assertIn("a was not done in 1 s; --timeout gives it more", done.stderr)


if __name__ == "__main__":
    unittest.main()
