#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Tests the command line: errors and exit codes, check and graph on runs, models and the texts of programs."""
import json
import os
import re
import signal
import stat
import subprocess
import tempfile
import unittest
from unittest import mock

import cli_util
from cli_util import HOCKET, Sandbox

PLAN = ["--set", "plan.pp=2", "--set", "plan.dp=2", "--set", "plan.ep=2", "--set", "plan.micro_batch=1"]


class Cli(unittest.TestCase):
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

    # ---- words ------------------------------------------------------------------------------------
    def test_exit_codes_of_bad_words(self):
        self.refused([], "usage")
        self.refused(["trian"], "did you mean train?")
        self.refused(["--hepl"], "unknown option")
        self.refused(["check"], "RUN is missing")
        self.refused(["check", "configs/quickstart.yaml", "--memory-budegt", "1GiB"], "did you mean --memory-budget?")
        self.refused(["check", "configs/quickstart.yaml", "--memory-budget"], "--memory-budget")
        self.refused(["check", "configs/quickstart.yaml", "--memory-budget", "lots"], "bytes")
        self.refused(["check", "configs/quickstart.yaml", "--mutate", "many"], "--mutate", "integer")
        self.refused(["check", "configs/quickstart.yaml", "--mutate", "-1"], "--mutate is -1; expected 1 to 1000000")
        for size in ("-1", "0", "256", "16777217"):
            self.refused(["data", "train-tokenizer", "--files", "docs", "--out", "tok", "--vocab-size", size],
                         f"--vocab-size is {size}; expected 257 to 16777216")
        self.refused(["check", "a", "b"], "unexpected argument")
        # After "--" nothing is an option; a flag may be repeated; --help overrides the words after it.
        self.refused(["check", "--", "--seed"], "[--seed]")
        self.refused(["env", "--json", "--", "--json"], "unexpected argument '--json'")
        self.assertEqual(self.box.good("env", "--json"), self.box.good("env", "--json", "--json"))
        self.assertIn("usage", self.box.good("env", "word", "--help", "--nonsense"))
        self.refused(["check", "--seed", "1", "--seed", "2", "configs/quickstart.yaml"], "2 times")
        self.refused(["data", "prepaer"], "did you mean prepare?")
        self.refused(["launch", "-n", "1", "--grace", "-1", "env"], "--grace is -1; expected 0 or more seconds")
        self.refused(["simulate", "--json=1", "configs/quickstart.yaml"], "--json")

    def test_help_and_version(self):
        for words in (["--help"], ["-h"], ["help"], ["check", "--help"], ["help", "check"], ["data", "--help"],
                      ["data", "prepare", "-h"]):
            self.assertIn("usage", self.box.good(*words))
        self.assertRegex(self.box.good("--version"), r"^hocket \d+\.\d+")

    # ---- files ------------------------------------------------------------------------------------
    def test_bad_files(self):
        self.refused(["check", "none.yaml"], "none.yaml")
        self.refused(["train", "none.yaml"], "none.yaml")
        self.refused(["train", "configs"], "folder")
        self.refused(["train", "configs/models/quickstart/config.json"], "is a model", "model.path")
        self.refused(["train", "configs/quickstart.yaml", "--set", "data.dir="], "data.dir is missing")
        with open(self.box.path("typo.yaml"), "w", encoding="utf-8") as f:
            f.write("model: {path: configs/models/quickstart}\nplan: {micro_bach: 2}\n")
        self.refused(["check", "typo.yaml"], "typo.yaml:2", "micro_batch")
        with open(self.box.path("bad.txt"), "w", encoding="utf-8") as f:
            f.write("hocket-program 2\nnonsense\n")
        self.refused(["check", "bad.txt"], "line 2")
        self.refused(["graph", "--diff", "bad.txt", "typo.yaml"], "neither")
        self.refused(["check", "configs/quickstart.yaml", "--set", "plan.ep=3"], "ep")
        self.refused(["check", "configs/quickstart.yaml", "--set", "plan.dpp=3"], "dp")
        self.refused(["eval", "nobody/nothing"], "hf download nobody/nothing")
        self.refused(["eval", "configs/models/quickstart"], "safetensors")
        self.refused(["simulate", "configs/quickstart.yaml", "--cluster", "none.yaml"], "none.yaml")
        self.refused(["simulate", "configs/quickstart.yaml", "--profile", "typo.yaml"], "typo.yaml")
        self.refused(["graph", "configs/quickstart.yaml", "--stage", "middle"], "middle")
        self.refused(["graph", "configs/quickstart.yaml", "--passes", "bukket"], "bukket")
        self.refused(["graph", "configs/quickstart.yaml", "--skip", "nothing"], "nothing")
        self.refused(["graph", "configs/quickstart.yaml", "--rank", "7"], "7")
        self.refused(["graph", "configs/quickstart.yaml", "--passes", "none", "--dump-after", "bucket"], "did not run")
        self.refused(["data", "stats", "include"], "include")
        self.refused(["data", "prepare", "--files", "include/**", "--out", "x"], "tokenizer")
        self.refused(["data", "prepare", "--set", "data.dir=x"], "[hocket data prepare] --set needs a RUN")
        for verb in ("train-tokenizer", "prepare"):
            self.refused(["data", verb, "--files", "include/**", "--valid-fraction", "1.5"],
                         f"[hocket data {verb}] --valid-fraction is 1.5; expected 0 to 0.9")
        self.refused(["eval", "x", "--dtype", "int8"], "--dtype is 'int8'; expected f32, f64, bf16, f16")
        headers = ["include/base_file.h", "include/base_log.h", "include/base_json.h"]  # as a shell expands a pattern
        self.refused(["data", "prepare", "--files", *headers], "unexpected argument", "quotes around the pattern")
        self.refused(["data", "prepare", "--files", *headers[:2]], "stands where a run.yaml is expected", "quote it")

    def test_special_tokens_in_files(self):
        self.box.prepare()
        os.makedirs(self.box.path("chats"))
        for i in range(4):
            with open(self.box.path(f"chats/{i}.txt"), "w", encoding="utf-8") as f:
                f.write(f"int {i};<|endoftext|>\n" * 300)
        run = ["configs/quickstart.yaml", "--set", "data.dir=chats_data", "--set", "output.dir=chats_run"]
        prepare = ["data", "prepare", *run, "--files", "chats"]
        self.assertIn("1200 special tokens, taken as such", self.box.good(*prepare))
        self.refused(["train", *run, "--set", "data.split_special_tokens=true"], "was prepared with false")
        text = ["--set", "data.split_special_tokens=true"]
        self.assertIn("1200 special tokens, taken for plain text", self.box.good(*prepare, *text))
        done = self.box.good("train", *run, *text, "--set", "train.steps=1")
        self.assertIn("1200 special tokens in the texts, taken for plain text", done)

    def test_messages_that_name_the_fault(self):
        with open(self.box.path("tab.yaml"), "w", encoding="utf-8") as f:
            f.write("model:\n  path: configs/models/quickstart\ntrain:\n\tsteps: 3\n")
        self.refused(["check", "tab.yaml"], "indented by a tab")
        with open(self.box.path("configs/clusters/h100-64x8.yaml"), encoding="utf-8") as f:
            text = f.read()
        with open(self.box.path("zero.yaml"), "w", encoding="utf-8") as f:
            f.write(text.replace("450GB/s", "0GB/s"))
        self.refused(["simulate", "configs/quickstart.yaml", "--cluster", "zero.yaml"],
                     "links.intra.bandwidth is missing or 0")
        with open(self.box.path("two.csv"), "w", encoding="utf-8") as f:
            f.write("0F0,0B0\n1B0,1F0\n")
        self.refused(["check", "configs/quickstart.yaml", "--set", "plan.pp=2", "--set", "plan.pp_schedule=two.csv"],
                     "[two.csv] row 2")
        self.refused(["generate", "configs/models/quickstart", "--chat", "x", "--split-special-tokens"],
                     "--split-special-tokens does not go with --chat")
        self.refused(["generate", "configs/models/quickstart", "--prompt", "x", "--dtype", "int8"],
                     "[hocket generate] --dtype is 'int8'; expected f32, f64, bf16, f16")
        self.refused(["train", "configs/quickstart.yaml", "--set", "data.dir=nowhere/data"],
                     "[nowhere/data] no such folder in " + os.path.realpath(self.box.folder))
        r = self.box.run("check", "configs/quickstart.yaml", "--set", "train.seq_len=200")
        self.assertIn("train.seq_len has 200 tokens, but the model's max_position_embeddings is 128", r.stderr)

    def test_yaml_that_goes_on_after_its_end(self):
        """yaml-cpp reads these as one empty document after the other."""
        for text in ("[1],2]\n", "{a: 1}, b\n"):
            with open(self.box.path("more.yaml"), "w", encoding="utf-8") as f:
                f.write(text)
            self.refused(["check", "more.yaml"], "more.yaml:1", "more text after the end")
        self.refused(["check", "configs/quickstart.yaml", "--set", 'data.files=["a"],'], "more text after the end")
        self.box.good("graph", "configs/quickstart.yaml", "--out", "good.txt")
        with open(self.box.path("good.txt"), encoding="utf-8") as f:
            text = f.read()
        with open(self.box.path("more.txt"), "w", encoding="utf-8") as f:
            f.write(re.sub(r"^config .*$", "config {a: 1}, b", text, flags=re.M))
        self.refused(["check", "more.txt"], "more.txt: config", "JSON")

    def test_values_without_sense(self):
        def refused(key, *expected):
            self.refused(["check", "configs/quickstart.yaml", "--set", key], *expected)

        refused("output.dir=", "output.dir is empty")
        refused("model.path=", "model has neither path nor config")
        refused("model.config.model_type=llama", "model has both path and config")
        self.refused(["check", "configs/quickstart.yaml", "--set", "model.path=", "--set", "model.init=weights",
                      "--set", "model.config={model_type: llama}"],
                     "model.init is weights, and model.config names no folder")
        refused("model.init=weights", "configs/models/quickstart] no model.safetensors")
        refused("plan.threads_per_rank=100000", "expected from 0 to 1024")
        refused("train.global_batch=4000000000", "1000000000 micro-batches", "with 3 layers", "plan.micro_batch")
        self.refused(["check", "configs/quickstart.yaml", "--set", "plan.dp=65536", "--set", "plan.micro_batch=1",
                      "--set", "train.global_batch=65536"], "65536 ranks are on one node", "plan.ranks_per_node: 8")
        refused("optimizer.beta1=1", "optimizer.beta1", "0.999999")
        for bytes_of_memory in ("-1", "-5GiB", "0", "1e300", "99999999999GiB"):
            refused("cluster.memory_budget=" + bytes_of_memory, "cluster.memory_budget")
            self.refused(["check", "configs/quickstart.yaml", "--memory-budget", bytes_of_memory],
                         "expected 1 byte to 1 EiB")
        for key in ("plan.dp", "plan.pp", "plan.micro_batch", "train.seq_len", "train.global_batch"):
            refused(key + "=4611686018427387904", key)

    def test_memory_of_this_machine(self):
        """A run that needs more memory than this machine has is refused before anything is allocated."""
        self.refused(["profile", "configs/models/qwen3-30b-a3b"], "1 rank on this machine would need", "it has free",
                     "cluster.memory_budget")
        self.refused(["profile", "configs/quickstart.yaml", "--set", "cluster.memory_budget=10KiB"], "10 KiB", "try")

    def test_memory_and_positions_of_verbs_that_execute(self):
        self.box.prepare()
        small = ["--set", "cluster.memory_budget=10KiB"]
        self.refused(["train", "configs/quickstart.yaml", *small], "would need", "10 KiB")
        self.assertFalse(os.path.exists(self.box.path("runs/quickstart/profile.json")))
        r = self.box.run("train", "configs/quickstart.yaml", "--set", "train.steps=1", "--set", "train.seq_len=130")
        self.assertEqual(0, r.returncode, r.stderr)
        self.assertIn("train.seq_len has 130 tokens, but the model's max_position_embeddings is 128", r.stderr)
        with open(self.box.path("long.json"), "w", encoding="utf-8") as f:
            json.dump([[1, 2], [3] * 129], f)
        for verb in (["eval", "runs/quickstart", "--ids", "long.json"],
                     ["generate", "runs/quickstart", "--prompt", "int", "--max-new-tokens", "127", "--max-model-len", "200"]):
            self.refused([*verb, *small], "would need", "10 KiB")
            r = self.box.run(*verb)
            self.assertEqual(0, r.returncode, r.stderr)
            self.assertEqual(1, r.stderr.count("max_position_embeddings is 128"), r.stderr)
        self.assertEqual("", self.box.run("generate", "runs/quickstart", "--max-new-tokens", "9").stderr)

    # ---- configuration ----------------------------------------------------------------------------
    def test_print_config(self):
        text = self.box.good("train", "configs/quickstart.yaml", "--set", "plan.dp=2", "--set",
                             "plan.micro_batch=1", "--print-config")
        self.assertRegex(text, r"dp: 2 +# --set")
        self.assertRegex(text, r"pp: 1 +# default")
        self.assertRegex(text, r"seq_len: 32 +# configs/quickstart.yaml:\d+")
        j = json.loads(self.box.good("train", "configs/quickstart.yaml", "--print-config", "--json"))
        self.assertEqual(32, j["train"]["seq_len"])
        # The printed text is a run.yaml of the same values.
        plain = "\n".join(line.split(" #")[0] for line in text.split("\n"))
        with open(self.box.path("again.yaml"), "w", encoding="utf-8") as f:
            f.write(plain)
        again = self.box.good("train", "again.yaml", "--print-config", "--json")
        first = self.box.good("train", "configs/quickstart.yaml", "--set", "plan.dp=2", "--set",
                              "plan.micro_batch=1", "--print-config", "--json")
        self.assertEqual(json.loads(first), json.loads(again))
        # The dominant memory is printed first.
        r = self.refused(["train", "configs/quickstart.yaml", "--set", "plan.ep=3", "--print-config"],
                         "expected a divisor of plan.dp")
        self.assertRegex(r.stdout, r"ep: 3 +# --set")

    def test_what_a_launcher_says_is_in_the_configuration(self):
        place = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
        words = ["configs/quickstart.yaml", "--set", "train.global_batch=8", "--set", "plan.micro_batch=1"]
        with mock.patch.dict(os.environ, place):
            text = self.box.good("train", *words, "--set", "plan.tp=2", "--print-config")
            program = self.box.good("graph", *words)
        self.assertRegex(text, r"dp: 2 +# launcher")
        self.assertRegex(text, r"ranks_per_node: 2 +# launcher")
        self.assertIn('"dp":4', program)
        # On one node, the program of processes equals that of threads, except for the durations of messages.
        with mock.patch.dict(os.environ, {**place, "LOCAL_WORLD_SIZE": "4"}):
            together = self.box.good("graph", *words)
        alone = self.box.good("graph", *words, "--set", "plan.dp=4", "--set", "plan.ranks=gloo")
        self.assertEqual(alone.replace('"ranks":"gloo"', '"ranks":"auto"'), together)

    def test_keys_that_change_nothing_are_told_once(self):
        r = self.box.run("check", "configs/quickstart.yaml", "--set", "plan.sequence_parallel=true", "--set",
                         "plan.shard.params=all")
        self.assertEqual(0, r.returncode, r.stderr)
        self.assertEqual(["warning: plan.shard has no effect: there is one data-parallel rank (plan.dp x plan.cp)",
                          "warning: plan.sequence_parallel has no effect: plan.tp is 1"], r.stderr.splitlines())

    def test_a_launcher_that_says_what_cannot_be(self):
        two = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
        slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "a"}
        mpirun = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        for place, expected in [({**two, "RANK": "x"}, "RANK=x; expected a number from 0 to 1"),
                                ({**two, "WORLD_SIZE": "abc"}, "WORLD_SIZE=abc"),
                                ({**two, "MASTER_PORT": "0"}, "MASTER_PORT=0"),
                                ({**two, "LOCAL_RANK": "5"}, "LOCAL_RANK=5"),
                                ({**slurm, "SLURM_TASKS_PER_NODE": "1(x2"}, "SLURM_TASKS_PER_NODE=1(x2;"),
                                (mpirun, "MASTER_ADDR is not set")]:
            with self.subTest(place), mock.patch.dict(os.environ, place):
                for verb in ("check", "train"):
                    r = self.refused([verb, "configs/quickstart.yaml"], "[launcher] ", expected)
                    self.assertEqual(1, r.stderr.count("\n"), r.stderr)

    # ---- check ------------------------------------------------------------------------------------
    def test_check(self):
        text = self.box.good("check", "configs/quickstart.yaml", *PLAN)
        self.assertIn("proved", text)
        good = json.loads(self.box.good("check", "configs/quickstart.yaml", *PLAN, "--json"))
        self.assertTrue(good["ok"])
        self.assertEqual(32, len(good["program_hash"]))
        r = self.box.run("check", "configs/quickstart.yaml", *PLAN, "--memory-budget", "100kB", "--json")
        self.assertEqual(2, r.returncode)
        refused = json.loads(r.stdout)
        self.assertFalse(refused["ok"])
        self.assertEqual("memory", refused["problems"][0]["class"])
        self.assertEqual(2, self.box.run("check", "configs/quickstart.yaml", "--set",
                                         "cluster.memory_budget=1kB").returncode)

    def test_advice_is_of_what_dominates_and_not_set_yet(self):
        def advice(*settings, budget="1kB"):
            r = self.box.run("check", "configs/quickstart.yaml", "--memory-budget", budget, "--set", "data.dir=",
                             *(word for setting in settings for word in ("--set", setting)))
            return re.findall(r"change: (.*)", r.stdout)[-1]
        long = ("train.seq_len=4096", "plan.dp=2", "train.global_batch=8")
        end = "; `hocket plan` searches for plans that fit"
        self.assertEqual("activations dominate: set plan.recompute: selective or full, or lower plan.micro_batch, or raise "
                         "plan.pp, plan.cp or plan.tp" + end, advice(*long, "plan.micro_batch=4", budget="5MB"))
        self.assertNotIn("micro_batch", advice(*long, "plan.micro_batch=1", budget="5MB"))
        self.assertIn("set plan.recompute: full,",
                      advice(*long, "plan.micro_batch=1", "plan.recompute=selective", budget="5MB"))
        # Persistent memory must fit, whatever dominates.
        self.assertEqual("parameters and optimizer state alone exceed the budget: set plan.shard.optimizer, or raise plan.ep, "
                         "or raise plan.pp or plan.tp" + end, advice(*long, "plan.micro_batch=4", budget="3MB"))
        short = ("train.seq_len=8", "plan.dp=2", "train.global_batch=4", "plan.micro_batch=1")
        split = (*short, "plan.ep=2", "plan.shard.optimizer=all")
        self.assertEqual("parameters and optimizer state alone exceed the budget: set plan.shard.params, or raise plan.pp or "
                         "plan.tp" + end, advice(*split))
        self.assertIn("parameters and optimizer state dominate: set plan.shard.optimizer", advice(*short, budget="4MB"))
        # Experts are whole on the ranks of tp until plan.etp splits them.
        self.assertIn("or raise plan.etp,", advice(*short, "plan.tp=2"))
        # Every rank has the gradients of all experts.
        r = self.box.run("check", "configs/qwen3-30b-a3b.yaml", "--memory-budget", "80GiB", "--set", "plan.ep=1",
                         "--set", "plan.pp=1", "--set", "plan.dp=512", "--set", "plan.shard.optimizer=all",
                         "--set", "model.dtype=bf16")
        self.assertIn("change: gradients dominate: raise plan.ep, or set plan.shard.grads, or raise plan.pp", r.stdout)

    def test_one_set_of_memory_figures(self):
        """check and simulate report the same memory, equal to the sum of its parts and the smallest budget that
        fits."""
        self.box.prepare()
        words = ("configs/quickstart.yaml", *PLAN)
        checked = json.loads(self.box.good("check", *words, "--json"))["memory"]
        simulated = json.loads(self.box.good("simulate", *words, "--json"))["memory"]
        parts = ("persistent", "inputs_outputs", "step_buffers", "messages", "evaluation")
        self.assertEqual([[m[p] for p in parts] for m in checked], [[m[p] for p in parts] for m in simulated])
        for m in checked:
            self.assertEqual(m["planned"], sum(m[p] for p in parts))
        self.assertGreater(checked[0]["messages"], 0)
        most = max(m["planned"] for m in checked)
        self.box.good("check", *words, "--memory-budget", f"{most}B")
        self.assertIn("1 B more than the budget", self.box.run("check", *words, "--memory-budget", f"{most - 1}B").stdout)
        # The held-out fraction was fixed when the data was prepared.
        later = json.loads(self.box.good("check", *words, "--set", "data.valid_fraction=0", "--json"))["memory"]
        self.assertEqual(checked, later)
        alone = json.loads(self.box.good("check", *words, "--set", "data.dir=", "--json"))["memory"]
        self.assertEqual([m["planned"] - m["evaluation"] for m in checked], [m["planned"] for m in alone])
        for m in alone:
            self.assertEqual(0, m["evaluation"])

    def test_check_takes_the_memory_of_the_cluster(self):
        with open(self.box.path("configs/clusters/h100-64x8.yaml"), encoding="utf-8") as f:
            small = re.sub(r"80GiB", "100kB", re.sub(r"(?m)^  reserve:.*\n(?:    .*\n)*", "", f.read()))
        with open(self.box.path("small.yaml"), "w", encoding="utf-8") as f:
            f.write(small)
        words = ("check", "configs/quickstart.yaml", "--set", "cluster.file=small.yaml")
        for more in ((), ("--memory-budget", "1GiB"), ("--set", "cluster.memory_budget=1GiB")):
            r = self.box.run(*words, *more)
            self.assertEqual(2, r.returncode)
            self.assertIn("memory-budget", r.stdout)
            self.assertIn("device.memory, less its reserve, of small.yaml", r.stdout)
        for file in ("small.yaml", "configs/clusters/local.yaml"):  # which leaves memory to the machine
            r = self.box.run("check", "configs/quickstart.yaml", "--cluster", file, "--memory-budget", "50kB")
            self.assertIn("(--memory-budget)", r.stdout)
        r = self.box.run("check", "configs/quickstart.yaml", "--cluster", "small.yaml")
        self.assertEqual(2, r.returncode)
        self.assertIn("device.memory, less its reserve, of small.yaml", r.stdout)

    def test_check_refuses_a_program_without_a_memory_plan(self):
        text = self.box.good("graph", "configs/quickstart.yaml", *PLAN)
        with open(self.box.path("unplanned.txt"), "w", encoding="utf-8") as f:
            f.write(re.sub(r" (at|ws|arena)=\d+", lambda m: " arena=0" if m[1] == "arena" else "", text))
        for verb in ("check", "train"):
            r = self.box.run(verb, "unplanned.txt")
            self.assertEqual(2, r.returncode)
            if verb == "check":
                self.assertIn("has-plan", r.stdout)
        self.assertIn("no memory plan", self.box.good("simulate", "unplanned.txt"))

    def test_certificate(self):
        def certify(name, *more):
            with open(self.box.path(name), "w", encoding="utf-8") as f:
                f.write(self.box.good("check", "configs/quickstart.yaml", *PLAN, *more, "--json"))
        certify("mine.json")
        self.box.good("check", "configs/quickstart.yaml", *PLAN, "--certificate", "mine.json")
        # The text of the program claims another configuration, for which its tasks are right, too.
        text = self.box.good("graph", "configs/quickstart.yaml", *PLAN)
        self.assertIn('"eps":1e-08', text)
        with open(self.box.path("other.txt"), "w", encoding="utf-8") as f:
            f.write(text.replace('"eps":1e-08', '"eps":2e-08'))
        self.refused(["check", "other.txt", "--certificate", "mine.json"], "the reference graph")
        certify("eps.json", "--set", "optimizer.eps=2e-8")
        self.refused(["check", "configs/quickstart.yaml", *PLAN, "--certificate", "eps.json"],
                     "the reference graph")
        self.refused(["check", "configs/quickstart.yaml", "--certificate", "mine.json"], "the mesh")
        self.refused(["check", "configs/quickstart.yaml", "--certificate", "configs/quickstart.yaml"], "JSON")

    def test_check_refuses_a_broken_program(self):
        text = self.box.good("graph", "configs/quickstart.yaml", *PLAN)
        lines = text.split("\n")
        # Without its reduction, a gradient stays a partial sum.
        cut = next(i for i, x in enumerate(lines) if x.startswith("task ") and " all_reduce " in x and " grad " in x)
        words = lines[cut].split()
        lines[cut] = " ".join("k" + str(next(
            int(x.split()[1][1:]) for x in lines if x.startswith("kind ") and x.split()[2] == words[2]))
            if w.startswith("k") and w[1:].isdigit() else w for w in words if not w.startswith("deps="))
        with open(self.box.path("broken.txt"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        r = self.box.run("check", "broken.txt")
        self.assertEqual(2, r.returncode)
        self.assertIn("change:", r.stdout)

    def test_mutants(self):
        j = json.loads(self.box.good("check", "configs/quickstart.yaml", *PLAN, "--mutate", "12", "--seed", "5",
                                     "--json"))
        self.assertEqual(12, sum(j["total"].values()))
        again = json.loads(self.box.good("check", "configs/quickstart.yaml", *PLAN, "--mutate", "12", "--seed", "5",
                                         "--json"))
        self.assertEqual(j, again)
        table = self.box.good("check", "configs/quickstart.yaml", "--mutate", "3")
        self.assertIn("exact", table)
        self.assertNotIn("tests/", table)

    # ---- the text of a program stands in for the run ------------------------------------------------
    def test_program_text(self):
        self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--out", "p.txt")
        for words in (["check", "--json"], ["simulate"], ["simulate", "--json"],
                      ["simulate", "--cluster", "configs/clusters/h100-64x8.yaml"], ["graph"],
                      ["graph", "--stage", "backward"], ["graph", "--rank", "3", "--dot"]):
            a = self.box.good(words[0], "configs/quickstart.yaml", *PLAN, *words[1:])
            b = self.box.good(words[0], "p.txt", *words[1:])
            if words == ["check", "--json"]:
                a, b = json.loads(a), json.loads(b)
                for verdict in (a, b, a["evaluation"], b["evaluation"]):
                    verdict.pop("seconds")
            self.assertEqual(a, b, words)
        self.refused(["check", "p.txt", "--set", "plan.dp=1"], "--set plan.dp=1 would change the program")
        self.refused(["check", "p.txt", "--set", "train.lrr=1"], "--set train.lrr=1")
        self.box.good("check", "p.txt", "--set", "train.lr=0.1", "--set", "output.dir=elsewhere")
        self.box.good("graph", "configs/quickstart.yaml", "--stage", "graph", "--out", "g.txt")
        self.refused(["check", "g.txt"], "is the text of a graph")

    # ---- simulate ---------------------------------------------------------------------------------
    def test_check_1024_ranks(self):
        for config, mesh in (("moe-671b", "pp 16 x edp 1 x ep 64"),
                             ("moe-671b-fsdp", "pp 16 x edp 2 x ep 4 x tp_ep 8")):
            with self.subTest(config=config):
                r = subprocess.run([HOCKET, "check", f"configs/{config}.yaml", "--json"], cwd=cli_util.ROOT,
                                   check=True, stdout=subprocess.PIPE, text=True)
                j = json.loads(r.stdout)
                self.assertTrue(j["ok"])
                self.assertEqual(mesh, j["mesh"])
                self.assertEqual(16, len(j["memory"]))

    # ---- graph ------------------------------------------------------------------------------------
    def test_graph(self):
        for stage, word in (("graph", "hocket-graph 1"), ("backward", "hocket-graph 1"),
                            ("program", "hocket-program 2")):
            self.assertTrue(self.box.good("graph", "configs/quickstart.yaml", "--stage", stage).startswith(word))
            self.assertTrue(self.box.good("graph", "configs/quickstart.yaml", "--stage", stage, "--dot")
                            .startswith("digraph"))
        self.assertNotIn(" adamw ", self.box.good("graph", "configs/quickstart.yaml", "--stage", "graph"))
        self.assertIn(" adamw ", self.box.good("graph", "configs/quickstart.yaml", "--stage", "backward"))
        self.assertIn("digraph", self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--dot", "--rank", "2"))
        one = self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--rank", "3")
        self.assertEqual(1, one.count("\nclass "))
        self.assertIn("\nclass stage1 ", one)

    def test_graph_refuses_what_it_would_ignore(self):
        def refused(words, *expected):
            self.refused(["graph", "configs/quickstart.yaml", *PLAN, *words], *expected)

        refused(["--dot"], "2 classes of ranks", "--rank R", "0, 2")
        refused(["--stage", "graph", "--dump-after", "bucket"], "expected one of them")
        for words in (["--stage", "graph"], ["--stage", "backward"], ["--stage", "schedule"],
                      ["--dump-after", "recompute"]):
            refused(words + ["--rank", "1"], "has no ranks")
        refused(["--stage", "schedule", "--dot"], "CSV")
        self.refused(["graph", "--diff", "a", "b", "--rank", "1"], "--limit and --out")
        self.box.good("graph", "configs/quickstart.yaml", "--out", "whole.txt")
        for words in (["--check"], ["--times"], ["--skip", "bucket"], ["--passes", "none"]):
            self.refused(["graph", "whole.txt", *words], "a program after its passes", words[0])

    def test_schedule(self):
        """plan.pp_schedule accepts the printed schedule, and PyTorch's form of it."""
        text = self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--stage", "schedule", "--out", "s.csv")
        with open(self.box.path("s.csv"), encoding="utf-8") as f:
            text = f.read()
        self.assertEqual("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", text)
        again = [*PLAN, "--set", "plan.pp_schedule=s.csv"]
        self.assertEqual(text, self.box.good("graph", "configs/quickstart.yaml", *again, "--stage", "schedule"))
        self.box.good("check", "configs/quickstart.yaml", *again)
        chunks = ["--set", "plan.pp=1", "--set", "plan.pp_chunks=3", "--set", "plan.micro_batch=2"]
        around = self.box.good("graph", "configs/quickstart.yaml", *chunks, "--set", "plan.pp_schedule=interleaved",
                               "--stage", "schedule")
        self.assertEqual("0F0,1F0,2F0,2B0,0F1,1B0,1F1,0B0,2F1,2B1,1B1,0B1\n", around)
        with open(self.box.path("i.csv"), "w", encoding="utf-8") as f:
            f.write(around)
        good = self.box.good("check", "configs/quickstart.yaml", *chunks, "--set", "plan.pp_schedule=i.csv")
        self.assertIn("memory of stages 0, 1, 2", good)
        self.refused(["check", "configs/quickstart.yaml", *chunks], "1f1b runs one stage per rank", "interleaved")
        with open(self.box.path("s.csv"), "w", encoding="utf-8") as f:
            f.write("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n")
        self.box.good("check", "configs/quickstart.yaml", *again)
        with open(self.box.path("s.csv"), "w", encoding="utf-8") as f:
            f.write("0F0,,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
        self.refused(["check", "configs/quickstart.yaml", *again], "s.csv] row 1, column 3: 0B0 waits for 1B0 (row 2")

    def test_a_schedule_without_a_model(self):
        shape = ["--ranks", "4", "--micro-batches", "8"]
        made = self.box.good("simulate", "schedule", "zb-h1", *shape, "--out", "zb.csv", "--svg", "zb.svg")
        self.assertIn("bubble   11.1 %", made)
        self.assertIn("wrote zb.csv", made)
        again = json.loads(self.box.good("simulate", "schedule", "zb.csv", "--json"))
        self.assertEqual([27, 4, 24], [again["step"], len(again["ranks"]), len(again["ranks"][0]["cells"])])
        with open(self.box.path("zb.svg"), encoding="utf-8") as f:
            self.assertTrue(f.read().startswith("<svg "))
        # The table of docs/schedules.md.
        with open(os.path.join(cli_util.ROOT, "docs", "schedules.md"), encoding="utf-8") as f:
            rows = re.findall(r"^\| `(\S+)`(?: \(`(--chunks 2)`\))? \| ([\d.]+) % \| ([\d.]+), ([\d.]+) \|$", f.read(), re.M)
        self.assertEqual(8, len(rows))
        for name, chunks, bubble, first, last in rows:
            report = json.loads(self.box.good("simulate", "schedule", name, *shape, *chunks.split(), "--json"))
            live = [float(rank["peak_live"]) for rank in report["ranks"]]
            self.assertEqual((bubble, float(first), float(last)),
                             (f"{100 * report['bubble']:.1f}", live[0], live[-1]), name)
        for words, what in [(["schedule", "2f2b"], "expected 1f1b, gpipe"),
                            (["schedule", "zb.csv", "--ranks", "3"], "zb.csv has 4"),
                            (["schedule", "zb-v", "--chunks", "3"], "zb-v runs 2 stages per rank"),
                            (["schedule", "dualpipev", *shape[:2], "--micro-batches", "4"], "for 8 stages"),
                            (["schedule", "zb-h1", "--cost", "G=1"], "expected F, I, W, B, FB or comm"),
                            (["schedule", "zb-h1", "--cost", "F=1,W=1,F=2"], "got F twice, then as 'F=2'"),
                            (["schedule", "zb.csv", "--out", "zb.csv"], "zb.csv"),
                            (["schedule"], "SCHEDULE is missing"),
                            (["--schedule", "zb-h1"], "try: hocket simulate schedule NAME"),
                            (["--op", "all_reduce"], "try: hocket simulate op NAME"),
                            (["configs/quickstart.yaml", "--ranks", "4"], "unknown option"), ([], "RUN is missing")]:
            self.refused(["simulate", *words], what)

    def test_passes(self):
        text = self.box.good("graph", "--list-passes")
        self.assertIn("recompute", text)
        self.assertIn("bucket", text)
        more = ["--set", "plan.recompute=full"]
        r = self.box.run("graph", "configs/quickstart.yaml", *PLAN, *more, "--check", "--times", "--out", "all.txt")
        self.assertEqual(0, r.returncode, r.stderr)
        # recompute, chunk, lower, bucket, finish
        self.assertEqual(10, r.stderr.count("checked: equal"), r.stderr)
        self.box.good("graph", "configs/quickstart.yaml", *PLAN, *more, "--skip", "recompute,ring_attention,chunk,tiles,bucket,compress,expand", "--out",
                      "skip.txt")
        self.box.good("graph", "configs/quickstart.yaml", *PLAN, *more, "--passes", "none", "--out", "none.txt")
        same = self.box.good("graph", "--diff", "skip.txt", "none.txt")
        self.assertEqual(2, same.count("no difference"), same)
        diff = self.box.good("graph", "--diff", "none.txt", "all.txt")
        self.assertIn("recompute", diff)
        self.assertIn("all_reduce", diff)
        dumped = self.box.good("graph", "configs/quickstart.yaml", *more, "--dump-after", "recompute")
        self.assertIn("recompute=1", dumped)
        with open(self.box.path("dumped.txt"), "w", encoding="utf-8") as f:
            f.write(dumped)
        self.box.good("graph", "configs/quickstart.yaml", "--stage", "backward", "--out", "backward.txt")
        diff = self.box.good("graph", "--diff", "backward.txt", "dumped.txt")
        self.assertIn("recompute", diff)
        self.refused(["graph", "--diff", "backward.txt", "all.txt"], "two of a kind")

    def test_programs_besides_the_training(self):
        text = self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--for", "generate")
        self.assertIn("\nsymbol ", text)
        self.assertEqual(2, text.count("\nclass stage"))
        text = self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--for", "evaluate")
        self.assertNotIn(" adamw ", text)
        self.assertEqual(2, text.count("\nclass stage"))
        for purpose in ("train", "evaluate", "generate"):
            r = self.box.run("graph", "configs/quickstart.yaml", *PLAN, "--for", purpose, "--check", "--out", "p.txt")
            self.assertEqual(0, r.returncode, r.stderr)
            self.assertIn("program     checked: equal", r.stderr)
        self.refused(["graph", "configs/quickstart.yaml", "--for", "evaluation"], "expected one of train, evaluate, gradients")

    def test_templates(self):
        text = self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--stage", "templates")
        self.assertEqual(2, text.count("\nclass stage"))
        one = self.box.good("graph", "configs/quickstart.yaml", *PLAN, "--dump-after", "chunk", "--rank", "1")
        self.assertEqual(1, one.count("\nclass stage"))
        self.refused(["graph", "configs/quickstart.yaml", "--stage", "templates", "--dot"], "a text alone")
        self.refused(["graph", "configs/quickstart.yaml", "--stage", "schedule", "--rank", "0"], "has no ranks")
        self.refused(["graph", "configs/quickstart.yaml", "--stage", "template"], "templates")

    # ---- env, bench -------------------------------------------------------------------------------
    def test_env(self):
        j = json.loads(self.box.good("env", "--json"))
        with open(os.path.join(cli_util.ROOT, "src/models/models.inc"), encoding="utf-8") as families:
            self.assertEqual(re.findall(r"^X\((\w+)\)", families.read(), re.MULTILINE), j["models"])
        self.assertIn("best for this processor", j["kernels"])
        self.assertIn("hocket", self.box.good("env"))

    def test_debug_log(self):
        words = " ".join(["hocket check configs/quickstart.yaml", *PLAN, "--set plan.recompute=full"])
        plain, debug = self.box.shell(words), self.box.shell("HOCKET_LOG=debug " + words)
        self.assertEqual((0, ""), (plain.returncode, plain.stderr))
        self.assertRegex(debug.stderr, r"debug: pass recompute: [\d.]+ [mu]?s")
        self.assertRegex(debug.stderr, r"debug: stage 0: reshard \S+ from .+ to .+")
        lanes = self.box.shell("HOCKET_LOG=debug hocket bench executor --tasks 40").stderr
        self.assertIn("[rank 0] debug: step 1: lane compute ran 40 of 40 tasks in", lanes)
        self.assertIn("expected debug or warning", self.box.shell("HOCKET_LOG=loud hocket env").stderr)

    def test_bench(self):
        j = json.loads(self.box.good("bench", "executor", "--tasks", "2000", "--json"))
        self.assertGreater(j["ns_per_task"], 1)
        j = json.loads(self.box.good("bench", "compile", "--layers", "3", "--micro-batches", "4", "--pp", "2", "--dp",
                                     "2", "--ep", "2", "--moe", "--json"))
        self.assertTrue(j["ok"])
        self.assertIn("lower", j["seconds"])

    # ---- the process ------------------------------------------------------------------------------
    def test_full_disk_and_closed_pipe(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            r = subprocess.run([HOCKET, "graph", "configs/quickstart.yaml"], cwd=self.box.folder, stdout=full,
                               stderr=subprocess.PIPE, text=True)
            self.assertEqual(1, r.returncode)
            self.assertIn("standard output", r.stderr)
            r = subprocess.run([HOCKET, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(1, r.returncode)
        p = subprocess.Popen([HOCKET, "graph", "configs/quickstart.yaml"], cwd=self.box.folder,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, restore_signals=False)
        p.stdout.close()
        self.assertEqual(b"", p.stderr.read())
        p.stderr.close()
        self.assertEqual(-signal.SIGPIPE, p.wait())
        self.assertTrue(os.path.isdir(self.box.folder))

    def test_results_on_standard_output(self):
        """`-` writes a result to standard output; a command's messages about it go to standard error."""
        run = "configs/quickstart.yaml"
        self.assertEqual(self.box.good("graph", run), self.box.good("graph", run, "--out", "-"))
        r = self.box.run("simulate", run, "--trace", "-")
        self.assertEqual(0, r.returncode, r.stderr)
        self.assertIn("traceEvents", json.loads(r.stdout))
        self.assertIn("Predicted step", r.stderr)
        self.refused(["simulate", run, "--trace", "-", "--json"], "both go to standard output")
        self.refused(["data", "prepare", run, "--files", "include/**", "--out", "-"], "expected a folder")
        self.assertEqual([], [name for name in os.listdir(self.box.folder) if name.startswith("-")])

    def test_devices_and_links_stay(self):
        """Results that go into a device, a pipe or a link do not replace it."""
        run, pipe, link = "configs/quickstart.yaml", self.box.path("pipe"), self.box.path("link.txt")
        os.mkfifo(pipe)
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as cat:
            self.box.good("simulate", run, "--trace", "pipe")
            self.assertIn("traceEvents", json.loads(cat.stdout.read()))
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
        os.symlink("configs/kept.txt", link)
        self.box.good("graph", run, "--out", "link.txt")
        self.assertEqual("configs/kept.txt", os.readlink(link))
        with open(self.box.path("configs/kept.txt"), encoding="utf-8") as f:
            self.assertTrue(f.read().startswith("hocket-program"))
        null = self.box.path("null")  # a copy, since the real device is shared
        try:
            os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            open(null, "wb").close()
        except PermissionError:
            self.skipTest("no right to make device nodes")
        self.box.good("simulate", run, "--trace", "null")
        self.assertTrue(stat.S_ISCHR(os.stat(null).st_mode))


if __name__ == "__main__":
    unittest.main()
