#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: serial
# ctest: slow, without sanitizers
# ctest: timeout=300
"""Training on an emulated device: losses equal those of a run without it, on threads and on processes, lanes are held,
and all measured outputs name the device."""
import gzip, json, os, pathlib, random, shutil, subprocess, tempfile, unittest

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))
HOCKET = BUILD / "hocket"

CONFIG = """
model:
  config: {model_type: llama, vocab_size: 300, hidden_size: 32, num_hidden_layers: 2,
           num_attention_heads: 2, num_key_value_heads: 2, head_dim: 16, intermediate_size: 48,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 256, hidden_act: silu}
data: {files: ["%(dir)s/text/*.txt"], dir: "%(dir)s/data", tokenizer: "%(dir)s/tok", vocab_size: 300,
       valid_fraction: 0.2}
train: {steps: 3, global_batch: 4, seq_len: 16, final_eval_sequences: 2, warmup_steps: 2}
plan: {micro_batch: 1, dp: 2, threads_per_rank: 1, timeout_s: 60}
output: {dir: "%(dir)s/run", baselines: none}
"""
CLUSTER = """
name: slow
nodes: 1
devices_per_node: 2
device: {name: slow one, memory: {value: 1GiB}, memory_bandwidth: {value: 1GB/s}, launch: {value: 500us},
         peak: {f32: {value: 1GFLOP/s}, f64: {value: 1GFLOP/s}},
         efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}}
links: {intra: {latency: {value: 1us}, bandwidth: {value: 1GB/s}},
        inter: {latency: {value: 1us}, bandwidth: {value: 1GB/s}}}
"""


class Timed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp())
        rng = random.Random(5)
        (cls.dir / "text").mkdir()
        words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(200)]
        for i in range(10):
            (cls.dir / f"text/{i}.txt").write_text(" ".join(rng.choices(words, k=400)))
        cls.config = cls.dir / "run.yaml"
        cls.config.write_text(CONFIG % {"dir": cls.dir})
        cls.cluster = cls.dir / "slow.yaml"
        cls.cluster.write_text(CLUSTER)
        for verb in (["train-tokenizer"], ["prepare"]):
            subprocess.run([HOCKET, "data", *verb, cls.config], check=True, stdout=subprocess.DEVNULL)
        cls.plain = cls.losses(cls.train("plain"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)

    @classmethod
    def train(cls, name, *more, launch=()):
        words = [HOCKET, *launch, "train", cls.config, "--set", f"output.dir={cls.dir / name}"]
        for key in more:
            words += ["--set", key]
        ran = subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=ROOT, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        cls.said = ran.stdout
        return cls.dir / name

    @classmethod
    def losses(cls, folder):
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        cls.rows = [row for row in rows if "train/loss" in row]
        return [(row["step"], row["train/loss"], row["train/grad_norm"]) for row in cls.rows]

    def check(self, folder):
        self.assertEqual(self.losses(folder), self.plain)
        self.assertTrue(all(row["device"] == "emulated" for row in self.rows))
        self.assertIn("device   emulated: ", self.said)
        self.assertIn("slow one", self.said)
        # Every task took at least the launch of the emulated device.
        trace = json.loads(gzip.open(folder / "trace.json.gz").read())
        self.assertIn("emulated: ", trace["otherData"]["properties"]["device"])
        durations = [event["dur"] for event in trace["traceEvents"]
                     if event.get("ph") == "X" and event["args"].get("phase") and event["name"].startswith("linear")]
        self.assertGreater(len(durations), 20)
        self.assertGreaterEqual(min(durations), 500)

    def test_threads(self):
        self.check(self.train("threads", f"emulate.cluster={self.cluster}"))

    def test_processes_with_the_bytes_of_longer_sequences(self):
        if not (BUILD / "libhocket_torch.so").exists():
            self.skipTest("this build has no libhocket_torch.so (tools/setup.sh --torch)")
        self.check(self.train("processes", f"emulate.cluster={self.cluster}", "emulate.set=[train.seq_len=64]",
                              launch=["launch", "-n", "2"]))

    def test_refusals(self):
        for key, what in (("emulate.set=[plan.micro_batch=2]", "another program"),
                          ("emulate.cluster=nowhere.yaml", "nowhere.yaml")):
            ran = subprocess.run([HOCKET, "train", self.config, "--set", f"output.dir={self.dir / 'bad'}", "--set",
                                  f"emulate.cluster={self.cluster}", "--set", key], capture_output=True, text=True,
                                 check=False)
            self.assertEqual(ran.returncode, 2, ran.stdout + ran.stderr)
            self.assertIn(what, ran.stderr)


if __name__ == "__main__":
    unittest.main()
