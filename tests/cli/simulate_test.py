#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Tests `hocket simulate` on runs and models: figures, notes, pages, budgets, profiles, many ranks."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import cli_util
from cli_util import HOCKET, Sandbox

PLAN = ["--set", "plan.pp=2", "--set", "plan.dp=2", "--set", "plan.ep=2", "--set", "plan.micro_batch=1"]


class Simulate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.box = Sandbox(cls.tmp.name)

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def refused(self, words, *expected, code=2):
        r = self.box.run(*words)
        self.assertEqual(code, r.returncode, r.stderr)
        self.assertNotIn("internal error", r.stderr)
        for text in expected:
            self.assertIn(text, r.stderr)
        return r

    def test_simulate(self):
        text = self.box.good("simulate", "configs/models/quickstart")
        self.assertIn("uncalibrated", text)
        self.assertEqual(text.split("\n")[1:],
                         self.box.good("simulate", "configs/models/quickstart/config.json").split("\n")[1:])
        j = json.loads(self.box.good("simulate", "configs/quickstart.yaml", *PLAN, "--json", "--trace", "t.json"))
        self.assertGreater(j["step_s"], 0)
        with open(self.box.path("t.json"), encoding="utf-8") as f:
            self.assertGreater(len(json.load(f)["traceEvents"]), 100)
        self.assertEqual(self.box.good("simulate", "configs/quickstart.yaml", *PLAN),
                         self.box.good("simulate", "configs/quickstart.yaml", *PLAN))

    def test_simulate_says_where_the_time_goes(self):
        """The four parts sum to the step, in nanoseconds, however the ranks are replayed."""
        parts = ("compute_s", "exposed_communication_s", "bubble_s", "idle_s")
        for more in ([], ["--all-ranks"], ["--cluster", "configs/clusters/h100-64x8.yaml"]):
            j = json.loads(self.box.good("simulate", "configs/quickstart.yaml", *PLAN, *more, "--json"))
            for rank in j["breakdown"]:
                self.assertEqual(j["step_ns"], sum(round(rank[part] * 1e9) for part in parts), more)
                self.assertGreater(rank["bubble_s"], 0)
        alone = json.loads(self.box.good("simulate", "configs/quickstart.yaml", "--set", "plan.dp=2", "--json"))
        self.assertEqual([0], [rank["bubble_s"] for rank in alone["breakdown"]])
        self.assertIn(" bubble ", self.box.good("simulate", "configs/quickstart.yaml", *PLAN))

    def test_every_key_of_a_simulation_is_documented(self):
        with open(os.path.join(cli_util.ROOT, "docs", "simulate.md"), encoding="utf-8") as f:
            docs = f.read()

        def keys(value):
            if isinstance(value, list):
                return set().union(*map(keys, value))
            if not isinstance(value, dict):
                return set()
            names = {name for name in value}  # lanes are documented as such
            return names.union(*(keys(v) for k, v in value.items() if k not in ("lanes_s", "bytes_sent")))

        for words in (["configs/quickstart.yaml", *PLAN, "--price", "1", "--what-if", "linear=2", "--set",
                       "cluster.memory_budget=1GiB"],
                      ["op", "all_reduce", "--bytes", "1MiB", "--cluster", "configs/clusters/a100-16x8.yaml"]):
            found = keys(json.loads(self.box.good("simulate", *words, "--json")))
            self.assertGreater(len(found), 6)
            self.assertEqual([], [key for key in sorted(found) if not re.search(rf"[`.]{key}[`.\[]", docs)])

    def test_answers_have_the_interval_of_the_step(self):
        words = ["simulate", "configs/quickstart.yaml", *PLAN, "--what-if", "linear=2"]
        found = json.loads(self.box.good(*words, "--json"))
        answer = found["what_if"][0]
        for end in ("low_s", "high_s"):
            self.assertAlmostEqual(answer["interval"][end] / answer["step_s"], found["interval"][end] / found["step_s"],
                                   delta=1e-4)
        self.assertRegex(self.box.good(*words), r"linear 2 times faster: step time .* %, interval .* to .*\); ")

    def test_a_file_without_shares_has_typical_ones(self):
        """A user's device is no faster than a datasheet file's with the same peaks, and the interval is wide."""
        device = ("name: mine\nnodes: 1\ndevices_per_node: 1\ndevice: {name: GeForce RTX 4090, memory: {value: 24GB}, "
                  "memory_bandwidth: {value: 1008GB/s}, peak: {bf16: {value: 165TFLOP/s}, f32: {value: 82TFLOP/s}}%s}\n")
        shares = ", efficiency: {matmul: {value: 0.57}, attention: {value: 0.22}, memory: {value: 0.3}}"
        found = {}
        for name, more in (("bare", ""), ("given", shares)):
            with open(self.box.path(f"{name}.yaml"), "w", encoding="utf-8") as f:
                f.write(device % more)
            found[name] = json.loads(self.box.good("simulate", "configs/quickstart.yaml", "--cluster", self.box.path(f"{name}.yaml"),
                                                   "--json"))
            self.assertGreaterEqual(found[name]["interval"]["high_s"] / found[name]["step_s"], 2.59)
        self.assertEqual(found["bare"]["step_s"], found["given"]["step_s"])
        note = "efficiency of GeForce RTX 4090 (matmul, attention, memory): typical of datasheet files, as the file gives none"
        self.assertIn(note, found["bare"]["notes"])
        self.assertNotIn(note, found["given"]["notes"])

    def test_kernels_measured_one_by_one_have_an_interval(self):
        said = self.box.good("simulate", "configs/quickstart.yaml", "--cluster", "configs/clusters/h100-pytorch.yaml")
        self.assertIn("(-5 to +20 %: kernels measured one by one; 3.7 % off on 4 steps of H100 in view while the file was made", said)

    def test_a_peak_with_sparsity_is_warned_of(self):
        words = ["simulate", "op", "all_reduce", "--bytes", "1MiB", "--cluster", "configs/clusters/h100-64x8.yaml", "--set"]
        r = self.box.run(*words, "device.peak.bf16.value=1979TFLOP/s")
        self.assertEqual(r.stderr.count("device.peak.bf16 is 1979TFLOP/s, and the datasheet of h100 has 989TFLOP/s"), 1, r.stderr)
        self.assertIn("device.memory_bandwidth is ", self.box.run(*words, "device.memory_bandwidth.value=3.35Tbit/s").stderr)

    def test_simulate_honours_the_memory_budget(self):
        words = ["simulate", "configs/quickstart.yaml", "--cluster", "configs/clusters/a100-16x8.yaml"]
        self.assertIn("  fits in 74 GiB per device, beside a reserve of 6.03 GiB\n", self.box.good(*words))
        small = [*words, "--set", "cluster.memory_budget=1MiB"]
        text = self.box.good(*small)
        self.assertIn("  DOES NOT FIT in 1 MiB per rank (cluster.memory_budget)\n", text)
        self.assertIn("of 1 MiB", text)
        j = json.loads(self.box.good(*small, "--json", "--html", "budget.html"))
        self.assertEqual((2**20, False), (j["memory_budget_bytes"], j["fits"]))
        self.assertEqual(80 * 2**30, j["device_memory_bytes"])
        with open(self.box.path("budget.html"), encoding="utf-8") as f:
            self.assertIn("1 MiB per rank (cluster.memory_budget): DOES NOT FIT", f.read())
        # A budget above the peak memory changes nothing.
        self.assertIn("  fits in 74 GiB per device, beside a reserve of 6.03 GiB\n", self.box.good(*words, "--set", "cluster.memory_budget=1TiB"))

    def test_simulate_names_what_the_critical_path_moves(self):
        """Over slow links, f32 gradient all-reduces form the critical path, each with its parameter, size and group."""
        words = ["simulate", "configs/models/dense-26m", "--set", "plan.dp=16", "--set", "train.global_batch=16",
                 "--set", "train.seq_len=128", "--cluster", "configs/clusters/a100-16x8.yaml"]
        j = json.loads(self.box.good(*words, "--json"))
        sums = [entry for entry in j["critical_path"] if "gradient_of" in entry]
        self.assertTrue(sums, j["critical_path"])
        text = self.box.good(*words)
        for entry in sums:
            self.assertRegex(entry["gradient_of"], r"weight")
            self.assertEqual((entry["group_ranks"], entry["between_nodes"]), (16, True))
            self.assertGreater(entry["bytes"], 1000)
            self.assertIn(f"{entry['longest']}: gradient of {entry['gradient_of']}, ", text)
        self.assertIn(" over 16 ranks between nodes\n", text)
        self.assertNotIn("DOES NOT FIT", text)

    def test_simulate_says_beside_the_step_that_it_does_not_fit(self):
        words = ["simulate", "configs/models/dense-175b", "--set", "plan.dp=8", "--set", "model.dtype=bf16", "--set",
                 "train.seq_len=128", "--set", "train.global_batch=8", "--cluster", "configs/clusters/a100-16x8.yaml"]
        text = self.box.good(*words, "--html", "full.html")
        self.assertRegex(text, r"step time  .*, but it DOES NOT FIT in memory \(below\)\n")
        self.assertIn("  DOES NOT FIT in ", text)
        with open(self.box.path("full.html"), encoding="utf-8") as f:
            self.assertIn('"status":"DOES NOT FIT in memory"', f.read())

    def test_simulate_notes_what_a_reader_must_know(self):
        """Notes include warnings, a node size that differs, and exchanges that selective recomputation repeats."""
        words = ("simulate", "configs/quickstart.yaml", "--cluster", "configs/clusters/box-4x2.yaml", "--set",
                 "plan.dp=4", "--set", "plan.ep=4", "--set", "plan.micro_batch=1", "--set", "plan.ranks_per_node=2",
                 "--set", "data.dir=", "--json")
        def notes(*settings):
            r = self.box.run(*words, *(word for setting in settings for word in ("--set", setting)))
            self.assertEqual(0, r.returncode, r.stderr)
            return "\n".join(json.loads(r.stdout)["notes"]), r.stderr
        quiet, warned = notes()
        self.assertEqual("", warned)
        for part in ("ranks_per_node", "repeats", "max_position", "no effect"):
            self.assertNotIn(part, quiet)
        told, warned = notes("train.seq_len=256", "plan.sequence_parallel=true")
        for text in (told, warned):
            self.assertIn("train.seq_len has 256 tokens, but the model's max_position_embeddings is 128", text)
            self.assertIn("plan.sequence_parallel has no effect: plan.tp is 1", text)
        told, _ = notes("plan.ranks_per_node=1")
        self.assertIn("nodes of 1 rank (plan.ranks_per_node is 1), but those of box-4x2 have 2 devices", told)
        told, _ = notes("plan.recompute=selective")
        self.assertRegex(told, r"plan.recompute: selective repeats dispatch, and with it \d+ all_to_all between nodes")
        told, _ = notes("plan.recompute=selective", "plan.recompute_ops=[cast, rms_norm, rope, swiglu]")
        self.assertNotIn("repeats", told)

    def test_simulate_page_and_price(self):
        words = ["simulate", "configs/quickstart.yaml", *PLAN]
        j = json.loads(self.box.good(*words, "--price", "1.5", "--json", "--html", "page.html"))
        cents = 1.5 * j["ranks"] / 3600 / j["tokens_per_s"] * 1e6
        self.assertAlmostEqual(cents, j["usd_per_million_tokens"], delta=1e-6 * cents)
        with open(self.box.path("page.html"), encoding="utf-8") as f:
            page = f.read()
        data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))
        self.assertTrue(data["simulated"])
        step = data["num"]["predicted_step_s"]
        self.assertAlmostEqual(j["step_s"], step, delta=1e-4 * step)
        self.assertEqual(len(j["breakdown"]), len(data["ranks"]))
        for name, *times in data["ranks"]:
            self.assertAlmostEqual(step, sum(times), delta=1e-4 * step, msg=name)
        self.assertEqual([j["memory"][0]["planned"]], [m["planned"] for m in data["memory"]][:1])
        # Transfer times by kind agree with the JSON's times by lane; neither counts waiting.
        kinds = {kind[0]: kind for kind in data["kinds"]}
        lanes = [rank["lanes_s"].get("intra_rx", 0) for rank in j["breakdown"] for _ in range(rank["stands_for"])]
        self.assertAlmostEqual(sum(lanes) / len(lanes), kinds["recv"][3], delta=1e-3 * step)
        self.assertGreater(kinds["recv"][7], 10 * kinds["recv"][3])
        # The passes of both stages cover the whole step.
        passes = data["timelines"][0]["passes"]
        self.assertEqual(passes["ranks"], passes["shown"])
        names = {kind[0] for kind in passes["types"]}
        self.assertLessEqual({"0F0", "1F0", "0B0", "1B0", "optimizer"}, names)
        ends = [sum(track["e"][0::4]) + sum(track["e"][1::4]) for track in passes["tracks"]]
        self.assertAlmostEqual(step, max(ends) * 1e-9, delta=1e-3 * step)
        self.assertNotIn("million", self.box.good(*words))  # there is no price of a device
        self.assertEqual(page, self.box.good(*words, "--price", "1.5", "--html", "-"))
        self.refused([*words, "--price", "0"], "--price is 0")
        self.refused([*words, "--html", "-", "--json"], "--html - and --json")
        self.refused(["simulate", "schedule", "zb-h1", "--html", "x.html"], "--html")

    def test_simulate_with_the_profile_of_another_device(self):
        """A CPU's timings do not apply to an H100: refused with --profile, ignored with a warning if the run names
        them."""
        with open(self.box.path("cpu.json"), "w", encoding="utf-8") as f:
            json.dump({"format": "hocket-profile-1", "machine": {"cpu": "Z80"}, "tasks": []}, f)
        h100 = ["simulate", "configs/quickstart.yaml", "--cluster", "configs/clusters/h100-64x8.yaml"]
        self.refused([*h100, "--profile", "cpu.json"], "--profile cpu.json was timed on a cpu (Z80)", "H100 SXM5 80GB")
        r = self.box.run(*h100, "--set", "cluster.profile=cpu.json")
        self.assertEqual(0, r.returncode, r.stderr)
        self.assertIn("cluster.profile cpu.json is not used: it was timed on a cpu (Z80)", r.stderr)
        self.assertIn("Predicted step (uncalibrated)", r.stdout)
        self.assertEqual(self.box.good(*h100), r.stdout)

    def test_simulate_with_the_profile_of_another_cpu(self):
        """Another CPU's profile is refused for this machine, and used for a computer that a cluster file describes."""
        with open(self.box.path("cpu.json"), "w", encoding="utf-8") as f:
            json.dump({"format": "hocket-profile-1", "machine": {"cpu": "Z80"}, "tasks": []}, f)
        here = ["simulate", "configs/quickstart.yaml"]
        for cluster in ([], ["--cluster", "configs/clusters/local.yaml"]):
            self.refused([*here, *cluster, "--profile", "cpu.json"], "--profile cpu.json was taken on Z80; this is ")
            r = self.box.run(*here, *cluster, "--set", "cluster.profile=cpu.json")
            self.assertEqual(0, r.returncode, r.stderr)
            self.assertIn("cluster.profile cpu.json is not used: it was taken on Z80; this is ", r.stderr)
            self.assertEqual(self.box.good(*here), r.stdout)
        there = self.box.good(*here, "--cluster", self.box.threads_cluster(), "--profile", "cpu.json")
        self.assertNotIn("uncalibrated", there)

    def test_simulate_512_ranks(self):
        """The shipped configuration: classes share work, so that a large run takes little time."""
        r = subprocess.run([HOCKET, "simulate", "configs/qwen3-30b-a3b.yaml", "--cluster",
                            "configs/clusters/h100-64x8.yaml", "--json"], cwd=cli_util.ROOT, check=True,
                           stdout=subprocess.PIPE, text=True)
        j = json.loads(r.stdout)
        self.assertEqual(512, j["ranks"])
        self.assertEqual(4, j["replayed"]["ranks"])
        self.assertTrue(0.2 < j["mfu"] < 0.7, j["mfu"])
        self.assertTrue(5 < j["step_s"] < 30, j["step_s"])
        self.assertTrue(all(m["planned"] < 80 * 2**30 for m in j["memory"]))


if __name__ == "__main__":
    unittest.main()
