#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Hostile inputs: every kind of file and value that `hocket` reads, broken by hand and by seed. For every input, a
command ends in time with exit code 0, 1 or 2: never by a signal, with an internal error, or with a sanitizer's report.

    HOSTILE_SEED=7 HOSTILE_ROUNDS=10 python3 tests/cli/hostile_test.py

tries other inputs, and ten times as many random ones. A failure names its case; the same seed draws it again."""
import concurrent.futures
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

from cli_util import HOCKET, Sandbox

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
ROUNDS = int(os.environ.get("HOSTILE_ROUNDS", "1"))
TIMEOUT_S = 60  # the slowest takes a second, without sanitizers and other load
FORBIDDEN = ("internal error", "This is a bug of hocket", "Sanitizer", "runtime error:", "terminate called")
NUMBERS = (b"0", b"-1", b"1", b"-9223372036854775808", b"9223372036854775807", b"18446744073709551616", b"1e308",
           b"-1e400", b"1e-320", b"0.5", b"4294967296", b"2147483647", b"99999999999999999999999999", b"nan", b"null",
           b"true", b'"x"', b"[]", b"{}", b"[[[[1]]]]")

LLAMA = {"model_type": "llama", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64,
         "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu"}


def damage(data, rng):
    """Makes a few changes to bytes: flips, cuts, doubles, inserts, replaces numbers by numbers."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not data:
            break
        a = rng.randrange(len(data))
        b = min(len(data), a + rng.choice((1, 1, 4, 16, 200)))
        kind = rng.randrange(7)
        if kind == 0:
            data[a] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[a:b]
        elif kind == 2:
            data[b:b] = data[a:b]
        elif kind == 3:
            data[a:a] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 3))))
        elif kind == 4:
            del data[a:]
        else:
            found = list(re.finditer(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?", bytes(data)))
            if found:
                m = rng.choice(found)
                data[m.start():m.end()] = rng.choice(NUMBERS)
    return bytes(data)


def retype(value, rng):
    """Replaces one random value, key or element of a JSON document."""
    places = []

    def walk(v):
        for key in (v if isinstance(v, dict) else range(len(v)) if isinstance(v, list) else ()):
            places.append((v, key))
            walk(v[key])

    value = json.loads(json.dumps(value))
    walk(value)
    holder, key = rng.choice(places)
    what = rng.randrange(4)
    if what == 0 and isinstance(holder, dict):
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder["another"] = holder.pop(key)
    else:
        holder[key] = rng.choice((None, True, -1, 0, 2**63 - 1, -2**63, 2**64, 1e308, 0.5, "", "x" * 3000, "\u0000", [],
                                  {}, [None], {"a": {}}, [[[]]]))
    return value


def deep(opening, closing, levels, inner=""):
    return opening * levels + inner + closing * levels


def safetensors_of(config):
    """Writes a model.safetensors of the right names and shapes."""
    h, f, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = d * config["num_attention_heads"], d * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], h], "model.norm.weight": [h]}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes.update({at + "self_attn.q_proj.weight": [q, h], at + "self_attn.k_proj.weight": [kv, h],
                       at + "self_attn.v_proj.weight": [kv, h], at + "self_attn.o_proj.weight": [h, q],
                       at + "mlp.gate_proj.weight": [f, h], at + "mlp.up_proj.weight": [f, h],
                       at + "mlp.down_proj.weight": [h, f], at + "input_layernorm.weight": [h],
                       at + "post_attention_layernorm.weight": [h]})
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack("<f", 0.01) * (offset // 4)


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"seed {SEED}, {ROUNDS} round{'s' if ROUNDS != 1 else ''}", flush=True)
        cls.tmp = tempfile.TemporaryDirectory()
        cls.box = box = Sandbox(cls.tmp.name)
        box.good("data", "train-tokenizer", "--files", "include/**", "--vocab-size", "300", "--out", "tok")
        box.good("data", "prepare", "--files", "include/**", "--tokenizer", "tok", "--valid-fraction", "0.3", "--out",
                 "shards")
        os.makedirs(box.path("model"))
        cls.put("model/config.json", json.dumps(LLAMA))
        cls.put("model/model.safetensors", safetensors_of(LLAMA))
        shutil.copy(box.path("tok/tokenizer.json"), box.path("model/tokenizer.json"))
        cls.put("small.json", "[[1, 2, 3], [4, 5]]")
        cls.put("text.txt", "int main() { return 0; } // \u00e9\n")
        cls.environment = dict(box.environment())
        cls.environment.setdefault("ASAN_OPTIONS", "exitcode=99")
        cls.environment.setdefault("UBSAN_OPTIONS", "halt_on_error=1:exitcode=99:print_stacktrace=1")

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    @classmethod
    def put(cls, name, data):
        path = cls.box.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
        return name

    def read(self, name):
        with open(self.box.path(name), "rb") as f:
            return f.read()

    def folder(self, original, name, **files):
        """Copies a folder and replaces some of its files."""
        shutil.copytree(self.box.path(original), self.box.path(name))
        for file, data in files.items():
            self.put(f"{name}/{file.replace('__', '.').replace('_DASH_', '-')}", data)
        return name

    def rng(self):
        return random.Random(f"{SEED} {self.id()}")

    def draws(self, count):
        return range(count * ROUNDS)

    def run_one(self, case):
        name, words = case
        try:
            r = subprocess.run([HOCKET, *words], cwd=self.box.folder, env=self.environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"{name}: took more than {TIMEOUT_S} s: {words}"
        text = r.stderr.decode(errors="replace")
        bad = [word for word in FORBIDDEN if word in text]
        if r.returncode in (0, 1, 2) and not bad and (r.returncode == 0 or text.strip() or r.stdout.strip()):
            return None
        return f"{name}: exit code {r.returncode}: hocket {' '.join(w[:100] for w in words)}\n{text[-1500:]}"

    def survive(self, cases):
        """Runs all (name, words) and reports every run that ends badly."""
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            failures = [f for f in pool.map(self.run_one, cases) if f]
        print(f"{self.id().split('.')[-1]}: {len(cases)} inputs, {time.monotonic() - begin:.1f} s", flush=True)
        self.assertEqual([], failures, f"seed {SEED}\n" + "\n".join(failures))

    # ---- configuration ----------------------------------------------------------------------------
    def test_yaml(self):
        rng, good = self.rng(), self.read("configs/quickstart.yaml")
        texts = ["", "\0", "\t", ":", "[", "{", "- - - -", "&a [*a]", "a: &a {b: *a}", "*x", "!!binary x", "? [a]\n: b",
                 "model: 1", "model: []", "train: {steps: 1e400}", "train: {steps: .inf}", "--- 1\n--- 2", "%YAML 9.9\n---",
                 "model:\n\tpath: x", "\ufeffmodel: {}", "a: " + "x" * 100_000, deep("[", "]", 20_000), deep("{a: ", "}", 20_000),
                 "a: " + deep("[", "", 20_000), deep("- ", "", 5_000, "1"), "a: &a [x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n"
                 + "".join(f"{chr(99 + i)}: &{chr(99 + i)} [{','.join(['*' + chr(98 + i)] * 8)}]\n" for i in range(8)),
                 b"\xff\xfe\x00", b"train: {lr: \xc3}", "train: {steps: 0x7fffffffffffffff}", "plan: {passes: {a: b}}"]
        texts += [damage(good, rng) for _ in self.draws(35)]
        self.survive([(f"yaml {i}", ["check", self.put(f"yaml/{i}.yaml", t)]) for i, t in enumerate(texts)])

    def test_set(self):
        rng = self.rng()
        keys = ("train.steps", "train.lr", "train.seq_len", "train.global_batch", "plan.dp", "plan.pp", "plan.ep",
                "plan.micro_batch", "plan.pp_layers", "plan.passes", "plan.moe_chunks", "plan.bucket_mib", "plan.ranks_per_node",
                "plan.threads_per_rank", "model.dtype", "cluster.memory_budget", "plan.timeout_s", "model.path", "output.dir")
        values = [n.decode() for n in NUMBERS] + ["", "'", '"', "[", "{", "[1,2", "~", "80GiB", "-1KiB", "1e999GiB", "\n",
                                                  "a" * 70_000, "[" * 5_000, "{a: " * 3_000, "../../..", "%s%n", "[1]]"]
        words = [f"{rng.choice(keys)}={rng.choice(values)}" for _ in self.draws(45)]
        words += ["=", "==", "a", ".", "..=1", "train..steps=1", "train.steps.x=1", "plan.passes.9=x", "plan.passes.-1=x",
                  "model.config." + ".".join("a" * 60_000)[:120_000] + "=1", ".".join(["a"] * 65) + "=1",
                  "model.config=" + deep("[", "]", 63, "1"), "model.config=" + deep("{a: ", "}", 3_000, "1"), "\u00e9=1"]
        self.survive([(f"set {i}", ["check", "configs/quickstart.yaml", "--set", w]) for i, w in enumerate(words)])

    def test_words(self):
        verbs = ("check", "simulate", "graph", "data", "eval", "generate", "train", "bench", "env", "profile", "help")
        rng, words = self.rng(), []
        for _ in self.draws(30):
            words.append([rng.choice(verbs), *(rng.choice(("--json", "--set", "--out", "-", "--", "--seed", "-1", "", "\n", "x" * 5000,
                                                           "--files", "--rank", "prepare", "stats", "--help", "--dot", "--diff",
                                                           "--ids", "--trace", "--stage", "--no-such")) for _ in range(rng.randrange(5)))])
        self.survive([(f"words {i}", w) for i, w in enumerate(words)])

    def test_schedules(self):
        rng = self.rng()
        pp = ["--set", "plan.pp=2", "--set", "plan.micro_batch=1"]
        good = self.box.good("graph", "configs/quickstart.yaml", *pp, "--stage", "schedule").encode()
        texts = [b"", b",", b"\n\n\n", b"0F0", b"0F0\n0F0\n0F0", b"1F0,1F0\n0F0", b"99999999999F0\n", b"0F-1\n1F0", b"0X0\n1B0",
                 b"0F99999999999999999999\n", b"0F0," * 5_000, good + good, good.replace(b"F", b"W"), b"\xff\xfe", b"0I0,0W0\n1I0,1W0"]
        texts += [damage(good, rng) for _ in self.draws(25)]
        self.survive([(f"schedule {i}", ["check", "configs/quickstart.yaml", *pp, "--set",
                                         "plan.pp_schedule=" + self.put(f"csv/{i}.csv", t)]) for i, t in enumerate(texts)])
        pairs = b"0UNSHARD,0F0,(0F1;0B0)OVERLAP_F_B,0SEND_F0,0B1,0REDUCE_GRAD\n"
        texts += [b"0F1048575,0B1048575\n", b"1048574F0,1048574B0\n0F0,0B0", b"(;)OVERLAP_F_B", b"(0F0;0B1", b"()", b")("]
        texts += [damage(pairs, rng) for _ in self.draws(25)]
        self.survive([(f"schedule alone {i}", ["simulate", "schedule", self.put(f"alone/{i}.csv", t)]) for i, t in enumerate(texts)])
        costs = ["", ",", "F", "F=", "F=1,F=2", "F=-1", "F=nan", "F=inf", "F=1e300", "comm=1,,B=2", "F=0,I=0,W=0"]
        self.survive([(f"costs {c}", ["simulate", "schedule", "1f1b", "--cost", c]) for c in costs])

    # ---- inputs of predictions --------------------------------------------------------------------
    def test_clusters(self):
        rng = self.rng()
        cases = [b"", b"nodes: 99999999999", b"nodes: -1", b"device: {memory: 0GiB}", b"name: x"]
        for file in ("configs/clusters/local.yaml", "configs/clusters/h100-64x8.yaml"):
            cases += [damage(self.read(file), rng) for _ in self.draws(20)]
        self.survive([(f"cluster {i}", ["simulate", "configs/models/quickstart", "--cluster", self.put(f"clusters/{i}.yaml", t)])
                      for i, t in enumerate(cases)])

    def test_comm_logs(self):
        rng = self.rng()
        head = "# nThread 1 nGpus 2 minBytes 8\n#  Rank 0 Pid 1 on a device 0 [0x00] A100\n#  Rank 1 Pid 1 on a device 1 [0x00] A100\n"
        log = (head + "".join(f"{2 ** p} {2 ** p // 4} float sum {9 + p} 1 1 0 {8 + p} 1 1 0\n" for p in range(3, 31))).encode()
        table = (",time_stats.all_reduce.median,num_workers,size,collective,devices_per_node\n"
                 + "".join(f"{i},0.0{i + 1},{2 ** (i % 4 + 1)},{4096 << i},all_reduce,{i % 3 + 1}\n" for i in range(9))).encode()
        texts = [b"", b"#", b"time_stats.", b"\xff" * 99, head.encode(), head.encode() + b"1 1 float 1 1 1 1\n",
                 head.encode() + b"99999999999999999999 1 float sum 1 1 1 1 1 1 1 1\n", log.replace(b"float", b"float float"),
                 log.replace(b" 1 1 0\n", b" nan inf 0\n"), log * 50, table * 3]
        texts += [damage(text, rng) for text in (log, table) for _ in self.draws(20)]
        self.survive([(f"log {i}", ["profile", "--import", self.put(f"logs/{i}.log", t), "--out", "imported.yaml"])
                      for i, t in enumerate(texts)])
        sizes = ["", ",", "1MiB..", "..", "1..1e15", "-1", "nan", "1MiB,x", "1e30", "1GB/s"]
        self.survive([(f"sizes {s}", ["simulate", "op", "all_reduce", "--bytes", s, "--cluster", "configs/clusters/h100-64x8.yaml"])
                      for s in sizes])

    def test_profiles(self):
        rng = self.rng()
        # Some of the model's tasks, at other sizes, so that all others are interpolated.
        program = self.box.good("graph", "configs/models/quickstart")
        ops = sorted({line.split()[2].split("{")[0] for line in program.split("\n") if line.startswith("kind ")})
        good = {"format": "hocket-profile-1", "machine": {"cpu": "x"}, "cores": 2, "threads": 1, "task_overhead_ns": 800,
                "memory_bytes_per_s": 9e9, "peak_flops": {"f32": 5e10}, "links": {"intra": {"latency_ns": 900.0, "bytes_per_s": 4e9}},
                "tasks": [{"kind": f"{op} {i}", "op": op, "dtype": "f32", "flops": 1e6 * i, "bytes": 4096 * i, "ns": 5000 * i,
                           "spread": 0.1} for op in ops for i in (1, 5, 40)]}
        biggest = 2**63 - 1
        documents = [{**good, "task_overhead_ns": biggest}, {**good, "memory_bytes_per_s": 1e-300}, {**good, "tasks": []},
                     {**good, "peak_flops": {"f32": 1e-300}}, {**good, "links": {"intra": {"latency_ns": 1e300, "bytes_per_s": 1e-300}}},
                     {**good, "tasks": [{**t, "ns": biggest} for t in good["tasks"]]}, {**good, "cores": biggest, "threads": biggest},
                     {**good, "tasks": [{**t, "flops": 1e-300, "bytes": 0, "ns": 10**15} for t in good["tasks"]]},
                     {**good, "tasks": [{**t, "ns": 10**15} for t in good["tasks"]], "task_overhead_ns": 10**15},
                     {**good, "tasks": [{**t, "spread": 1e308} for t in good["tasks"]]}]
        texts = [json.dumps(d) for d in documents] + [json.dumps(retype(good, rng)) for _ in self.draws(20)]
        texts += [damage(json.dumps(good).encode(), rng) for _ in self.draws(15)] + ["", "[", "null", deep("[", "]", 50_000)]
        there = ["--cluster", self.box.threads_cluster()]  # a computer that differs from the profile's
        self.survive([(f"profile {i}", ["simulate", "configs/models/quickstart", "--set", "plan.dp=2", *there, "--profile",
                                        self.put(f"profiles/{i}.json", t)]) for i, t in enumerate(texts)])

    def test_program_texts(self):
        rng, cases = self.rng(), []
        for number, plan in enumerate(([], ["--set", "plan.dp=2", "--set", "plan.ep=2", "--set", "plan.micro_batch=2"],
                                       ["--set", "plan.pp=3"])):
            good = self.box.good("graph", "configs/quickstart.yaml", "--set", "train.seq_len=8", *plan).encode()
            lines = good.split(b"\n")
            for i in self.draws(24):
                text = damage(good, rng)
                if i % 2:
                    text = b"\n".join(rng.sample(lines, 1) + lines[:rng.randrange(len(lines))] + rng.sample(lines, 3) + lines)
                if i % 4 == 0:  # damages numbers where they matter: in a task or buffer, not in the configuration
                    at = rng.choice([k for k, line in enumerate(lines) if line.startswith((b"task", b"buf", b"kind", b"group"))])
                    text = b"\n".join(lines[:at] + [damage(lines[at], rng)] + lines[at + 1:])
                name = self.put(f"programs/{number}-{i}.txt", text)
                cases.append((name, [rng.choice(("check", "simulate")), name]))
        self.survive(cases)

    # ---- models -----------------------------------------------------------------------------------
    def test_model_configs(self):
        rng, cases = self.rng(), []
        moe = json.loads(self.read("configs/models/quickstart/config.json"))
        for i in self.draws(40):
            text = json.dumps(retype(rng.choice((LLAMA, moe)), rng)) if i % 3 else damage(json.dumps(moe).encode(), rng)
            cases.append((f"config {i}", [rng.choice(("check", "simulate")), self.put(f"configs_{i}/config.json", text)]))
        self.survive(cases)

    def test_safetensors(self):
        rng, good = self.rng(), self.read("model/model.safetensors")
        (n,) = struct.unpack("<Q", good[:8])
        header, data = json.loads(good[8:8 + n]), good[8 + n:]

        def packed(text, data=data):
            text = text if isinstance(text, bytes) else json.dumps(text).encode()
            return struct.pack("<Q", len(text)) + text + data

        name = next(iter(header))
        files = [b"", b"\0" * 8, struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 100) + b"{}", packed(b"[]"), packed(b"{}"),
                 packed(deep("[", "]", 30_000).encode()), packed({**header, "x": {"dtype": "F32", "shape": [2**62, 2**62],
                                                                                 "data_offsets": [0, 4]}}),
                 packed({**header, name: {**header[name], "dtype": "I8"}}), packed({**header, name: {**header[name], "shape": [0]}}),
                 packed({**header, "__metadata__": {"step": "x" * 10_000}}), packed(header, data[:-4]), packed(header, data + b"\0")]
        files += [packed(retype(header, rng)) for _ in self.draws(20)] + [damage(good[:8 + n], rng) + data for _ in self.draws(15)]
        self.survive([(f"safetensors {i}", ["eval", self.folder("model", f"weights/{i}", model__safetensors=f), "--ids", "small.json"])
                      for i, f in enumerate(files)])

    def test_gguf(self):
        rng = self.rng()
        self.box.good("checkpoint", "export", "model", "--out", "good.gguf", "--type", "f32")
        good = self.read("good.gguf")
        head = good.rfind(b".weight") + 32
        files = [b"GGUF", good[:24], good[:head], good[:-64], good + b"\0", good.replace(b"llama", b"lamba"),
                 good.replace(b"gpt2", b"bert"), good[:8] + b"\xff" * 16 + good[24:]]
        files += [damage(good[:head], rng) + good[head:] for _ in self.draws(40)]
        words = (["eval", None, "--ids", "small.json"], ["generate", None, "--prompt", "int", "--max-new-tokens", "2"],
                 ["data", "encode", None, "--in", "text.txt"], ["check", None])
        cases = []
        for i, data in enumerate(files):
            name = self.put(f"gguf/{i}.gguf", data)
            cases.append((f"gguf {i}", [name if word is None else word for word in words[i % len(words)]]))
        self.survive(cases)

    def test_ids(self):
        rng = self.rng()
        texts = ["", "[]", "[[]]", "[[1],[]]", "[[-1]]", "[[300]]", "[[1.5]]", "[[18446744073709551615]]", "[[1e2]]", '[["1"]]', "[1]",
                 "{}", "null", "[[null]]", deep("[", "]", 50_000), "[[1]" * 100, "[[" + "1," * 5000 + "1]]"]
        texts += [damage(b"[[1, 2, 3], [4, 5, 299]]", rng) for _ in self.draws(12)]
        self.survive([(f"ids {i}", ["eval", "model", "--ids", self.put(f"ids/{i}.json", t)])
                      for i, t in enumerate(texts)])

    def test_run_files(self):
        """A checkpoint's run.json, in the form of versions without checksums."""
        rng = self.rng()
        sizes = {f: len(self.read(f"model/{f}")) for f in ("config.json", "model.safetensors")}
        good = {"hocket_checkpoint": 1, "step": 4, "seed": 1, "dtype": "f32", "losses": [[1, 5.5], [2, None]], "files": sizes,
                "config": json.dumps({"data": {"dir": "shards"}, "train": {"seq_len": 16, "minutes": 0}}),
                "data": {"fingerprint": "x", "time_s": 1.0, "steps": 4}}
        cases = [json.dumps(retype(good, rng)) for _ in self.draws(25)] + [damage(json.dumps(good).encode(), rng) for _ in self.draws(10)]
        cases += [json.dumps({**good, "config": c}) for c in ("[]", "3", "{", '{"train":3,"data":{"dir":7}}', '{"train":{"seq_len":"x"}}')]
        self.survive([(f"run.json {i}", ["eval", self.folder("model", f"runs_{i}/step-000004", run__json=t)])
                      for i, t in enumerate(cases)])

    # ---- data -------------------------------------------------------------------------------------
    def test_tokenizers(self):
        rng, good = self.rng(), json.loads(self.read("tok/tokenizer.json"))
        texts = [json.dumps(retype(good, rng)) for _ in self.draws(30)]
        texts += [damage(json.dumps(good).encode(), rng) for _ in self.draws(15)]
        texts += ["", "{}", "[]", deep('{"a":', "}", 5_000, "1"), json.dumps({**good, "model": {**good["model"], "vocab": {}}}),
                  json.dumps({**good, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": []}] * 50}}),
                  json.dumps({**good, "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 100}}),
                  json.dumps({**good, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                      {"type": "Split", "pattern": {"Regex": "(((((a*)*)*)*)*)*b"}, "behavior": "Isolated", "invert": False},
                      {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}})]
        self.survive([(f"tokenizer {i}", ["data", "encode", self.put(f"toks/{i}.json", t), "--in", "text.txt"])
                      for i, t in enumerate(texts)])

    def test_decode(self):
        rng = self.rng()
        texts = ["", "[", "[1", "[-1]", "[99999]", "[1e300]", '["a"]', "{}", "[[1]]", "null", "[0.5]", "[18446744073709551616]"]
        texts += [damage(b"[1, 2, 3, 299]", rng) for _ in self.draws(8)]
        cases = [(f"decode {i}", ["data", "decode", "tok", "--in", self.put(f"decode/{i}.json", t)]) for i, t in enumerate(texts)]
        lines = [damage(b'"a"\n"\\u00e9"\n"b\\ud800"\n', rng) for _ in self.draws(8)]
        cases += [(f"encode {i}", ["data", "encode", "tok", "--lines", "--in", self.put(f"encode/{i}.jsonl", t)]) for i, t in enumerate(lines)]
        self.survive(cases)

    def test_shards(self):
        rng, cases = self.rng(), []
        index, shard = json.loads(self.read("shards/index.json")), self.read("shards/train-00000.bin")
        for i in self.draws(25):
            name = self.folder("shards", f"bad_index/{i}", index__json=json.dumps(retype(index, rng)))
            cases.append((name, ["data", "stats", name, "--verify"]))
        for i in self.draws(30):
            # More damage to the header and the index than to the ids.
            part = shard[:400] if i % 3 else shard
            name = self.folder("shards", f"bad_shard/{i}", **{"train_DASH_00000__bin": damage(part, rng) + shard[len(part):]})
            cases.append((name, ["data", "stats", name, "--verify", "--baselines"]))
        self.survive(cases)

    def test_texts(self):
        """Texts for a tokenizer and for prepared data may have any bytes."""
        rng, cases = self.rng(), []
        for i in self.draws(6):
            for k in range(4):
                self.put(f"texts/{i}/{k}.txt", bytes(rng.randrange(1, 256) for _ in range(rng.choice((1, 50, 4000)))))
            cases.append((f"texts {i}", ["data", "train-tokenizer", "--files", f"texts/{i}", "--vocab-size", str(rng.choice((257, 300, 4096))),
                                         "--out", f"texts_tok/{i}", "--valid-fraction", "0"]))
            cases.append((f"prepare {i}", ["data", "prepare", "--files", f"texts/{i}", "--tokenizer", "tok", "--out", f"texts_out/{i}",
                                           "--valid-fraction", rng.choice(("0", "0.5"))]))
        self.survive(cases)


if __name__ == "__main__":
    unittest.main()
