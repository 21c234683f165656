#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Logits of models with PEFT's adapters, merged models and losses of training equal the fixtures that make.py wrote."""
import json
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
sys.path[:0] = [os.path.dirname(HERE), HERE]
import formula
import runs

PLANS = {"one rank": (), "dp 2, tp 2": ("plan.dp=2", "plan.tp=2", "plan.micro_batch=1"), "pp 2": ("plan.pp=2", "plan.micro_batch=1")}
EXPERT_PLANS = {"one rank": (), "ep 2": ("plan.dp=2", "plan.ep=2", "plan.micro_batch=1")}


class Adapters(unittest.TestCase):
    def test_every_fixture(self):
        folder = os.path.join(HERE, "fixtures")
        names = sorted(os.listdir(folder))
        self.assertGreaterEqual(len(names), 3)
        for name in names:
            with self.subTest(fixture=name), open(os.path.join(folder, name), encoding="utf-8") as f, \
                    tempfile.TemporaryDirectory() as top:
                self.compare(json.load(f), top)

    def expect_logits(self, want, got):
        for rows, flat in zip(want, got):
            self.assertEqual(sum(map(len, rows)), len(flat))
            for a, b in zip(sum(rows, []), flat):
                self.assertAlmostEqual(a, b, delta=1e-5)

    def compare(self, want, top):
        base, adapter = os.path.join(top, "base"), os.path.join(top, "adapter")
        for folder, name, config, shapes in ((base, "model.safetensors", "config", "shapes"),
                                             (adapter, "adapter_model.safetensors", "adapter_config", "adapter_shapes")):
            os.mkdir(folder)
            with open(os.path.join(folder, config + ".json"), "w", encoding="utf-8") as f:
                json.dump(want[config], f)
            formula.write_safetensors(os.path.join(folder, name), want[shapes])
        self.expect_logits(want["logits"], runs.logits(HOCKET, base, "--adapter", adapter))
        runs.write_texts(os.path.join(top, "text"))
        plans = EXPERT_PLANS if want["adapter_config"]["target_parameters"] else PLANS
        for label, keys in plans.items():
            out = os.path.join(top, label.replace(" ", "-").replace(",", ""))
            run = runs.write_run(top, "run.yaml", base, out, adapter)
            if not os.path.exists(os.path.join(top, "data")):
                runs.hocket(HOCKET, "data", "train-tokenizer", run)
                runs.hocket(HOCKET, "data", "prepare", run)
            runs.hocket(HOCKET, "train", run, *(word for key in keys for word in ("--set", key)))
            got = runs.losses(out)
            self.assertEqual(len(want["losses"]), len(got), label)
            for a, b in zip(want["losses"], got):
                self.assertAlmostEqual(a, b, delta=1e-4 * a, msg=label)
        self.expect_same_files(want, runs.last_checkpoint(out))
        merged = os.path.join(top, "merged")
        step = runs.last_checkpoint(out)
        runs.hocket(HOCKET, "checkpoint", "merge", step, "--out", merged)
        for one, other in zip(runs.logits(HOCKET, step), runs.logits(HOCKET, merged)):
            for a, b in zip(one, other):
                self.assertAlmostEqual(a, b, delta=1e-5)

    def expect_same_files(self, want, step):
        """Files of ours have the names, shapes and keys of PEFT's."""
        tensors = runs.read_tensors(os.path.join(step, "adapter_model.safetensors"))
        self.assertEqual(want["adapter_shapes"], {name: shape for name, (_, shape, _) in tensors.items()})
        with open(os.path.join(step, "adapter_config.json"), encoding="utf-8") as f:
            config = json.load(f)
        for key in ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "target_parameters",
                    "peft_type", "task_type", "bias", "use_dora", "fan_in_fan_out", "layers_to_transform"):
            self.assertEqual(want["adapter_config"][key], config[key], key)
        self.assertEqual(set(want["adapter_config"]["target_modules"]), set(config["target_modules"]))


if __name__ == "__main__":
    unittest.main()
