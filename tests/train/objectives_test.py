#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=600
"""Compares fine-tuning and preference tuning with a reference: the model of reference_util.py in fp64, the tokens and masks
that `hocket data show` prints, and the losses of the papers written in torch as TRL has them.

Every step has all examples, so that their order does not matter. Losses and metrics of all steps agree up to rounding, on
one rank and under plans."""
import json
import os
import re
import shutil
import subprocess
import time
import unittest

import torch
from safetensors.torch import load_file, save_file
from reference_util import DENSE, MOE, Folder, cli_util, forward, random_weights

TOLERANCE = 1e-9
STEPS, SEQ = 5, 64
TRAIN = {"steps": STEPS, "seq_len": SEQ, "lr": 0.01, "min_lr": 0.01, "warmup_steps": 0,
         "max_grad_norm": 0.7, "seed": 5, "save_minutes": 0}
OPTIMIZER = {"weight_decay": 0.1, "beta1": 0.8, "beta2": 0.97, "eps": 1e-5}
QUESTIONS = ["int x", "return x", "template", "auto std", "{ x }", "x ="]
ANSWERS = ["= int;", "{ return; }", "std::x", "x", "auto template", ":: int"]
PLANS = {"dense": [{}, {"tp": 2, "dp": 2, "threads_per_rank": 1}, {"pp": 2, "threads_per_rank": 1},
                   {"cp": 2, "threads_per_rank": 1}],
         "moe": [{}, {"dp": 2, "ep": 2, "threads_per_rank": 1}]}


def examples(kind):
    for i, question in enumerate(QUESTIONS):
        if kind == "sft":
            yield {"prompt": question, "completion": ANSWERS[i]}
        elif kind == "dpo":
            yield {"prompt": question, "chosen": ANSWERS[i], "rejected": ANSWERS[(i + 2) % 6] + " x x"}
        else:
            yield {"prompt": question, "completion": ANSWERS[i], "label": i % 3 != 0}


def logprob(w, c, ids, trained):
    """Returns the log-probability of the trained tokens of a sequence."""
    ids = torch.tensor(ids)
    logits, _ = forward(w, ids, torch.arange(len(ids)), c)
    of = torch.log_softmax(logits[:-1], -1).gather(1, ids[1:, None])[:, 0]
    return of[torch.tensor(trained[1:], dtype=torch.bool)].sum()


def mean_logit(w, c, sequences):
    """Returns the mean of all logits that predict trained tokens of the sequences."""
    kept = []
    for ids, trained in sequences:
        logits, _ = forward(w, torch.tensor(ids), torch.arange(len(ids)), c)
        kept.append(logits[:-1][torch.tensor(trained[1:], dtype=torch.bool)].mean(-1))
    return torch.cat(kept).mean()


def token_metrics(w, c, sequences, chosen):
    """Returns the mean entropy of the distributions that predict trained tokens of the sequences, and the share of the trained
    tokens of `chosen` that are the most likely ones."""
    def distributions(of):
        for ids, trained in of:
            logits, _ = forward(w, torch.tensor(ids), torch.arange(len(ids)), c)
            kept = torch.tensor(trained[1:], dtype=torch.bool)
            yield torch.log_softmax(logits[:-1], -1)[kept], torch.tensor(ids)[1:][kept]

    entropies = [-(p.exp() * p).sum(-1) for p, _ in distributions(sequences)]
    hits = [(p.argmax(-1) == target).double() for p, target in distributions(chosen)]
    return {"entropy": torch.cat(entropies).mean(), "mean_token_accuracy": torch.cat(hits).mean()}


def ratios(w, base, c, sequences):
    """Returns per sequence log p / p_base, without a gradient of the base."""
    with torch.no_grad():
        of_base = [logprob(base, c, *s) for s in sequences]
    return torch.stack([logprob(w, c, *s) - r for s, r in zip(sequences, of_base)])


def dpo_loss(kind, x, beta, smoothing):
    log_sigmoid = torch.nn.functional.logsigmoid
    if kind == "ipo":
        return (x - 1 / (2 * beta)) ** 2
    if kind == "hinge":
        return torch.relu(1 - beta * x)
    return -log_sigmoid(beta * x) * (1 - smoothing) - log_sigmoid(-beta * x) * smoothing


