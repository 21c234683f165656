#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Learning rates of every step against transformers' schedulers, lengths of a training, the best checkpoint and early
stopping with a kill in between, TensorBoard's event files, and groups."""
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import time
import unittest

from reference_util import DENSE, Folder, cli_util
from torch import nn, optim

LR, STEPS, WARMUP = 0.02, 12, 3
SMALL = dict(DENSE, num_hidden_layers=1)


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) % 2**32


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    """Yields number and value of every field of a message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            size = {1: 8, 5: 4}[kind]
            value, at = struct.unpack("<d" if kind == 1 else "<f", data[at:at + size])[0], at + size
        yield key >> 3, value


def events(path):
    """Returns the events of a file as dictionaries of their fields, after comparing all checksums."""
    with open(path, "rb") as f:
        data = f.read()
    found = []
    while data:
        size, = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked(data[:8]), path
        event = data[12:12 + size]
        assert len(event) == size and struct.unpack("<I", data[12 + size:16 + size])[0] == masked(event), path
        found.append(dict(fields(event)))
        data = data[16 + size:]
    return found


def scalars(event):
    return {value[1].decode(): value[2] for value in (dict(fields(v)) for n, v in fields(event[5]) if n == 1)}


class Training(Folder):
    def run_of(self, name, train, **sections):
        with open(self.path("config.json"), "w", encoding="utf-8") as f:
            json.dump(SMALL, f)
        run = self.path(name + ".yaml")
        output = {"dir": self.path(name), "report": False, "trace": False, "baselines": "none", "sample_tokens": 0}
        with open(run, "w", encoding="utf-8") as f:
            json.dump({"model": {"path": self.path("config.json")}, "data": {"dir": self.path("data")},
                       "train": {"seq_len": 16, "global_batch": 2, "lr": LR, "min_lr": 0, "save_minutes": 0, **train},
                       "plan": {"micro_batch": 2, "threads_per_rank": 1}, "output": {**output, **sections.pop("output", {})},
                       **sections}, f)
        return run

    @staticmethod
    def lines_of(path):
        with open(path, encoding="utf-8") as f:
            return f.readlines()

    def lines(self, name):
        return [json.loads(line) for line in self.lines_of(self.path(name + "/metrics.jsonl"))]

    def rates(self, name, **train):
        self.hocket("train", self.run_of(name, {"steps": STEPS, **train}))
        return [line["train/lr"] for line in self.lines(name) if "train/lr" in line]

    def test_schedules_of_transformers(self):
        from transformers import get_scheduler
        floor = LR / 4
        for name, train, want in (
                ("constant", {"schedule": "constant"}, ("constant_with_warmup", {})),
                ("linear", {"schedule": "linear"}, ("linear", {})),
                ("linear to a floor", {"schedule": "linear", "min_lr": floor}, ("polynomial", {"lr_end": floor, "power": 1})),
                ("cosine", {}, ("cosine", {})),
                ("cosine to a floor", {"min_lr": floor}, ("cosine_with_min_lr", {"min_lr": floor})),
                ("wsd", {"schedule": "wsd", "decay_share": 1 / 3}, ("warmup_stable_decay", {"decay_type": "linear"})),
                ("wsd cosine", {"schedule": "wsd", "decay_share": 1 / 3, "decay": "cosine", "min_lr": floor},
                 ("warmup_stable_decay", {"decay_type": "cosine", "min_lr_ratio": floor / LR})),
                ("wsd sqrt", {"schedule": "wsd", "decay_share": 1 / 3, "decay": "1-sqrt"},
                 ("warmup_stable_decay", {"decay_type": "1-sqrt"}))):
            kind, more = want
            if kind == "warmup_stable_decay":
                more = {**more, "num_decay_steps": 4}
            optimizer = optim.SGD([nn.Parameter(nn.Linear(1, 1).weight)], lr=LR)
            scheduler = get_scheduler(kind, optimizer, num_warmup_steps=WARMUP, num_training_steps=STEPS,
                                      scheduler_specific_kwargs=more)
            expected = []
            for _ in range(STEPS):
                optimizer.step()
                scheduler.step()
                expected.append(scheduler.get_last_lr()[0])
            got = self.rates(name.replace(" ", "-"), warmup_share=WARMUP / STEPS, **train)
            self.assertEqual(len(got), STEPS)
            for step, (one, other) in enumerate(zip(got, expected)):
                if step + 1 < WARMUP and "min_lr_ratio" in more:
                    continue  # its warm-up begins at the floor
                self.assertAlmostEqual(one, other, delta=1e-12, msg=f"{name} step {step + 1}")

    def test_length_by_tokens_and_epochs(self):
        self.assertEqual(len(self.rates("tokens", steps=None, tokens=5 * 32 - 1)), 5)
        one = len(self.rates("epoch", steps=None, epochs=1))
        three = len(self.rates("epochs", steps=None, epochs=3))
        self.assertGreater(one, 2)
        self.assertTrue(3 * one - 3 < three <= 3 * one, (one, three))
        told = self.hocket("train", self.path("epochs.yaml"))
        self.assertIn("raise train.epochs", told)
        whole = self.run_of("whole-epoch", {"steps": None, "epochs": 1, "global_batch": 2 * 2 * one})
        self.assertRegex(self.hocket("train", whole), r"a step of train.global_batch \d+ reads the data 2.\d times: an epoch has")

    def held_out(self):
        """Prepares data with held-out files, once."""
        if not os.path.exists(self.path("held")):
            with open(self.path("held.yaml"), "w", encoding="utf-8") as f:
                json.dump({"model": {"config": DENSE},
                           "data": {"files": [self.path("text/*")], "dir": self.path("held"), "vocab_size": 300,
                                    "tokenizer": self.path("tokenizer"), "valid_fraction": 0.2}}, f)
            self.hocket("data", "prepare", self.path("held.yaml"))
        return {"dir": self.path("held")}

    def test_best_checkpoint_and_early_stopping(self):
        # A learning rate that diverges after a while: the held-out loss falls, then rises.
        train = {"steps": 60, "lr": 0.02, "schedule": "constant", "warmup_steps": 20, "eval_every": 2, "eval_sequences": 8,
                 "keep_best": True, "keep_last": 1, "early_stopping": {"patience": 4}, "save_every": 3}
        whole = self.run_of("whole", train, data=self.held_out())
        ran = subprocess.run([cli_util.HOCKET, "train", whole], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        told = ran.stdout + ran.stderr
        evaluations = {line["step"]: line["eval/loss"] for line in self.lines("whole") if not line.get("eval/final", True)}
        best = min(evaluations, key=lambda step: evaluations[step])
        last = max(line["step"] for line in self.lines("whole"))
        self.assertLess(last, 60, "it never rose")
        self.assertEqual(last, best + 2 * 4)
        with open(self.path("whole/best.json"), encoding="utf-8") as f:
            named = json.load(f)
        self.assertEqual((named["step"], named["eval/loss"]), (best, evaluations[best]))
        self.assertEqual(sorted(os.listdir(self.path("whole/checkpoints"))), [f"step-{best:06}", f"step-{last:06}"])
        self.assertTrue(os.path.exists(os.path.join(named["checkpoint"], "model.safetensors")))
        self.assertIn(f"best: step {best}, held-out loss", told)
        self.assertIn("no lower held-out loss in 4 evaluations", told)
        self.assertIn("raise train.early_stopping.patience", self.hocket("train", whole))

        # The same with kills in between.
        killed = self.run_of("killed", train, data=self.held_out())
        metrics = self.path("killed/metrics.jsonl")
        for lines in (6, 19, 31):
            with subprocess.Popen([cli_util.HOCKET, "train", killed], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as process:
                while process.poll() is None:
                    if os.path.exists(metrics) and len(self.lines_of(metrics)) >= lines:
                        process.send_signal(signal.SIGKILL)
                        process.wait()
                    time.sleep(0.002)
        self.hocket("train", killed)
        with open(self.path("killed/best.json"), encoding="utf-8") as f:
            again = json.load(f)
        self.assertEqual((again["step"], again["eval/loss"]), (named["step"], named["eval/loss"]))
        self.assertEqual(max(line["step"] for line in self.lines("killed")), last)
        self.assertEqual(sorted(os.listdir(self.path("killed/checkpoints"))), [f"step-{best:06}", f"step-{last:06}"])

        # More patience goes on.
        more = self.run_of("killed", {**train, "steps": last + 1, "early_stopping": {"patience": 9}}, data=self.held_out())
        self.hocket("train", more)
        self.assertEqual(max(line["step"] for line in self.lines("killed")), last + 1)

    def test_named_evaluation_sets(self):
        # The quickest to fit is not the one that decides.
        data = {"dir": self.path("data"), "evaluation": [{"name": "one", "path": self.held_out()["dir"]},
                                                         {"name": "two", "path": self.path("data")}]}
        train = {"steps": 6, "eval_every": 2, "eval_sequences": 3, "keep_best": True, "best_by": "two"}
        told = self.hocket("train", self.run_of("sets", train, data=data, output={"tensorboard": True}))
        lines = [line for line in self.lines("sets") if "eval/two/loss" in line]
        self.assertEqual([line["step"] for line in lines], [2, 4, 6, 6])
        for line in lines:
            self.assertNotIn("eval/loss", line)
            self.assertNotEqual(line["eval/one/loss"], line["eval/two/loss"])
            self.assertGreater(line["eval/one/bits_per_byte"], 0)
        best = min(lines[:3], key=lambda line: line["eval/two/loss"])
        with open(self.path("sets/best.json"), encoding="utf-8") as f:
            named = json.load(f)
        self.assertEqual((named["step"], named["eval/two/loss"]), (best["step"], best["eval/two/loss"]))
        self.assertIn("by the loss of two", told)
        # A set alone is the same as beside another; the data's own part comes first.
        alone = {**self.held_out(), "evaluation": data["evaluation"][:1]}
        self.hocket("train", self.run_of("beside", {**train, "best_by": ""}, data=alone))
        for line in self.lines("beside"):
            if "eval/loss" in line:
                self.assertEqual(line["eval/loss"], line["eval/one/loss"])
        for wrong, why in (({"name": "x y", "path": "p"}, "letters"), ({"name": "a"}, "neither path nor sources"),
                           ({"name": "valid", "path": "p"}, "not train or valid"),
                           ({"name": "a", "sources": [{"path": "p"}]}, "objective is pretrain")):
            run = self.run_of("wrong", train, data={**self.held_out(), "evaluation": [wrong]})
            r = subprocess.run([cli_util.HOCKET, "train", run, "--set", "train.best_by="], capture_output=True, text=True)
            self.assertEqual(r.returncode, 2)
            self.assertIn(why, r.stderr)

    def test_other_held_out_sequences_begin_anew(self):
        """Their losses do not compare with those before, also under the name, or the path, that they had."""
        shutil.copytree(self.held_out()["dir"], self.path("set"))
        train = {"lr": 1e-9, "eval_every": 1, "eval_sequences": 3, "keep_best": True}
        anew, steps = "the best and the patience begin anew", 0

        def told(path, **more):
            nonlocal steps
            steps += 2
            data = {"dir": self.path("data"), "evaluation": [{"name": "b", "path": path}]}
            out = self.hocket("train", self.run_of("anew", {**train, "steps": steps, **more}, data=data))
            with open(self.path("anew/best.json"), encoding="utf-8") as f:
                return out, json.load(f)["step"] > steps - 2

        self.assertNotIn(anew, told(self.path("set"))[0])
        shutil.copytree(self.path("set"), self.path("moved"))
        self.assertNotIn(anew, told(self.path("moved"))[0])
        for path, more in ((self.path("data"), {}), (self.path("data"), {"eval_sequences": 1}), (self.path("set"), {})):
            out, is_new = told(path, **more)
            self.assertIn(f"evaluations before step {steps - 1} were of other held-out sequences: {anew}", out)
            self.assertTrue(is_new, (path, more))
        shutil.rmtree(self.path("set"))
        shutil.copytree(self.path("data"), self.path("set"))
        out, is_new = told(self.path("set"))
        self.assertIn(anew, out)
        self.assertTrue(is_new)
        # Without a decision that goes by them nothing is said.
        self.assertNotIn(anew, told(self.path("moved"), keep_best=False)[0])

    def test_a_former_best_that_may_be_removed_is_not_named(self):
        data = {"dir": self.path("data"), "evaluation": [{"name": "b", "path": self.held_out()["dir"]}]}
        train = {"lr": 1e-9, "eval_every": 1, "eval_sequences": 3, "keep_best": True, "keep_last": 1, "save_every": 1}
        named, metrics = self.path("former/best.json"), self.path("former/metrics.jsonl")
        self.hocket("train", self.run_of("former", {**train, "steps": 2}, data=data))
        self.assertTrue(os.path.exists(named))
        before = len(self.lines_of(metrics))
        # Other rows: the best is looked for anew, and is not found before the kill.
        other = self.run_of("former", {**train, "steps": 100000, "eval_every": 100000, "eval_sequences": 1}, data=data)
        with subprocess.Popen([cli_util.HOCKET, "train", other], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as process:
            while len(self.lines_of(metrics)) < before + 3:
                self.assertIsNone(process.poll(), process.poll() is not None and process.stderr.read())
                time.sleep(0.002)
            process.kill()
        self.assertFalse(os.path.exists(named))

    def test_a_run_has_a_tokenizer(self):
        self.hocket("train", self.run_of("run", {"steps": 1}))
        self.hocket("data", "prepare", "--files", self.path("text/*"), "--valid-fraction", "0", "--tokenizer", self.path("run"),
                    "--out", self.path("again"))
        with open(self.path("again/index.json"), encoding="utf-8") as f:
            again = json.load(f)
        with open(self.path("data/index.json"), encoding="utf-8") as f:
            self.assertEqual(again["tokenizer"]["hash"], json.load(f)["tokenizer"]["hash"])

    def test_needs_held_out_text(self):
        run = self.run_of("none", {"steps": 3, "eval_every": 1, "keep_best": True})
        r = subprocess.run([cli_util.HOCKET, "train", run], capture_output=True, text=True)
        self.assertEqual(r.returncode, 2)
        self.assertIn("has nothing held out", r.stderr)

    def test_events_of_tensorboard(self):
        train = {"steps": 4, "save_every": 2, "eval_every": 2}
        run = self.run_of("events", train, data=self.held_out(), output={"tensorboard": True})
        self.hocket("train", run)
        first = glob.glob(self.path("events/events.out.tfevents.*"))
        self.assertEqual(len(first), 1)
        self.hocket("train", self.run_of("events", {**train, "steps": 6}, data=self.held_out(), output={"tensorboard": True}))
        second = [f for f in glob.glob(self.path("events/events.out.tfevents.*")) if f not in first]
        self.assertEqual(len(second), 1)
        steps = {}
        for path, begin in (first[0], 1), (second[0], 5):
            found = events(path)
            self.assertEqual(found[0][3], b"brain.Event:2")
            self.assertEqual((found[1].get(2), found[1][7]), (begin, b"\x08\x01"))  # a session starts at this step
            for event in found[2:]:
                self.assertGreaterEqual(event[2], begin - 1)
                self.assertLess(abs(event[1] - time.time()), 3600)
                steps.setdefault(event[2], {}).update(scalars(event))
        for line in self.lines("events"):
            got = steps[line["step"]]
            for tag, value in line.items():
                if "/" in tag and isinstance(value, (int, float)) and not isinstance(value, bool):
                    self.assertAlmostEqual(got[tag] / (value or 1), value / (value or 1), delta=1e-6, msg=tag)
        self.assertIn("eval/loss", steps[6])
        self.assertNotIn("tokens", steps[1])

    def test_groups(self):
        """A learning rate of 0 without decay leaves a group as it is."""
        groups = [{"match": ["*self_attn*"], "lr": 0, "weight_decay": 0}]
        run = self.run_of("groups", {"steps": 3, "save_every": 1, "keep_last": 0, "schedule": "constant", "warmup_steps": 1},
                          optimizer={"name": "muon", "groups": groups})
        self.hocket("train", run)
        from safetensors.torch import load_file
        first, last = (load_file(self.path(f"groups/checkpoints/step-{n:06}/model.safetensors")) for n in (1, 3))
        for name, tensor in first.items():
            self.assertEqual(tensor.equal(last[name]), "self_attn" in name, name)
        refused = self.run_of("refused", {"steps": 1}, optimizer={"groups": [{"match": ["*selfattn*"], "lr": 0}]})
        r = subprocess.run([cli_util.HOCKET, "train", refused], capture_output=True, text=True)
        self.assertEqual(r.returncode, 2, r.stderr)
        self.assertIn("matches no trained parameter", r.stderr)


if __name__ == "__main__":
    unittest.main()
