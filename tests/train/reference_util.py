# SPDX-License-Identifier: Apache-2.0
"""References for the tests of training and generation, written independently in fp64: sequences read from the shards by
the formulas of docs/data.md, and both model families in thirty lines of torch. Only the files are shared with the
product."""
import glob
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import cli_util  # pylint: disable=wrong-import-position

DENSE = {"model_type": "llama", "vocab_size": 300, "hidden_size": 20, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 28,
         "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "max_position_embeddings": 64,
         "tie_word_embeddings": True, "hidden_act": "silu"}
MOE = dict(DENSE, model_type="qwen3_moe", tie_word_embeddings=False, num_experts=6,
           num_experts_per_tok=2, moe_intermediate_size=10, norm_topk_prob=True,
           decoder_sparse_step=1, mlp_only_layers=[], router_aux_loss_coef=0.05)


# --- data: docs/data.md, "Shard" and "Sequences"

def mix(x):
    for shift, factor in ((30, 0xbf58476d1ce4e5b9), (27, 0x94d049bb133111eb)):
        x = (x ^ x >> shift) * factor % 2**64
    return x ^ x >> 31


def combine(state, value):
    return mix((state + 0x9e3779b97f4a7c15 + mix(value)) % 2**64)


def permuted(index, size, key):
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    while True:
        left, right = index >> half, index % 2**half
        for round_ in range(4):
            left, right = right, left ^ combine(combine(key, round_), right) % 2**half
        index = left << half | right
        if index < size:
            return index


class Data:
    """The training split of a prepared folder."""

    def __init__(self, folder, seed, length):
        self.seed, self.length = seed, length
        with open(os.path.join(folder, "index.json"), encoding="utf-8") as f:
            self.eos = json.load(f)["tokenizer"]["eos"]
        self.ids, begins = numpy.zeros(0, int), []
        for path in sorted(glob.glob(os.path.join(folder, "train-*.bin"))):
            raw = numpy.fromfile(path, numpy.uint8)
            width, = raw[12:16].view(numpy.uint32)
            _, documents = (int(n) for n in raw[16:32].view(numpy.uint64))
            at, = (int(n) for n in raw[64:72].view(numpy.uint64))
            first = raw[128:128 + 8 * documents].view(numpy.uint64).astype(int)
            begins += list(first + len(self.ids))
            self.ids = numpy.append(self.ids, raw[at:].view({2: numpy.uint16, 4: numpy.uint32}[width]))
        self.begins = set(int(b) for b in begins)

    def sequence(self, index):
        """Returns tokens, targets and positions."""
        total, per_epoch = len(self.ids), len(self.ids) // self.length
        key = combine(self.seed, index // per_epoch)
        offset = combine(key, int.from_bytes(b"offset", "big")) % total
        order = permuted(index % per_epoch, per_epoch, combine(key, int.from_bytes(b"shuffle", "big")))
        at = [(offset + order * self.length + i) % total
              for i in range(-1, self.length)]
        targets = [int(self.ids[i]) for i in at[1:]]
        tokens = [int(self.ids[i]) for i in at[:-1]]
        if at[1] == 0:
            tokens[0] = self.eos
        positions = []
        for i in at[1:]:
            positions.append(0 if i in self.begins or not positions else positions[-1] + 1)
        return tokens, targets, positions


# --- the model

def norm(x, weight, c):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + c["rms_norm_eps"]) * weight