class Objectives(Folder):
    def shown(self, run):
        """Returns ids and masks of all examples, in the order of the file."""
        out = json.loads(self.hocket("data", "show", run, "--json", "-n", "100"))
        by_place = {}
        for x in out["shown"]:
            by_place.setdefault(int(x["place"].rsplit(":", 1)[1]), []).append((x["ids"], x["trained"]))
        return [by_place[place] for place in sorted(by_place)]

    def run_file(self, name, model, kind, plan, preference, adapter=None):
        path = self.path(f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"objective": kind, "model": {"path": self.path(model), "init": "weights", "dtype": "f64"},
                       "data": {"sources": [{"path": self.path(f"{kind}.jsonl")}], "valid_fraction": 0,
                                "packing": False},
                       "train": dict(TRAIN, global_batch=len(QUESTIONS), balance_coef=0), "optimizer": OPTIMIZER,
                       **({"adapter": adapter} if adapter else {}),
                       "preference": preference, "plan": dict({"micro_batch": 6 // plan.get("dp", 1)}, **plan),
                       "output": {"dir": self.path(name), "report": False, "trace": False}}, f)
        return path

    def loss_of(self, w, base, c, kind, groups, preference):
        """Returns the loss of a step and its metrics."""
        beta = preference.get("beta", 0.1)
        row = {}
        if kind == "sft":
            count = sum(sum(s[1][1:]) for (s,) in groups)
            loss = -sum(logprob(w, c, *s) for (s,) in groups) / count
            sequences = [s for (s,) in groups]
            row = token_metrics(w, c, sequences, sequences)
        elif kind == "dpo":
            chosen, rejected = (ratios(w, base, c, [g[i] for g in groups]) for i in (0, 1))
            row = {"rewards/chosen": beta * chosen.mean(), "rewards/rejected": beta * rejected.mean(),
                   "rewards/margins": beta * (chosen - rejected).mean(),
                   "rewards/accuracies": (chosen > rejected).double().mean(),
                   "logits/chosen": mean_logit(w, c, [g[0] for g in groups]),
                   "logits/rejected": mean_logit(w, c, [g[1] for g in groups]),
                   **token_metrics(w, c, [s for g in groups for s in g], [g[0] for g in groups])}
            kinds = preference["loss_type"]
            kinds = [kinds] if isinstance(kinds, str) else kinds
            loss = 0
            for term, share in zip(kinds, preference.get("loss_weights", [1] * len(kinds))):
                x = chosen - rejected
                if term in ("ipo", "sigmoid_norm"):
                    a, b = (x / torch.tensor([sum(g[i][1]) for g in groups])
                            for i, x in enumerate((chosen, rejected)))
                    x = a - b
                loss = loss + share * dpo_loss(term, x, beta, preference.get("label_smoothing", 0)).mean()
        else:
            ratio = ratios(w, base, c, [s for (s,) in groups])
            with torch.no_grad():  # the same prompts before the answers of the examples before them
                others = []
                for i, (s,) in enumerate(groups):
                    before, start = groups[i - 1][0], s[1].index(1)
                    answer = before[1].index(1)
                    others.append((s[0][:start] + before[0][answer:], s[1][:start] + before[1][answer:]))
                z = ratios(w, base, c, others).mean().clamp(min=0)
            side = torch.tensor([1.0 if e["label"] else -1.0 for e in examples("kto")], dtype=torch.double)
            weight = torch.where(side > 0, preference.get("desirable_weight", 1),
                                 preference.get("undesirable_weight", 1))
            loss = (weight * (1 - torch.sigmoid(beta * side * (ratio - z)))).mean()
            rewards = beta * ratio
            row = {"kl": z, "rewards/margins": rewards[side > 0].mean() - rewards[side < 0].mean(),
                   **token_metrics(w, c, [s for (s,) in groups], [s for (s,), y in zip(groups, side) if y > 0]),
                   "logits/chosen": mean_logit(w, c, [s for (s,), y in zip(groups, side) if y > 0]),
                   "logits/rejected": mean_logit(w, c, [s for (s,), y in zip(groups, side) if y < 0])}
        return loss, row

    def reference(self, w0, c, kind, groups, preference):
        """Returns the metrics of every step, before its update."""
        w = {n: t.double().clone().requires_grad_() for n, t in w0.items()}
        base = {n: t.double() for n, t in w0.items()}
        optimizer = torch.optim.AdamW(
            [{"params": [t for t in w.values() if t.dim() > 1], "weight_decay": OPTIMIZER["weight_decay"]},
             {"params": [t for t in w.values() if t.dim() == 1], "weight_decay": 0.0}],
            lr=TRAIN["lr"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["eps"])
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss, row = self.loss_of(w, base, c, kind, groups, preference)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(w.values()), TRAIN["max_grad_norm"])
            optimizer.step()
            yield {"train/loss": loss.item(), **{n: v.item() for n, v in row.items()}}

    def prepare(self, model, c, kind):
        """Writes the examples and the model; returns its weights."""
        with open(self.path(f"{kind}.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(e) + "\n" for e in examples(kind))
        weights = random_weights(c, seed=11)
        if not os.path.exists(self.path(model)):
            self.model(model, c, weights)
            for name in os.listdir(self.path("tokenizer")):
                shutil.copy(self.path(f"tokenizer/{name}"), self.path(model))
        return weights

    def compare(self, model, c, kind, preferences):
        weights = self.prepare(model, c, kind)
        for number, preference in enumerate(preferences):
            want = None
            for i, plan in enumerate(PLANS[model] if number == 0 else PLANS[model][:1]):
                run = self.run_file(f"{model}-{kind}-{number}-{i}", model, kind, plan, preference)
                if want is None:
                    groups = self.shown(run)
                    self.assertEqual(len(groups), len(QUESTIONS))
                    want = list(self.reference(weights, c, kind, groups, preference))
                self.hocket("train", run)
                with open(run.removesuffix(".yaml") + "/metrics.jsonl", encoding="utf-8") as f:
                    got = [x for x in map(json.loads, f) if "train/loss" in x]
                self.assertEqual(len(got), STEPS)
                for step, (a, b) in enumerate(zip(got, want), 1):
                    for key, value in b.items():
                        self.assertLess(abs(a[key] - value), TOLERANCE * max(1, abs(value)),
                                        f"{run} {preference} step {step} {key}: {a[key]} against {value}")
                self.assertNotEqual(got[0]["train/loss"], got[-1]["train/loss"])

    def losses(self, run):
        self.hocket("train", run)
        with open(run.removesuffix(".yaml") + "/metrics.jsonl", encoding="utf-8") as f:
            return [x["train/loss"] for x in map(json.loads, f) if "train/loss" in x]

    def test_reference_of_an_adapter(self):
        """The policy without its adapter is the model itself, also where the head is trained in full beside it."""
        self.prepare("moe", MOE, "dpo")
        for name, saved in (("alone", []), ("saved", ["lm_head"])):
            adapter = {"type": "lora", "r": 4, "alpha": 8, "targets": ["q_proj", "o_proj"], "modules_to_save": saved}
            own, named = ([*self.losses(self.run_file(f"{name}-{i}", "moe", "dpo", {}, preference, adapter))]
                          for i, preference in enumerate(({}, {"reference": self.path("moe")})))
            self.assertEqual(len(own), STEPS)
            self.assertGreater(abs(own[-1] - own[0]), 1e-3)
            for a, b in zip(own, named):
                self.assertLess(abs(a - b), 1e-12, (name, own, named))

    def test_reference_of_another_network(self):
        """Its weights alone are read: they would mean another model under the policy's configuration."""
        weights = self.prepare("dense", DENSE, "dpo")
        for name, keys, message in (("angles", {"rope_theta": 9000.0}, "rope_theta of the reference is 9000.0, and that of the "
                                     "model 5000.0; expected a reference with the model's configuration"),
                                    ("shorter", {"max_position_embeddings": 60}, None)):
            self.model(name, dict(DENSE, **keys), weights)
            run = self.run_file("of-" + name, "dense", "dpo", {}, {"reference": self.path(name)})
            r = subprocess.run([cli_util.HOCKET, "train", run, "--set", "train.steps=1"], capture_output=True, text=True)
            self.assertEqual(r.returncode, 2 if message else 0, r.stderr)
            self.assertIn(message or "", r.stderr)

    def test_frozen_parts_of_an_adapter(self):
        """Matrices A that stay as they began (LoRA-FA) are saved, and read again, with the others; the reference has none."""
        self.prepare("dense", DENSE, "dpo")
        run = self.run_file("frozen", "dense", "dpo", {}, {}, {"type": "lora", "r": 4, "alpha": 8, "targets": ["q_proj"]})
        freeze = ("--set", 'train.freeze=["*lora_A*"]')
        self.hocket("train", run, *freeze, "--set", "train.steps=2")
        self.hocket("train", run, *freeze)
        first, last = (load_file(self.path(f"frozen/checkpoints/step-{step:06}/adapter_model.safetensors")) for step in (2, STEPS))
        self.assertEqual(set(first), set(last))
        for name, tensor in last.items():
            self.assertEqual(".lora_A." in name, torch.equal(tensor, first[name]), name)

    def test_reference_computed_beforehand(self):
        """The same losses as with the reference beside the policy, also resumed, under a plan, and with an adapter."""
        for kind, adapter, plan in (("dpo", None, {}), ("kto", None, {}), ("dpo", None, {"tp": 2, "threads_per_rank": 1}),
                                    ("dpo", {"type": "lora", "r": 4, "alpha": 8, "targets": ["q_proj"]}, {})):
            self.prepare("dense", DENSE, kind)
            name = f"{kind}-{'lora' if adapter else 'full'}-{plan.get('tp', 1)}"
            beside = self.losses(self.run_file(name + "-beside", "dense", kind, plan, {}, adapter))
            way = {"precompute_ref_log_probs": True}
            run = self.run_file(name + "-once", "dense", kind, plan, way, adapter)
            self.hocket("train", run, "--set", "train.steps=2")
            kept = self.path(name + "-once/reference_logprobs.bin")
            with open(kept, "rb") as f:
                before = f.read()
            once = self.losses(run)
            self.assertEqual(len(once), STEPS)
            self.assertEqual(beside[0], once[0], name)
            for a, b in zip(beside, once):
                self.assertLess(abs(a - b), 1e-12 * max(1, abs(a)), (name, beside, once))
            with open(kept, "rb") as f:
                self.assertEqual(before, f.read(), "rows of the second epoch are computed again")

        # A damaged file is refused, one of another reference is replaced with a note.
        with open(kept, "wb") as f:
            f.write(before[:-1])
        r = subprocess.run([cli_util.HOCKET, "train", run, "--set", f"train.steps={STEPS + 1}"], capture_output=True, text=True)
        self.assertEqual(r.returncode, 2)
        self.assertIn("is damaged", r.stderr)
        other = json.loads(before.split(b"\n", 1)[0])
        self.assertEqual(other["per_row"], 16)
        with open(kept, "wb") as f:
            f.write(before)
        os.utime(self.path("dense/model.safetensors"))
        self.assertIn("is of another reference", self.hocket("train", run, "--set", f"train.steps={STEPS + 1}"))

        # So is one of other rows, as far as they are others: those of a new held-out set, then of other training data.
        note, held = "is of other rows", "data.evaluation=[{name: e, path: %s}]" % self.path("dpo.jsonl")
        words = ("--set", "train.eval_every=1", "--set", f"train.steps={STEPS + 2}")
        self.assertNotIn(note, self.hocket("train", run, *words, "--set", held))
        with open(self.path("other.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(dict(e, chosen=e["chosen"] + " x")) + "\n" for e in examples("dpo"))
        words = ("--set", "train.eval_every=1", "--set", f"train.steps={STEPS + 3}")
        self.assertIn(note, self.hocket("train", run, *words, "--set", held.replace("dpo.jsonl", "other.jsonl")))
        shutil.rmtree(run.removesuffix(".yaml") + "/checkpoints")
        shutil.copy(self.path("other.jsonl"), self.path("dpo.jsonl"))
        self.assertIn(note, self.hocket("train", run, "--set", "train.steps=1"))
        with open(kept, "rb") as f:
            self.assertEqual(len(json.loads(f.read().split(b"\n", 1)[0])["tables"]), 1)
        self.assertNotIn(note, self.hocket("train", run, "--set", "train.steps=2"))

    def test_a_reference_with_newer_checkpoints(self):
        """A run that is resumed says so if the run that it began with, of which its reference or its base is, has gone on."""
        for kind in ("sft", "dpo"):
            self.prepare("dense", DENSE, kind)
        first = self.run_file("first", "dense", "sft", {}, {})
        second = self.run_file("second", "first", "dpo", {}, {})
        third = self.run_file("third", "first", "sft", {}, {}, {"type": "lora", "r": 4, "targets": ["q_proj"]})

        def said(run, steps, *words):
            r = subprocess.run([cli_util.HOCKET, "train", run, "--set", f"train.steps={steps}", *words],
                               capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, r.stderr)
            return r.stderr

        self.hocket("train", first, "--set", "train.steps=2")
        for run in (second, third):
            self.assertNotIn("the training began", said(run, 2) + said(run, 3))
        with open(self.path("third/checkpoints/step-000003/adapter_config.json"), encoding="utf-8") as f:
            self.assertTrue(json.load(f)["base_model_name_or_path"].endswith("first/checkpoints/step-000002"))
        self.hocket("train", first)
        for run, what in ((second, "reference is read again"), (third, "adapter's base is read")):
            self.assertRegex(said(run, 4), what + r" from \S*step-000005, and the training began from \S*step-000002;")

        # The same folder by another path is no other folder.
        for name, kind, adapter in (("typed", "dpo", None), ("typed-base", "sft", {"type": "lora", "r": 4, "targets": ["q_proj"]})):
            run = self.run_file(name, "dense", kind, {}, {}, adapter)
            again = ("--set", "model.path=" + self.path("dense/"))
            self.assertNotIn("the training began", said(run, 1) + said(run, 2, *again), name)

    def test_a_base_that_its_run_removes(self):
        """A training of an adapter says so at the start; the adapter is read with another copy of its base."""
        self.prepare("dense", DENSE, "sft")
        base = self.run_file("rotated", "dense", "sft", {}, {})
        adapter = {"type": "lora", "r": 4, "targets": ["q_proj"]}
        self.hocket("train", base, "--set", "train.steps=2")
        first = os.path.realpath(self.path("rotated/checkpoints/step-000002"))
        shutil.copytree(first, self.path("kept"))
        said = self.hocket("train", self.run_file("over", "rotated", "sft", {}, {}, adapter), "--set", "train.steps=1")
        self.assertIn(f"the adapter's base is {first}, which its run removes when it goes on (train.keep_last: 2)", said)
        for name, words in (("kept", ()), ("rotated", ("--set", "train.keep_last=0"))):
            if words:
                self.hocket("train", base, "--set", "train.steps=3", *words)
            run = self.run_file("over-" + name, name, "sft", {}, {}, adapter)
            self.assertNotIn("the adapter's base is", self.hocket("train", run, "--set", "train.steps=1"))

        self.hocket("train", base, "--set", "train.steps=4", "--set", "train.keep_last=1")
        self.assertFalse(os.path.exists(first))
        words = ("--prompt", "int x", "--max-new-tokens", "1")
        r = subprocess.run([cli_util.HOCKET, "generate", self.path("over"), *words], capture_output=True, text=True)
        self.assertEqual(r.returncode, 2)
        self.assertRegex(r.stderr, r"step-000002\] no such file .*; it is the base of adapter \S*over/checkpoints/step-000001, .*"
                         r"MODEL --adapter \S*over/checkpoints/step-000001")
        self.hocket("generate", self.path("kept"), "--adapter", self.path("over"), *words)

    def test_frozen_weights_replaced_under_their_path(self):
        """A resumed run says so if its base's or its reference's file is another one than at the beginning."""
        for kind in ("sft", "dpo"):
            self.prepare("dense", DENSE, kind)
        lora = {"type": "lora", "r": 4, "targets": ["q_proj"]}
        for name, kind, adapter, what in (("of-base", "sft", lora, "adapter's base is read"),
                                          ("of-start", "dpo", None, "reference is read again"),
                                          ("of-name", "dpo", None, "reference is read again")):
            folder = self.path(name + "-model")
            shutil.copytree(self.path("dense"), folder)
            with open(folder + "/optimizer.safetensors", "wb") as f:
                f.write(b"of a checkpoint")
            named = name == "of-name"
            run = self.run_file(name, "dense" if named else name + "-model", kind, {}, {"reference": folder} if named else {},
                                adapter)

            def said(steps):
                r = subprocess.run([cli_util.HOCKET, "train", run, "--set", f"train.steps={steps}"],  # noqa: B023
                                   capture_output=True, text=True)
                self.assertEqual(r.returncode, 0, r.stderr)
                return r.stderr

            self.assertNotIn("the training began", said(1) + said(2), name)
            # A tokenizer or an optimizer's state beside the weights does not matter.
            os.utime(folder + "/tokenizer.json")
            os.utime(folder + "/optimizer.safetensors")
            self.assertNotIn("the training began", said(3), name)
            save_file(random_weights(DENSE, seed=12), folder + "/model.safetensors", {"format": "pt"})
            for steps in (4, 5):
                self.assertRegex(said(steps), what + " from " + re.escape(folder) + ", where model.safetensors has another size or "
                                 "time than when the training began")

    def test_a_reference_with_an_adapter_names_its_base(self):
        for kind in ("sft", "dpo"):
            self.prepare("dense", DENSE, kind)
        adapter = {"type": "lora", "r": 4, "targets": ["q_proj"]}
        self.hocket("train", self.run_file("an-adapter", "dense", "sft", {}, {}, adapter), "--set", "train.steps=1")
        run = self.run_file("beside-it", "dense", "dpo", {}, {"reference": self.path("an-adapter")})
        self.assertRegex(self.hocket("train", run, "--set", "train.steps=1"),
                         r"reference from \S*/dense and \S*/an-adapter/checkpoints/step-000001\n")

    def test_values_of_a_reference_outlive_a_kill(self):
        """They are kept while they are computed: a run that is killed goes on from them, with the losses of one that is not."""
        rows, kept = 200, self.path("killed/reference_logprobs.bin")
        self.prepare("dense", DENSE, "dpo")
        with open(self.path("dpo.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": f"int x{i}", "chosen": ANSWERS[i % 6], "rejected": ANSWERS[(i + 1) % 6]}) + "\n"
                         for i in range(rows))
        killed, whole = (self.run_file(name, "dense", "dpo", {"micro_batch": 2}, {"precompute_ref_log_probs": True})
                         for name in ("killed", "whole"))
        words = ("--set", "train.global_batch=2", "--set", f"train.steps={rows // 2}")
        process = subprocess.Popen([cli_util.HOCKET, "train", killed, *words, "--set", "train.save_minutes=1e-6"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not os.path.exists(kept):
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        process.kill()
        process.wait()
        with open(kept, "rb") as f:
            (table,) = json.loads(f.read().split(b"\n", 1)[0])["tables"]
        self.assertLess(table["rows"], rows)
        for run in (killed, whole):
            self.hocket("train", run, *words)
        losses = []
        for name in ("killed", "whole"):
            with open(self.path(name + "/metrics.jsonl"), encoding="utf-8") as f:
                losses.append([x["train/loss"] for x in map(json.loads, f) if "train/loss" in x])
        self.assertEqual(len(losses[0]), rows // 2)
        self.assertEqual(*losses)

    def test_report_shows_data_and_samples(self):
        """The page has the first examples with their trained parts, the lengths, and what the model said before and after."""
        self.prepare("dense", DENSE, "sft")
        run = self.run_file("page", "dense", "sft", {}, {})
        words = ("--set", "output.report=true", "--set", "output.sample_prompt=int x", "--set", "output.sample_tokens=6")
        losses = self.losses(self.run_file("plain", "dense", "sft", {}, {}))
        self.hocket("train", run, *words)
        with open(self.path("page/metrics.jsonl"), encoding="utf-8") as f:
            self.assertEqual(losses, [x["train/loss"] for x in map(json.loads, f) if "train/loss" in x],
                             "the first sample changes the training")
        with open(self.path("page/report.html"), encoding="utf-8") as f:
            page = json.loads(f.read().split('id="data">', 1)[1].split("</script>", 1)[0])
        shown = self.shown(run)
        self.assertEqual(len(page["examples"]), len(QUESTIONS))
        for example in page["examples"]:
            number = int(example["place"].rsplit(":", 1)[1]) - 1
            (ids, trained), = shown[number]
            self.assertEqual((example["tokens"], example["trained"]), (len(ids), sum(trained)))
            whole = "".join(text for _, text in example["parts"])
            self.assertTrue(whole.startswith(QUESTIONS[number] + ANSWERS[number]), whole)
            self.assertEqual([mark for mark, _ in example["parts"]], [0, 1])
        self.assertEqual(sum(n for _, n in page["lengths"]), len(QUESTIONS))
        before, after = page["samples"]
        self.assertEqual((before["when"], after["when"]), ("before training", ""))
        self.assertEqual((before["prompt"], after["prompt"]), ("int x", "int x"))
        self.assertNotEqual(before["text"], after["text"])

    def test_samples_are_of_an_example(self):
        """Without a prompt the samples before and after go on from the first example's, also in the report of a resumed run."""
        self.prepare("dense", DENSE, "dpo")
        run = self.run_file("both_samples", "dense", "dpo", {}, {}, {"type": "lora", "r": 2, "targets": ["all-linear"]})
        words = ("--set", "output.report=true", "--set", "output.sample_tokens=6")
        out = self.hocket("train", run, *words)
        out += self.hocket("train", run, *words, "--set", f"train.steps={STEPS + 1}")
        self.assertEqual(1, out.count("\nsample before training ("))
        self.assertEqual(2, out.count("\nsample ("))
        with open(self.path("both_samples/report.html"), encoding="utf-8") as f:
            page = json.loads(f.read().split('id="data">', 1)[1].split("</script>", 1)[0])
        before, after = page["samples"]
        self.assertEqual((before["when"], after["when"]), ("before training", ""))
        self.assertEqual(before["prompt"], after["prompt"])
        self.assertTrue(before["prompt"].endswith(QUESTIONS[0]), before["prompt"])

    def test_texts_have_no_prompt_of_a_first_sample(self):
        self.prepare("dense", DENSE, "sft")
        with open(self.path("texts.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"text": answer}) + "\n" for answer in ANSWERS)
        run = self.run_file("texts", "dense", "sft", {}, {})
        words = ("--set", "data.sources=[{path: " + self.path("texts.jsonl") + "}]", "--set", "output.sample_tokens=4",
                 "--set", "train.steps=1")
        out = self.hocket("train", run, *words)
        self.assertNotIn("\nsample before training (", out)
        self.assertIn("\nsample (", out)
        out = self.hocket("train", run, *words, "--set", "output.sample_prompt=int", "--set", "output.dir=" + self.path("prompted"))
        self.assertIn("\nsample before training (", out)

    def test_prepared_texts_are_of_pretraining(self):
        self.prepare("dense", DENSE, "sft")
        run = self.run_file("both", "dense", "sft", {}, {})
        r = subprocess.run([cli_util.HOCKET, "train", run, "--set", "data.dir=" + self.path("data")], capture_output=True,
                           text=True)
        self.assertEqual(r.returncode, 2)
        self.assertIn("and objective is sft, which reads data.sources", r.stderr)

    def test_sft(self):
        self.compare("dense", DENSE, "sft", [{}])

    def test_padding_goes_to_no_expert(self):
        """The balance loss is of tokens alone: gradients are those of the examples without their padding."""
        weights = self.prepare("moe", MOE, "sft")
        norms = {}
        for i, plan in enumerate(({}, {"dp": 2, "ep": 2, "threads_per_rank": 1}, {"pp": 2, "threads_per_rank": 1})):
            run = self.run_file(f"balance-{i}", "moe", "sft", plan, {})
            for seq_len in (SEQ, 2 * SEQ):
                dir_ = self.path(f"balance-{i}-{seq_len}")
                self.hocket("train", run, "--set", "train.balance_coef=0.7", "--set", f"train.seq_len={seq_len}",
                            "--set", "plan.micro_batch=6" if not plan.get("dp") else "plan.micro_batch=3",
                            "--set", f"output.dir={dir_}", "--set", "train.max_grad_norm=0", "--set", "train.steps=1")
                with open(dir_ + "/metrics.jsonl", encoding="utf-8") as f:
                    norms[i, seq_len] = next(x["train/grad_norm"] for x in map(json.loads, f) if "train/loss" in x)
        groups = self.shown(run)
        w = {n: t.double().clone().requires_grad_() for n, t in weights.items()}
        loss, _ = self.loss_of(w, w, MOE, "sft", groups, {})
        ids = [s[0] for (s,) in groups]
        _, balance = forward(w, torch.tensor(sum(ids, [])), torch.cat([torch.arange(len(x)) for x in ids]), MOE)
        (loss + 0.7 * balance).backward()
        want = torch.sqrt(sum((t.grad**2).sum() for t in w.values() if t.grad is not None)).item()
        for key, got in norms.items():
            self.assertLess(abs(got - want), 1e-9 * want, (key, norms, want))

    def test_dpo(self):
        self.compare("dense", DENSE, "dpo",
                     [{"loss_type": "sigmoid", "beta": 0.3}, {"loss_type": "sigmoid", "label_smoothing": 0.2},
                      {"loss_type": "sigmoid_norm"}, {"loss_type": "ipo"}, {"loss_type": "hinge"},
                      {"loss_type": ["sigmoid", "ipo"], "loss_weights": [0.8, 0.2], "label_smoothing": 0.1},
                      {"loss_type": ["hinge", "sigmoid_norm"]}])

    def test_kto(self):
        self.compare("dense", DENSE, "kto", [{"desirable_weight": 1.5, "undesirable_weight": 0.75, "beta": 0.4}])

    def test_kto_under_any_micro_batch(self):
        """The divergence is of all rows of a step, and of an evaluation, however a plan divides them."""
        self.prepare("dense", DENSE, "kto")
        self.model("away", DENSE, random_weights(DENSE, seed=12, scale=0.25))
        want = None
        for i, plan in enumerate(({"micro_batch": 6}, {"micro_batch": 2}, {"dp": 2, "micro_batch": 1, "threads_per_rank": 1})):
            run = self.run_file(f"kto-rows-{i}", "dense", "kto", plan, {"beta": 0.4, "reference": self.path("away")})
            self.hocket("train", run, "--set", "train.eval_every=2", "--set",
                        f"data.evaluation=[{{name: e, path: {self.path('kto.jsonl')}}}]")
            with open(self.path(f"kto-rows-{i}/metrics.jsonl"), encoding="utf-8") as f:
                got = [{key: x[key] for key in ("train/loss", "kl", "eval/e/loss", "eval/e/kl") if key in x}
                       for x in map(json.loads, f)]
            want = want or got
            self.assertGreater(max(x.get("kl", 0) for x in want), 0.01)
            self.assertGreater(max(x.get("eval/e/kl", 0) for x in want), 0.01)
            self.assertEqual([x.keys() for x in want], [x.keys() for x in got])
            for a, b in zip(want, got):
                for key, value in a.items():
                    self.assertLess(abs(b[key] - value), TOLERANCE * max(1, abs(value)), (plan, key, want, got))

    def test_gradients_against_autograd(self):
        """One step of plain SGD moves every weight by the gradient that autograd has, also where ranks share the vocabulary."""
        for kind, preference in (("dpo", {"loss_type": "sigmoid", "beta": 0.3}), ("kto", {"beta": 0.4})):
            w = {n: t.double().clone().requires_grad_() for n, t in self.prepare("dense", DENSE, kind).items()}
            base = {n: t.detach().clone() for n, t in w.items()}
            # Away from the reference, so that KTO's divergence and both sides of a pair count.
            reference = {n: t.double() for n, t in random_weights(DENSE, seed=12, scale=0.25).items()}
            if not os.path.exists(self.path("reference")):
                self.model("reference", DENSE, {n: t.float() for n, t in reference.items()})
            preference = dict(preference, reference=self.path("reference"))
            want = None
            for i, plan in enumerate(PLANS["dense"]):
                run = self.run_file(f"{kind}-sgd-{i}", "dense", kind, plan, preference)
                words = ("train.steps=1", "train.lr=1", "train.min_lr=1", "train.max_grad_norm=0", "optimizer.name=sgd",
                         "optimizer.momentum=0", "optimizer.weight_decay=0")
                if want is None:
                    groups = self.shown(run)
                    self.loss_of(w, reference, DENSE, kind, groups, preference)[0].backward()
                    want = {n: t.grad for n, t in w.items()}
                self.hocket("train", run, *(word for key in words for word in ("--set", key)))
                saved = self.path(f"{kind}-sgd-{i}/checkpoints/step-000001")
                after = load_file(f"{saved}/model.safetensors")
                with open(f"{saved}/run.json", encoding="utf-8") as f:
                    self.assertEqual(json.load(f)["data"]["beginning"], [])  # the model puts no token there
                self.assertEqual(set(want), set(after))
                for name, gradient in want.items():
                    self.assertEqual(after[name].dtype, torch.float64)
                    self.assertGreater(gradient.abs().max(), 1e-6, name)
                    error = (base[name] - after[name] - gradient).abs().max() / gradient.abs().max()
                    self.assertLess(error, 1e-10, (kind, plan, name))

    def test_memory_of_a_large_vocabulary(self):
        """With 128k tokens a step needs less memory than one tensor of logits would take."""
        vocabulary, rows, length = 131072, 4, 512
        self.prepare("dense", DENSE, "dpo")
        os.mkdir(self.path("large"))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(self.path(f"tokenizer/{name}"), self.path("large"))
        with open(self.path("large/config.json"), "w", encoding="utf-8") as f:
            json.dump(dict(DENSE, vocab_size=vocabulary, hidden_size=64, max_position_embeddings=length), f)
        run = self.run_file("large-run", "large", "dpo", {"micro_batch": rows}, {})
        for dtype, width in (("f32", 4), ("f64", 8)):
            said = self.hocket("check", run, "--set", "model.init=random", "--set", f"model.dtype={dtype}", "--set",
                               f"train.global_batch={rows}", "--set", f"train.seq_len={length}")
            planned = re.search(r"([\d.]+) (MiB|GiB) step buffers", said)
            buffers = float(planned[1]) * {"MiB": 1, "GiB": 1024}[planned[2]]
            self.assertLess(buffers, rows * length * vocabulary * width / 2**20 / 2, said)

    def test_master_weights_begin_as_the_loaded_ones(self):
        """A step that hardly learns writes the loaded weights, rounded, and no others."""
        weights = self.prepare("dense", DENSE, "sft")
        for dtype, rounded in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            run = self.run_file(f"masters-{dtype}", "dense", "sft", {}, {})
            self.hocket("train", run, "--set", f"model.dtype={dtype}", "--set", "train.steps=1", "--set", "train.lr=1e-12",
                        "--set", "train.min_lr=1e-12")
            saved = load_file(self.path(f"masters-{dtype}/checkpoints/step-000001/model.safetensors"))
            self.assertEqual(set(weights), set(saved))
            for name, tensor in weights.items():
                self.assertTrue(torch.equal(saved[name].to(rounded), tensor.to(rounded)), (dtype, name))

    def test_experts(self):
        self.compare("moe", MOE, "dpo", [{"loss_type": "sigmoid"}])


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
