#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600
# ctest: slow, without sanitizers
"""check, simulate and train accept the plan that `hocket plan` writes, unchanged."""
import json
import os
import re
import signal
import subprocess
import unittest

import yaml

import cli_util
from plan_box import PlanBox


# Few enough plans that the search is complete in seconds.
FEW = ["--set", "plan.recompute=none", "--set", "plan.all_reduce=native", "--set", "plan.micro_batch=1", "--set",
       "plan.cp=1"]


class PlanTest(PlanBox):
    # ---- the search ------------------------------------------------------------------------------------------------
    def test_a_box(self):
        self.model()
        out = self.good("plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch",
                        "16", "--seq-len", "64", "--ranks", "4", *FEW, "--json", "--out", "plan.yaml")
        found = json.loads(out)
        best = found["best"][0]
        self.assertGreater(found["counts"]["simulated"], 0)
        self.assertLessEqual(found["lower_bound_s"], best["step_s"])
        self.assertFalse(found["calibrated"])
        with open(os.path.join(self.folder, "plan.yaml"), encoding="utf-8") as f:
            self.assertIn("# predicted on box-4x2 (uncalibrated): ", f.read())
        self.refused("nomodel does not exist", "plan", "nomodel", "--cluster", "configs/clusters/box-4x2.yaml")
        parts = ["compute_s", "exposed_communication_s", "bubble_s", "idle_s"]
        self.assertAlmostEqual(best["step_s"], sum(best[part] for part in parts), delta=1e-6 * best["step_s"])
        self.assertEqual(sorted(p["step_s"] for p in found["best"]), [p["step_s"] for p in found["best"]])
        # simulate accepts the written run and confirms the search's prediction.
        self.good("check", "plan.yaml")
        simulated = json.loads(self.good("simulate", "plan.yaml", "--json"))
        self.assertAlmostEqual(simulated["step_s"], best["step_s"], delta=1e-9)
        for end in ("low_s", "high_s"):
            self.assertAlmostEqual(simulated["interval"][end], best["interval"][end], delta=1e-8)
        self.assertEqual(simulated["interval"]["why"], best["interval"]["why"])

    def test_every_prediction_has_its_interval(self):
        self.model()
        with open(os.path.join(cli_util.ROOT, "configs/clusters/box-4x2.yaml"), encoding="utf-8") as f:
            self.put("judged.yaml", f.read() + "\naccuracy: {basis: fitted, low: 0.5, high: 2.5, fitted: [a, b], "
                     "fitted_error: 0.125, source: a test}\n")
        search = ["plan", "model/config.json", "--cluster", "judged.yaml", "--global-batch", "16", "--seq-len", "64",
                  "--ranks", "4", *FEW]
        why = "-50 to +150 %: fitted to 2 published steps, 12.5 % off on them"
        found = json.loads(self.good(*search, "--json", "--html", "plan.html"))
        for row in found["best"] + [row for row in found["families"] if "step_s" in row]:
            error = row.get("error_s", 0)
            self.assertAlmostEqual(row["interval"]["low_s"], 0.5 * (row["step_s"] - error), delta=1e-8)
            self.assertAlmostEqual(row["interval"]["high_s"], 2.5 * (row["step_s"] + error), delta=1e-8)
            self.assertEqual(row["interval"]["why"], why)
        with open(os.path.join(self.folder, "plan.html"), encoding="utf-8") as f:
            page = f.read()
        self.assertIn(why, page)
        self.assertGreaterEqual(page.count("(interval "), 5)
        shown = self.good(*search, "--out", "plan.yaml")
        ends = r"[\d.]+ [mu]?s to [\d.]+ [mu]?s"
        self.assertRegex(shown, rf"\n  1 +[\d.]+ [mu]?s +{ends} ")
        self.assertRegex(shown, rf"\nFSDP +[\d.]+ [mu]?s +{ends} ")
        self.assertIn(f"\ninterval of the first: {why}\n", shown)
        with open(os.path.join(self.folder, "plan.yaml"), encoding="utf-8") as f:
            self.assertRegex(f.read(), rf"a step, interval {ends} ")

    def test_the_best_of_every_family(self):
        self.model()
        search = ["plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "16",
                  "--seq-len", "64", "--ranks", "4", *FEW]
        found = json.loads(self.good(*search, "--json", "--html", "plan.html"))
        families = {row["family"]: row for row in found["families"]}
        self.assertLessEqual({"data parallel", "FSDP", "tensor", "pipeline", "pp x tp"}, set(families))
        steps = [row["step_s"] for row in found["families"]]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(steps[0], found["best"][0]["step_s"])
        self.assertEqual([bool(row["cause"]) for row in found["families"]], [False] + [True] * (len(steps) - 1))
        gains = found["gains_of_ten_percent"]
        self.assertGreater(max(gains.values()), 0.01)
        self.assertLess(sum(gains.values()), 0.12)
        with open(os.path.join(self.folder, "plan.html"), encoding="utf-8") as f:
            page = f.read()
        for part in ('id="families"', 'id="bottleneck"', 'id="best"', "FSDP", found["best"][0]["plan"], "10 % more of"):
            self.assertIn(part, page)
        self.assertEqual(page.count('<svg class="tl"'), len(families))
        self.assertNotIn("<script src", page)
        shown = self.good(*search)
        self.assertRegex(shown, r"\nfamily +step")
        self.assertRegex(shown, r"\nnext +10 % more of")
        self.assertGreaterEqual(gains["memory"], 0)
        self.assertRegex(shown, r"\nnext +10 % more of memory {2,}(-[\d.]+ %: |no gain: no simulated plan)")
        self.refused("both go to standard output", *search, "--json", "--html", "-")

    def test_keys_that_go_together_are_one_choice(self):
        # Keys around a ring are in zigzag order. Exchanged heads are no third way: four are too few for eight ranks.
        self.model()
        given = [word for key in ("cp=8", "all_reduce=native", "recompute=none", "micro_batch=1", "shard.optimizer=none")
                 for word in ("--set", "plan." + key)]
        shown = self.good("plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "2",
                          "--seq-len", "64", *given)
        self.assertRegex(shown, r"\nwhy +\+\d+\.\d\d % with plan\.cp_comm_type=(p2p plan\.cp_order=zigzag|all_gather)")

    def test_lists_of_sections_stay(self):
        self.model()
        self.put("tune.yaml", "model: {path: model}\ndata: {sources: [{path: a.jsonl, weight: 2}, {path: b.jsonl}]}\n"
                 "optimizer: {groups: [{match: \"*norm*\", weight_decay: 0}]}\ntrain: {global_batch: 8, seq_len: 32}\n")
        for verb, given in ((["plan"], ["--ranks", "2", "--time-limit", "20"]),
                            (["plan", "codecs"], ["--set", "plan.dp=2", "--set", "plan.ranks_per_node=1"])):
            self.good(*verb, "tune.yaml", "--cluster", "configs/clusters/box-4x2.yaml", *given, "--out", "plan.yaml")
            with open(os.path.join(self.folder, "plan.yaml"), encoding="utf-8") as f:
                run = yaml.safe_load(f)
            self.assertEqual([(s["path"], s["weight"]) for s in run["data"]["sources"]], [("a.jsonl", 2), ("b.jsonl", None)])
            self.assertEqual([(g["match"], g["weight_decay"]) for g in run["optimizer"]["groups"]], [(["*norm*"], 0)])

    def test_the_plan_trains(self):
        self.model()
        self.good("plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "8",
                  "--seq-len", "32", "--ranks", "2", "--time-limit", "20", "--out", "plan.yaml")
        self.put("text/a.txt", "\n".join(f"line {i} of a text that is long enough" for i in range(4000)))
        data = ["--set", "data.dir=data", "--set", "data.files=[text/*]", "--set", "data.vocab_size=300", "--set",
                "data.valid_fraction=0", "--set", "data.tokenizer=tok"]
        self.good("data", "train-tokenizer", "plan.yaml", *data)
        self.good("data", "prepare", "plan.yaml", *data)
        self.good("train", "plan.yaml", *data, "--set", "train.steps=2", "--set", "output.dir=out", "--set",
                  "plan.ranks=local")
        with open(os.path.join(self.folder, "out/metrics.jsonl"), encoding="utf-8") as f:
            self.assertGreaterEqual(len(f.readlines()), 2)

    def test_heterogeneous_nodes(self):
        # The second node is slower: its replicas get fewer sequences.
        self.model()
        self.put("uneven.yaml", "name: uneven\nnodes: 2\ndevices_per_node: 2\ndevice: {name: test, memory: {value: 1GB}, "
                 "memory_bandwidth: {value: 10GB/s}, launch: {value: 2us}, peak: {f32: {value: 50GFLOP/s}},\n"
                 "  efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}}\n"
                 "links: {intra: {latency: {value: 2us}, bandwidth: {value: 1GB/s}}, inter: {latency: {value: 10us}, "
                 "bandwidth: {value: 500MB/s}}}\nheterogeneous_nodes: [{first: 1, speed: 0.4}]\n")
        search = ["plan", "model/config.json", "--cluster", "uneven.yaml", "--global-batch", "28", "--seq-len", "64", "--set",
                  "plan.recompute=none", "--set", "plan.tp=1", "--set", "plan.all_reduce=native"]
        out = self.good(*search, "--out", "plan.yaml")
        self.assertIn("(2 of 10 + 2 of 4)", out)
        self.assertRegex(out, r"\nwhy +\+\d+\.\d\d % ")
        plan, _ = self.keys("plan.yaml")
        self.assertEqual(plan["dp_samples"], [10, 10, 4, 4])
        self.good("check", "plan.yaml")
        step = json.loads(self.good("simulate", "plan.yaml", "--json"))["step_s"]
        even = json.loads(self.good(*search, "--set", "plan.dp_samples=[]", "--json"))["best"][0]
        self.assertLess(step, 0.8 * even["step_s"])
        self.assertNotIn("plan.dp_samples", even["set"])
        self.put("text/a.txt", "\n".join(f"line {i} of a text that is long enough" for i in range(8000)))
        data = ["--set", "data.dir=data", "--set", "data.files=[text/*]", "--set", "data.vocab_size=300", "--set",
                "data.valid_fraction=0", "--set", "data.tokenizer=tok"]
        self.good("data", "train-tokenizer", "plan.yaml", *data)
        self.good("data", "prepare", "plan.yaml", *data)
        self.good("train", "plan.yaml", *data, "--set", "train.steps=2", "--set", "output.dir=out", "--set",
                  "plan.ranks=local")

    def test_keys_that_are_given_stay(self):
        self.model()
        found = json.loads(self.good(
            "plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "16",
            "--seq-len", "64", "--set", "plan.tp=2", "--set", "plan.pp=2", "--set", "plan.recompute=full", "--set",
            "plan.all_reduce=native", "--json"))
        for plan in found["best"]:
            self.assertEqual([plan["set"].get(k) for k in ("plan.tp", "plan.pp", "plan.recompute")], ["2", "2", "full"])

    def test_too_little_memory(self):
        self.model()
        r = self.hocket("plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch",
                        "16", "--seq-len", "64", "--set", "cluster.memory_budget=64KiB")
        self.assertEqual(r.returncode, 1)
        self.assertIn("fits into 64 KiB a rank", r.stderr)

    # ---- codecs of gradients ---------------------------------------------------------------------------------------
    def test_codecs(self):
        self.model(hidden_size=128, intermediate_size=256)
        run = ["model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--set", "train.global_batch=8", "--set",
               "train.seq_len=64", "--set", "plan.dp=4", "--set", "plan.ranks_per_node=2", "--set", "plan.bucket_mib=0"]
        found = json.loads(self.good("plan", "codecs", *run, "--json", "--out", "codecs.yaml"))
        chosen, none, every = found["chosen"]["step_s"], found["none"]["step_s"], found["all"]["int8"]["step_s"]
        self.assertLess(chosen, none)
        self.assertLessEqual(chosen, every)
        self.assertTrue(found["complete"])
        encoded = [f"{p} {t['codec']}" for t in found["transfers"] if t["codec"] != "none" for p in t["parameters"]]
        plan, _ = self.keys("codecs.yaml")
        self.assertEqual(sorted(plan["grad_codec_of"]), sorted(encoded))
        # simulate accepts the written run and confirms the search's prediction.
        self.assertIn("int8", self.good("check", "codecs.yaml"))
        simulated = json.loads(self.good("simulate", "codecs.yaml", "--json"))
        self.assertAlmostEqual(simulated["step_s"], chosen, delta=1e-9)
        self.assertAlmostEqual(simulated["interval"]["high_s"], found["chosen"]["interval"]["high_s"], delta=1e-8)
        shown = self.good("plan", "codecs", *run, "--codecs", "int8,identity")
        self.assertRegex(shown, r"\nchosen +.* a step \(.*x\), interval .* to ")
        self.assertRegex(shown, r"\ninterval +-30 to \+160 %")
        for word in ("gap before", "all int8", "all identity", "chosen"):
            self.assertIn(word, shown)

    def test_codecs_on_hosts(self):
        self.model(hidden_size=128, intermediate_size=256)
        cluster = self.put("hosts.yaml", """
name: hosts
nodes: 4
devices_per_node: 1
device:
  name: device
  memory: {value: 4GB}
  memory_bandwidth: {value: 1GB/s}
  peak: {f32: {value: 200GFLOP/s}}
  efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}
  host: {kernels: {value: 20GB/s}, copies: {value: 12GB/s}}
links: {intra: {latency: {value: 2us}, bandwidth: {value: 10GB/s}}, inter: {latency: {value: 2us}, bandwidth: {value: 50MB/s}}}
""")
        run = ["model/config.json", "--cluster", cluster, "--set", "train.global_batch=8", "--set", "train.seq_len=64", "--set", "plan.dp=4",
               "--set", "plan.ranks_per_node=1", "--set", "plan.bucket_mib=0.5", "--codecs", "int8"]
        found = json.loads(self.good("plan", "codecs", *run, "--offload", "--json", "--out", "codecs.yaml"))
        self.assertLess(found["chosen"]["step_s"], json.loads(self.good("plan", "codecs", *run, "--json"))["chosen"]["step_s"])
        self.assertLessEqual(found["chosen"]["step_s"], found["all"]["int8 host"]["step_s"])
        self.assertTrue(any(t["codec"].endswith(" host") for t in found["transfers"]))
        self.assertTrue(found["offload"]["all_tried"])
        plan, _ = self.keys("codecs.yaml")
        self.assertTrue(any(rule.endswith(" host") for rule in plan["grad_codec_of"]))
        self.assertIn("int8", self.good("check", "codecs.yaml"))
        simulated = json.loads(self.good("simulate", "codecs.yaml", "--json"))
        self.assertAlmostEqual(simulated["step_s"], found["chosen"]["step_s"], delta=1e-9)
        self.assertIn("encoded transfers to hosts", self.good("plan", "codecs", *run, "--offload"))
        # A cluster without a description of its hosts is refused.
        box = "configs/clusters/box-4x2.yaml"
        self.refused("device.host.kernels", "plan", "codecs", *(box if word == cluster else word for word in run), "--offload")
        self.refused("device.host.kernels", "simulate", "codecs.yaml", "--cluster", box)
        self.refused("try: hocket plan codecs RUN --offload", "plan", "model/config.json", "--offload")

    def test_codecs_that_cannot_be_chosen(self):
        self.model()
        run = ["model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--set", "train.global_batch=8", "--set",
               "train.seq_len=64", "--codecs"]
        self.refused("unknown codec 'int7'", "plan", "codecs", *run, "int7", "--set", "plan.dp=4")
        self.refused("no gradient of this plan", "plan", "codecs", *run, "int8", "--set", "plan.tp=4")
        self.refused("unknown option '--ranks'", "plan", "codecs", *run, "int8", "--ranks", "2")
        self.refused("try: hocket plan codecs RUN", "plan", *run, "int8")

    def test_the_public_selector(self):
        self.put("tensors.yaml", "{nodes: 4, two_level: true, tensors: [{name: bias, elements: 1000}, "
                                 "{name: weight, elements: 16777216, gap_us: 1200}]}")
        rows = [line.split() for line in self.good("plan", "espresso", "tensors.yaml").split("\n")[1:3]]
        self.assertEqual([(row[0], row[1], row[-1]) for row in rows],
                         [("1000", "0", "bias"), ("16777216", "9", "weight")])
        self.assertIn(" 4 ", self.good("plan", "espresso", "tensors.yaml", "--set", "two_level=false"))
        self.refused("try: hocket plan espresso FILE", "plan", "tensors.yaml", "--espresso")
        self.refused("elements", "plan", "espresso", "tensors.yaml", "--set", "tensors=[{name: a}]")

    def test_a_warning_of_the_cluster_is_printed_once(self):
        self.model()
        with open(os.path.join(cli_util.ROOT, "configs/clusters/a100-16x8.yaml"), encoding="utf-8") as f:
            text = f.read()
        self.assertIn("bf16: {value: 312TFLOP/s", text)
        self.put("sparse.yaml", text.replace("bf16: {value: 312TFLOP/s", "bf16: {value: 624TFLOP/s"))
        r = self.hocket("plan", "model/config.json", "--cluster", "sparse.yaml", "--global-batch", "16", "--seq-len", "64",
                        "--ranks", "4", *FEW)
        self.assertEqual(0, r.returncode, r.stderr)
        self.assertEqual(1, (r.stdout + r.stderr).count("device.peak.bf16 is 624TFLOP/s"), r.stdout + r.stderr)

    def test_bad_input(self):
        self.model()
        of_box = ["plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml"]
        self.refused("at most the 8", *of_box, "--global-batch", "8", "--ranks", "9")
        self.refused("expected --global-batch N", *of_box)
        batch = ["--set", "train.seq_len=64", "--set", "train.global_batch=8", "--top", "1", "--json", *FEW]
        self.assertGreater(json.loads(self.good(*of_box, *batch))["counts"]["simulated"], 0)
        self.refused("expected one of megatron, torchtitan, deepspeed, verl, axolotl", *of_box, "--from", "keras")
        of_two = [*of_box, "--global-batch", "8", "--seq-len", "64", "--ranks", "2"]
        self.refused("there is no plan of 2 ranks", *of_two, "--set", "plan.pp=3")
        self.refused("--time-limit is -3", *of_two, "--time-limit", "-3")

    def test_interrupted(self):
        self.model(num_hidden_layers=16)
        command = [cli_util.HOCKET, "plan", "model/config.json", "--cluster", "configs/clusters/h100-64x8.yaml",
                   "--global-batch", "512", "--seq-len", "256", "--ranks", "64", "--time-limit", "0", "--json", "--out",
                   "plan.yaml"]
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
            # Progress lines go to standard error now and then; wait for the first best plan.
            for line in p.stderr:
                if "best" in line:
                    break
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        found = json.loads(out)
        self.assertFalse(found["complete"])
        self.assertEqual(found["ended"], "it was interrupted")
        self.assertTrue(os.path.exists(os.path.join(self.folder, "plan.yaml")))

    def test_stopped_before_there_is_a_plan(self):
        self.model(num_hidden_layers=16)
        run = ["model/config.json", "--cluster", "configs/clusters/h100-64x8.yaml", "--global-batch", "512", "--seq-len",
               "256", "--ranks", "64"]
        found = json.loads(self.good("plan", *run, "--time-limit", "0.01", "--json"))
        self.assertEqual(found["ended"], "its time is up")
        self.assertGreater(found["best"][0]["step_s"], 0)
        self.assertGreater(found["counts"]["meshes_left"], 0)
        self.assertLessEqual(found["counts"]["meshes_left"], found["counts"]["meshes"])
        self.assertGreater(found["counts"]["left"], 0)
        self.assertGreater(found["counts"]["plans"], found["counts"]["simulated"])
        self.assertLessEqual({"data parallel", "FSDP", "tensor", "pipeline", "pp x tp"},
                             {row["family"] for row in found["families"]})
        untried = [row for row in found["families"] if "step_s" not in row]
        self.assertTrue(untried)
        for row in untried:
            self.assertIn("not tried", row["cause"])
        shown = self.good("plan", *run, "--time-limit", "0.01")
        self.assertRegex(shown, r"of the usual plans left, and all others of \d+ meshes not looked at")
        self.assertRegex(shown, r"\n(FSDP|data parallel|tensor|pipeline|pp x tp) +\d+ plans? not tried, of which")
        self.assertEqual(found["lower_bound_s"], 0)  # there is no bound for plans that were not examined
        for number in (signal.SIGINT, signal.SIGTERM):
            command = [cli_util.HOCKET, "plan", *run, "--time-limit", "0", "--out", "plan.yaml"]
            with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True) as p:
                while p.stderr.readline() == "":  # the search has begun
                    pass
                p.send_signal(number)
                out, err = p.communicate(timeout=120)
            self.assertEqual(p.returncode, 0, err)
            self.assertIn("when it was interrupted", out)
            self.good("check", "plan.yaml")
            os.remove(os.path.join(self.folder, "plan.yaml"))

    def test_the_first_plan_is_no_long_ring(self):
        """Ring attention over 64 ranks makes a long program, even if its estimated step is short."""
        self.model(max_position_embeddings=131072)
        found = json.loads(self.good(
            "plan", "model/config.json", "--cluster", "configs/clusters/h100-64x8.yaml", "--global-batch", "1", "--seq-len",
            "131072", "--ranks", "64", "--threads", "1", "--time-limit", "0.001", "--json"))
        self.assertEqual(found["counts"]["simulated"], 1)
        first = found["best"][0]["set"]
        self.assertTrue(first.get("plan.cp_comm_type") != "p2p" or int(first["plan.cp"]) <= 8, first)

    def test_nothing_fits(self):
        self.model()
        r = self.hocket("plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "16",
                        "--seq-len", "64", "--set", "cluster.memory_budget=64KiB", "--time-limit", "0.01")
        self.assertEqual(r.returncode, 1)
        self.assertIn("nothing is left", r.stderr)
        self.assertRegex(r.stderr, r"try more ranks: parameters and optimizer states alone need at least \d+, of ")
        self.assertNotIn("another batch", r.stderr)
        self.assertNotIn("longer search", r.stderr)

    def test_the_nearest_to_fitting_is_simulated(self):
        """The error names the plan with the least planned memory, and not that with the least bound."""
        self.model()
        search = ["plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "16",
                  "--seq-len", "1024", "--ranks", "2", "--set", "plan.all_reduce=native", "--time-limit", "50"]
        r = self.hocket(*search, "--set", "cluster.memory_budget=450KiB")
        self.assertEqual(r.returncode, 1)
        self.assertIn("no plan of 2 ranks with train.global_batch 16 fits into 450 KiB a rank", r.stderr)
        self.assertIn("try more ranks or another batch", r.stderr)
        nearest = re.search(r"\n  the nearest of the simulated takes ([\d.]+) ([KM])iB: (.*)", r.stderr)
        self.assertTrue(nearest, r.stderr)
        self.assertIn("micro-batches of 1", nearest.group(3))
        self.assertNotIn("at least", r.stderr)
        # With a little more memory than that there is a plan.
        size = float(nearest.group(1)) * (1024 if nearest.group(2) == "K" else 1 << 20)
        self.good(*search, "--set", f"cluster.memory_budget={round(1.2 * size)}")

    def test_output_is_looked_at_before(self):
        self.model()
        run = ["plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "8",
               "--seq-len", "64"]
        self.put("file", "")
        for out in ("none/plan.yaml", "file/plan.yaml", "model"):
            self.refused(f"--out] {out} cannot be written", *run, "--time-limit", "0", "--out", out)
        codecs = ["plan", "codecs", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--set", "plan.dp=4",
                  "--set", "train.global_batch=8", "--set", "train.seq_len=64"]
        self.refused("--out] none/a.yaml cannot be written", *codecs, "--out", "none/a.yaml")
        both = "both go to standard output"
        self.refused(both, *run, "--json", "--out", "-")
        self.refused(both, *run, "--json", "--emit", "megatron")
        self.refused(both, *codecs, "--json", "--out", "-")

    def test_only_what_the_other_trainer_has(self):
        self.model()
        run = ["plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "8",
               "--seq-len", "64", "--ranks", "4", "--set", "plan.micro_batch=1", "--set", "plan.recompute=none"]
        for trainer, name in (("megatron", "again.sh"), ("torchtitan", "again.toml")):
            found = json.loads(self.good(*run, "--emit", trainer, "--out", name, "--json", "--top", "1000"))
            schedules = {plan["set"].get("plan.pp_schedule", "1f1b") for plan in found["best"]}
            self.assertLessEqual(schedules, {"1f1b", "interleaved", "interleaved-overlap"} if trainer == "megatron"
                                 else {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipev"})
            self.good("plan", "convert", "--from", trainer, name, "--set", "model.path=model", "--out", "again.yaml")
        # A pipeline of torchtitan in bf16 has FSDP, and comes back as it was found.
        gpus = ["configs/clusters/h100-64x8.yaml" if word.startswith("configs/clusters/") else word for word in run]
        found = json.loads(self.good(*gpus, "--set", "model.dtype=bf16", "--set", "plan.pp=2", "--set", "plan.tp=1", "--emit",
                                     "torchtitan", "--out", "again.toml", "--json"))
        chosen = {key: value for key, value in found["best"][0]["set"].items() if key.startswith("plan.shard.")}
        self.assertEqual(chosen, {"plan.shard.params": "all", "plan.shard.reshard_after_forward": "false",
                                  "plan.shard.reshard_after_backward": "false"})
        self.assertIn('fsdp_reshard_after_forward = "never"\n', self.read("again.toml"))
        self.good("plan", "convert", "--from", "torchtitan", "again.toml", "--set", "model.path=model", "--out", "again.yaml")
        shard = self.keys("again.yaml")[0]["shard"]
        self.assertEqual([shard[key] for key in ("params", "grads", "reshard_after_forward", "reshard_after_backward")],
                         ["all", "none", False, False])
        # The table of plans goes to standard error, the plan to standard output.
        r = self.hocket(*run, "--emit", "torchtitan")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertTrue(r.stdout.startswith("#"), r.stdout)
        self.assertRegex(r.stderr, "step +interval +compute")
        # Settings that no plan can make expressible are refused before the search.
        self.refused("plan.grad_codec is int8", *run, "--set", "plan.grad_codec=int8", "--emit", "megatron")
        self.refused("which megatron can express", *run, "--set", "plan.pp=2", "--set", "plan.pp_schedule=zb-h1",
                     "--emit", "megatron")
        # Settings that some plans can express restrict the search to them.
        self.good(*run, "--set", "plan.overlap_p2p_comm=true", "--set", "plan.pp_chunks=1", "--set", "plan.dp=2",
                  "--emit", "megatron", "--out", "again.sh")
        self.assertIn("--pipeline-model-parallel-size 1\n", self.read("again.sh"))

    def test_what_is_in_the_way(self):
        self.model()
        self.refused("[h100-64x8] no such file; the clusters that come with Hocket are in "
                     "configs/clusters", "plan", "model/config.json", "--cluster", "h100-64x8", "--global-batch", "8",
                     "--seq-len", "64")
        search = ("plan", "model/config.json", "--cluster", "configs/clusters/box-4x2.yaml", "--global-batch", "20",
                  "--seq-len", "64", "--ranks", "5", "--time-limit", "20")
        self.refused("; without plan.tp=5 there are some", *search, "--set", "plan.tp=5", "--set", "plan.recompute=full")
        self.refused("plan.ranks_per_node is 4; expected 2, as nodes of box-4x2 have devices", *search, "--set",
                     "plan.ranks_per_node=4")


if __name__ == "__main__":
    unittest.main()
