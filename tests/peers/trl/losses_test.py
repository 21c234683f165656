#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=1800
"""Losses and metrics of 20 steps are those of TRL's SFTTrainer (packed chats, masks of the assistant's turns), DPOTrainer and
KTOTrainer, as make_losses.py wrote them, of whole models and of adapters, on one rank and under plans.

Without HOCKET_LONG=1 the sums of an objective are compared under one plan a case."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import cases
import losses

sys.path[:0] = [str(cases.HERE.parent)]
import formula  # noqa: E402

TOLERANCE = 1e-4
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")
QUICK = ("sft llama", "sft qwen3_moe lora", "dpo llama ipo", "kto llama")
ONE = {"one rank": {}, "one rank, f32": {"model.dtype": "f32"}}
TWO = {"plan.micro_batch": "half"}
PLANS = {"llama": {**ONE, "dp 2, tp 2": {"plan.dp": 2, "plan.tp": 2, **TWO}, "pp 2": {"plan.pp": 2}},
         "qwen3_moe": {**ONE, "dp 2, ep 2": {"plan.dp": 2, "plan.ep": 2, **TWO}, "pp 2": {"plan.pp": 2}}}


class Losses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(cases.HERE / "fixtures/losses.json", encoding="utf-8") as f:
            cls.held = json.load(f)

    def train(self, run, plan, rows, out):
        words = [f"{key}={rows // 2 if value == 'half' else value}" for key, value in plan.items()] + [f"output.dir={out}"]
        done = subprocess.run([cases.HOCKET, "train", run, *(w for word in words for w in ("--set", word))],
                              capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr[-1500:])
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            return [row for row in map(json.loads, f) if "train/loss" in row]

    def compare(self, case, top):
        objective, model, lora, _ = losses.CASES[case]
        held = self.held[case]
        folders = {"base": ("model.safetensors", "config", "shapes")}
        if lora:
            folders["adapter"] = ("adapter_model.safetensors", "adapter_config", "adapter_shapes")
        for folder, (name, config, shapes) in folders.items():
            os.mkdir(os.path.join(top, folder))
            with open(os.path.join(top, folder, config + ".json"), "w", encoding="utf-8") as f:
                json.dump(held[config], f)
            formula.write_safetensors(os.path.join(top, folder, name), held[shapes])
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(cases.HERE / "fixtures/bytes" / name, os.path.join(top, "base"))
        data, run = os.path.join(top, "examples.jsonl"), os.path.join(top, "run.yaml")
        losses.write_examples(data, objective)
        with open(run, "w", encoding="utf-8") as f:
            f.write(losses.run_of(case, top, os.path.join(top, "base"), data, held["rows"],
                                  os.path.join(top, "adapter") if lora else None))
        plans = PLANS[model]
        if not LONG:
            number = list(losses.CASES).index(case)
            plans = dict([list(plans.items())[1 + number % (len(plans) - 1)]])
        for label, plan in plans.items():
            with self.subTest(case=case, plan=label):
                got = self.train(run, plan, held["rows"], os.path.join(top, label.replace(" ", "-")))
                self.assertEqual(losses.STEPS + 1, len(got))
                worst = 0.0
                for number, (ours, theirs) in enumerate(zip(got, held["steps"]), 1):
                    for key, value in theirs.items():
                        if key == "rewards/accuracies" and abs(theirs["rewards/margins"]) < 1e-9:
                            continue  # rounding decides between equals
                        error = abs(ours["train/loss" if key == "loss" else key] - value) / max(1, abs(value))
                        worst = max(worst, error)
                        self.assertLess(error, TOLERANCE, f"step {number}, {key}: {ours} against {theirs}")
                self.assertGreater(abs(got[-1]["train/loss"] - got[0]["train/loss"]), 100 * TOLERANCE)
                print(f"{case:24} {label:14} {held['steps'][0]['loss']:8.4f} to {held['steps'][-1]['loss']:8.4f}, worst {worst:.1e}",
                      flush=True)

    def test_every_case(self):
        self.assertEqual(set(losses.CASES), set(self.held) - {"made_with"})
        for case in losses.CASES if LONG else QUICK:
            with tempfile.TemporaryDirectory() as top:
                self.compare(case, top)


if __name__ == "__main__":
    unittest.main()
