# SPDX-License-Identifier: Apache-2.0
"""A folder for tests of `hocket plan`."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import cli_util

DENSE = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

TORCHTITAN = """
[job]
description = "a job"

[model]
name = "llama3"
flavor = "debugmodel"

[optimizer]
lr = 8e-4

[lr_scheduler]
warmup_steps = 20
min_lr_factor = 0.1

[training]
local_batch_size = 4
global_batch_size = 32
seq_len = 2048
steps = 100
compile = true

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 2
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 1

[activation_checkpoint]
mode = "full"

[quantize.linear.float8]
filter_fqns = [
    "output",
]
"""


class PlanBox(unittest.TestCase):
    def setUp(self):
        box = tempfile.TemporaryDirectory()
        self.addCleanup(box.cleanup)
        self.folder = box.name
        os.symlink(os.path.join(cli_util.ROOT, "configs"), os.path.join(self.folder, "configs"))

    def put(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return name

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as f:
            return f.read()

    def hocket(self, *words):
        return subprocess.run([cli_util.HOCKET, *words], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=300, check=False)

    def good(self, *words):
        r = self.hocket(*words)
        self.assertEqual(r.returncode, 0, f"{words}\n{r.stdout}{r.stderr}")
        return r.stdout

    def refused(self, part, *words):
        r = self.hocket(*words)
        self.assertEqual(r.returncode, 2, f"{words}\n{r.stdout}{r.stderr}")
        self.assertIn(part, r.stderr)

    def model(self, **more):
        return self.put("model/config.json", json.dumps({**DENSE, **more}))

    def keys(self, run):
        """Returns a run's plan and training keys."""
        shown = self.good("graph", run, "--stage", "program")
        config = json.loads(re.search(r"^config (\{.*\})$", shown, re.M).group(1))
        return config["plan"], config["train"]