def rotate(x, positions, c):
    half = c["head_dim"] // 2
    angle = positions[:, None] * c["rope_theta"] ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = torch.cos(angle), torch.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def experts(h, w, p, c):
    """Returns the sum of the chosen experts, and the load-balancing loss."""
    e, k = c["num_experts"], c["num_experts_per_tok"]
    probs = torch.softmax(h @ w[p + "gate.weight"].T, -1)
    top, ids = probs.topk(k, -1)
    share = torch.zeros_like(probs).scatter(1, ids, top / top.sum(-1, keepdim=True))
    out = 0
    for i in range(e):
        gate, up, down = (w[f"{p}experts.{i}.{n}_proj.weight"] for n in ("gate", "up", "down"))
        out = out + share[:, i:i + 1] * ((torch.nn.functional.silu(h @ gate.T) * (h @ up.T)) @ down.T)
    chosen = torch.zeros_like(probs).scatter(1, ids, 1.0).mean(0) / k
    return out, e * (chosen * probs.mean(0)).sum()


def forward(w, tokens, positions, c):
    """Returns the logits of tokens in packed documents, which begin at position 0, and the load-balancing loss."""
    document = (positions == 0).cumsum(0)
    seen = (document[:, None] == document) & torch.ones(len(tokens), len(tokens)).tril().bool()
    x, balance = w["model.embed_tokens.weight"][tokens], 0
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        h = norm(x, w[p + "input_layernorm.weight"], c)
        q, k, v = ((h @ w[f"{p}self_attn.{n}_proj.weight"].T).view(len(h), -1, c["head_dim"])
                   for n in "qkv")
        if p + "self_attn.q_norm.weight" in w:
            q, k = (norm(y, w[f"{p}self_attn.{n}_norm.weight"], c) for y, n in ((q, "q"), (k, "k")))
        q, k = (rotate(y.transpose(0, 1), positions, c) for y in (q, k))
        groups = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = (y.repeat_interleave(groups, 0) for y in (k, v.transpose(0, 1)))
        scores = (q @ k.mT / math.sqrt(c["head_dim"])).masked_fill(~seen, -math.inf)
        a = (torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(len(h), -1)
        x = x + a @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"], c)
        if "num_experts" in c:
            y, extra = experts(h, w, p + "mlp.", c)
            balance = balance + extra
        else:
            gate, up, down = (w[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
            y = (torch.nn.functional.silu(h @ gate.T) * (h @ up.T)) @ down.T
        x = x + y
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, w["model.norm.weight"], c) @ head.T, balance


def random_weights(c, seed, scale=0.3):
    """Returns fp32 weights, in the names that transformers 4 saves."""
    gen = torch.Generator().manual_seed(seed)
    d, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    q, kv = (c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (v, d)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
                   p + "self_attn.q_proj.weight": (q, d), p + "self_attn.k_proj.weight": (kv, d),
                   p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, q)}
        mlps = {"mlp.": f}
        if "num_experts" in c:
            shapes |= {p + f"self_attn.{n}_norm.weight": (c["head_dim"],) for n in "qk"}
            shapes[p + "mlp.gate.weight"] = (c["num_experts"], d)
            mlps = {f"mlp.experts.{i}.": c["moe_intermediate_size"] for i in range(c["num_experts"])}
        for m, width in mlps.items():
            shapes |= {p + m + "gate_proj.weight": (width, d), p + m + "up_proj.weight": (width, d),
                       p + m + "down_proj.weight": (d, width)}
    return {n: torch.randn(s, generator=gen) * scale + (len(s) == 1) for n, s in shapes.items()}


# --- adapters: docs/adapters.md, with every matrix apart

RANK, ALPHA = 3, 5


def random_adapter(c, seed, scale=0.3):
    """Returns A and B of every linear layer of the blocks, and of every expert, whose gate and up share A."""
    gen = torch.Generator().manual_seed(seed)
    shapes = {}
    for name, weight in random_weights(c, 0).items():
        if "_proj." not in name:
            continue
        rows, columns = weight.shape
        module = name.removesuffix(".weight")
        shapes[a_of(module)] = (RANK, columns)
        shapes[module + ".lora_B.weight"] = (rows, RANK)
    return {n: torch.randn(s, generator=gen) * scale for n, s in shapes.items()}


def a_of(module):
    """Returns the name of a module's A."""
    if ".experts." in module:
        module = module.replace(".gate_proj", ".gate_up_proj").replace(".up_proj", ".gate_up_proj")
    return module + ".lora_A.weight"


def adapted(base, w):
    """Returns the base's weights with the products of an adapter added."""
    sums = dict(base)
    for name, b in w.items():
        if name.endswith(".lora_B.weight"):
            module = name.removesuffix(".lora_B.weight")
            sums[module + ".weight"] = base[module + ".weight"] + ALPHA / RANK * b @ w[a_of(module)]
    return sums


def peft_tensors(c, w):
    """Returns an adapter as in PEFT's file, where all experts' A are one tensor, and their B another."""
    file = {"base_model.model." + n: t for n, t in w.items() if ".experts." not in n}
    numbers = range(c.get("num_experts", 0))
    for layer in range(c["num_hidden_layers"] if numbers else 0):
        p = f"model.layers.{layer}.mlp.experts."
        for a, bs, outer in (("gate_up_proj", ("gate_proj", "up_proj"), "base_layer."), ("down_proj", ("down_proj",), "")):
            b = torch.stack([torch.cat([w[f"{p}{e}.{n}.lora_B.weight"] for n in bs]) for e in numbers], -1)
            file[f"base_model.model.{p}{outer}lora_A.weight"] = torch.cat([w[f"{p}{e}.{a}.lora_A.weight"] for e in numbers])
            file[f"base_model.model.{p}{outer}lora_B.weight"] = b.flatten(1)
    return file


class Folder(unittest.TestCase):
    """A folder with a small text, its tokenizer and its tokens."""

    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        os.mkdir(cls.path("text"))
        words = ["int", "x", "=", "return", "{", "}", ";\n", "template", "auto", "std", "::"]
        gen = torch.Generator().manual_seed(3)
        for i in range(12):  # documents shorter and longer than a sequence
            picked = torch.randint(len(words), (4 + 9 * i,), generator=gen)
            with open(cls.path(f"text/{i}.txt"), "w", encoding="utf-8") as f:
                f.write(" ".join(words[n] for n in picked))
        with open(cls.path("data.yaml"), "w", encoding="utf-8") as f:
            json.dump({"model": {"config": DENSE},
                       "data": {"files": [cls.path("text/*")], "dir": cls.path("data"),
                                "tokenizer": cls.path("tokenizer"), "vocab_size": 300,
                                "valid_fraction": 0}}, f)
        cls.hocket("data", "train-tokenizer", cls.path("data.yaml"))
        cls.hocket("data", "prepare", cls.path("data.yaml"))

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.tmp.name, name)

    @classmethod
    def hocket(cls, *words):
        """Returns the standard output of a command that succeeds, with bytes that are no UTF-8 replaced."""
        ran = subprocess.run([cli_util.HOCKET, *words], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, check=False)
        said = ran.stderr.decode(errors="replace")
        assert ran.returncode == 0, f"hocket {' '.join(words)}: {ran.returncode}\n{said}"
        return ran.stdout.decode(errors="replace")

    def model(self, name, c, weights):
        """Writes a folder with a config.json and these weights."""
        os.mkdir(self.path(name))
        save_file(weights, self.path(f"{name}/model.safetensors"), {"format": "pt"})
        with open(self.path(f"{name}/config.json"), "w", encoding="utf-8") as f:
            json.dump(c, f)

    def adapter(self, name, c, weights):
        """Writes a folder of PEFT's with this adapter."""
        os.mkdir(self.path(name))
        save_file(peft_tensors(c, weights), self.path(f"{name}/adapter_model.safetensors"), {"format": "pt"})
        parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if "num_experts" in c else None
        with open(self.path(f"{name}/adapter_config.json"), "w", encoding="utf-8") as f:
            json.dump({"peft_type": "LORA", "peft_version": "0.19.0", "r": RANK, "lora_alpha": ALPHA,
                       "target_modules": "all-linear", "target_parameters": parameters}, f)
