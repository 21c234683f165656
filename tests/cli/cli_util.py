# SPDX-License-Identifier: Apache-2.0
"""A folder in which every printed command can run. It has the repository's configs with a tiny model and a short
training run, a few C++ files as data, and `hocket` on the PATH."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BINARY_DIR = os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build"))
HOCKET = os.path.join(BINARY_DIR, "hocket")
sys.path.insert(0, os.path.join(ROOT, "tools"))

TINY = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 4096,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "hidden_act": "silu",
}


def children(pid):
    """Returns the processes that a process started and that have not been reaped; none once it has ended."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
            return [int(child) for child in f.read().split()]
    except OSError:
        return []


class Sandbox:
    """A folder for commands. Its configs are the repository's, with tiny sizes."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(os.path.join(ROOT, "configs"), os.path.join(folder, "configs"))
        with open(self.path("configs/models/quickstart/config.json"), "w", encoding="utf-8") as f:
            json.dump(TINY, f)
        path = self.path("configs/quickstart.yaml")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for key, value in {"minutes": "0\n  steps: 6", "seq_len": "32",
                           "eval_every": "4", "eval_sequences": "4", "warmup_steps": "2",
                           "valid_fraction": "0.4"}.items():
            text, n = re.subn(rf"^(\s+{key}):.*$", rf"\1: {value}", text, flags=re.M)
            assert n == 1, f"configs/quickstart.yaml: {n} lines for {key}"
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.makedirs(self.path("include"))
        for name in ("base", "graph", "program", "check", "cost"):
            for header in sorted(os.listdir(os.path.join(ROOT, "src", name))):
                if header.endswith(".h"):
                    shutil.copy(os.path.join(ROOT, "src", name, header), self.path(f"include/{name}_{header}"))
        with open(self.path("ids.json"), "w", encoding="utf-8") as f:
            json.dump([[1, 2, 3, 4, 5], [7, 8], [300, 20, 11]], f)
        os.makedirs(self.path("bin"))
        os.makedirs(self.path("build"))
        for name in ("bin/hocket", "build/hocket"):
            os.symlink(HOCKET, self.path(name))
        os.symlink(os.path.join(ROOT, "docs"), self.path("docs"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def environment(self):
        return dict(os.environ, PATH=self.path("bin") + ":" + os.environ["PATH"])

    def shell(self, command, timeout=240):
        """Runs a command line as printed; the compiler's headers become the sandbox's."""
        return subprocess.run(["bash", "-c", "set -o pipefail; " + command.replace("/usr/include/c++", "include")],
                              cwd=self.folder, env=self.environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=timeout, stdin=subprocess.DEVNULL)

    def run(self, *words, **more):
        return subprocess.run([HOCKET, *words], cwd=self.folder, env=self.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              timeout=240, **{"stdin": subprocess.DEVNULL, **more})

    def good(self, *words, **more):
        r = self.run(*words, **more)
        assert r.returncode == 0, f"hocket {' '.join(words)}: exit code {r.returncode}\n{r.stderr}"
        return r.stdout

    def prepare(self):
        self.good("data", "train-tokenizer", "configs/quickstart.yaml", "--files", "include/**")
        self.good("data", "prepare", "configs/quickstart.yaml", "--files", "include/**")

    def threads_cluster(self):
        """Writes a cluster file of another computer whose ranks are threads; returns its name."""
        with open(self.path("configs/clusters/local.yaml"), encoding="utf-8") as f:
            text = f.read()
        there, n = re.subn(r"^this_machine: true$", "cores_per_node: 4", text, flags=re.M)
        there, m = re.subn(r"^device:$", "device:\n  memory: {value: 64GiB, source: made up}", there, flags=re.M)
        assert n == m == 1, text
        with open(self.path("threads.yaml"), "w", encoding="utf-8") as f:
            f.write(there)
        return "threads.yaml"

    def train(self, *more):
        return self.good("train", "configs/quickstart.yaml", *more)


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)}."""
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in header.items()}


def floats(tensor):
    dtype, _, data = tensor
    return struct.unpack(f"<{len(data) // (8 if dtype == 'F64' else 4)}{'d' if dtype == 'F64' else 'f'}", data)
