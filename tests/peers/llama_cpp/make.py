#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of llama.cpp, which opens the GGUF files that `hocket checkpoint export` writes of tiny models, one of every
architecture: its log probabilities, and a hash of the file (compared in logits_test.py).

Each file is also compared with one that the package gguf writes of the same weights, by the names and rules of
llama.cpp's converter, and opened by transformers, where it reads the architecture. Last, the greedy text of
SmolLM2-135M-Instruct (smollm2.py)."""
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from transformers.utils import logging

import server
import tiny

logging.disable_progress_bar()

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "fixtures")
IDS = [[3, 1, 4, 1, 5], [(7 * i * i + 3 * i) % 256 for i in range(18)], [(11 * i * i + i) % 259 for i in range(33)]]
TOLERANCE = 2e-5  # of the largest logit
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def rope(theta, **scaling):
    return {"rope_type": "default", "rope_theta": theta, **scaling}


MODELS = {
    "llama": ("llama", {}),
    "llama-llama3-tied": ("llama", dict(tie_word_embeddings=True, rope_parameters=LLAMA3)),
    "llama-linear": ("llama", dict(rope_parameters=rope(20000.0, rope_type="linear", factor=2.5), rms_norm_eps=1e-5)),
    "llama-biases": ("llama", dict(attention_bias=True, mlp_bias=True)),
    "mistral": ("mistral", dict(sliding_window=None)),
    "mixtral": ("mixtral", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn-tied": ("qwen2", dict(tie_word_embeddings=True, rope_parameters=YARN, max_position_embeddings=128)),
    "qwen3": ("qwen3", dict(head_dim=16)),
    "qwen3-tied": ("qwen3", dict(head_dim=16, tie_word_embeddings=True)),
    "qwen3moe": ("qwen3_moe", dict(head_dim=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20,
                                   norm_topk_prob=True, mlp_only_layers=[], decoder_sparse_step=1)),
    "olmoe": ("olmoe", dict(num_key_value_heads=4, num_experts=6, num_experts_per_tok=3, norm_topk_prob=False)),
    "gemma3-tied": ("gemma3_text", dict(
        head_dim=16, query_pre_attn_scalar=16, sliding_window=6, num_hidden_layers=6, tie_word_embeddings=True,
        rope_parameters={"full_attention": rope(1000000.0), "sliding_attention": rope(10000.0)})),
    "gemma3-scaled": ("gemma3_text", dict(
        head_dim=16, query_pre_attn_scalar=16, sliding_window=9, num_hidden_layers=4, final_logit_softcapping=2.0,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={"full_attention": rope(1000000.0, rope_type="linear", factor=8.0),
                         "sliding_attention": rope(500.0)})),
}
SIZES = dict(vocab_size=tiny.VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=False,
             bos_token_id=256, eos_token_id=258, pad_token_id=None, rope_parameters=rope(10000.0))
# llama.cpp computes the activation of Gemma from a table of f16.
TOLERANCES = {"gemma3-tied": 2e-3, "gemma3-scaled": 2e-3}
# Norm weights of Gemma have one added; rows of query and key heads of these lie in pairs.
OFFSETS, PAIRED = {"gemma3_text": 1}, ("llama", "mistral", "mixtral")
failed = []


def report(what, worst, most):
    good = worst <= most
    print(f"{'ok    ' if good else 'FAILED'} {what}: {worst:.1e}", flush=True)
    if not good:
        failed.append(what)


def config_of(name):
    family, arguments = MODELS[name]
    return transformers.CONFIG_MAPPING[family](**{**SIZES, **arguments})


def names_and_shapes(config):
    """Names and shapes of the model's own safetensors, and its config.json."""
    extra = {"experts_implementation": "eager"} if getattr(config, "num_experts_per_tok", 0) else {}
    model = transformers.AutoModelForCausalLM.from_config(config, **extra)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            written = json.load(f)
        return {name: list(t.shape) for name, t in load_file(os.path.join(folder, "model.safetensors")).items()}, written


def as_converted(config, folder):
    """Tensors of a folder under the names of llama.cpp, as its converter changes them."""
    architecture = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
                    "qwen3_moe": "qwen3moe", "olmoe": "olmoe", "gemma3_text": "gemma3"}[config.model_type]
    enum = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(enum, config.num_hidden_layers)
    tensors, experts = {}, {}
    for name, tensor in load_file(os.path.join(folder, "model.safetensors")).items():
        values = tensor.numpy()
        if ".experts." in name:
            begin, rest = name.split(".experts.")
            number, kind = rest.split(".", 1)
            experts.setdefault(f"{begin}.experts.{kind}", {})[int(number)] = values
            continue
        tensors[name] = values
    for name, parts in experts.items():
        tensors[name] = np.stack([parts[i] for i in range(len(parts))])
    out = {}
    for name, values in tensors.items():
        if config.model_type in PAIRED and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            shape = values.shape
            values = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        if name.endswith("norm.weight"):
            values = values + np.float32(OFFSETS.get(config.model_type, 0))
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs is None:
            raise RuntimeError(f"package gguf has no name for {name} of {architecture}")
        out[theirs] = values
    return architecture, out


def rewritten(path, architecture, tensors, target):
    """A file of the package gguf: the keys of `path`, and these tensors, in another order."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), kind)
    for name in sorted(tensors):
        writer.add_tensor(name, np.ascontiguousarray(tensors[name]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def opened_by_transformers(config, folder, name):
    """Logits of transformers on a GGUF file, with the keys that it does not take from one; None: not supported."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
    family = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    if family not in GGUF_SUPPORTED_ARCHITECTURES or family in ("mixtral", "mistral"):
        return None  # architecture llama, which it takes for a Llama
    extra = {"experts_implementation": "eager"} if getattr(config, "num_experts_per_tok", 0) else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, config=config, dtype=torch.float32,
                                                              attn_implementation="eager", **extra).double().eval()
    with torch.no_grad():
        return [model(torch.tensor([ids]), use_cache=False).logits[0, -1].tolist() for ids in IDS]


def apart(ours, theirs):
    largest = max(abs(x) for row in ours for x in row)
    return max(abs(a - b) for x, y in zip(ours, theirs) for a, b in zip(x, y)) / largest


def one_model(name):
    config = config_of(name)
    shapes, written = names_and_shapes(config)
    tolerance = TOLERANCES.get(name, TOLERANCE)
    with tempfile.TemporaryDirectory() as top:
        folder, path = os.path.join(top, "hf"), os.path.join(top, "model.gguf")
        tiny.write_folder(folder, written, shapes)
        tiny.hocket("checkpoint", "export", folder, "--out", path, "--type", "f32")
        ours = tiny.logits(path, IDS, top)
        report(f"{name}: logits of the file and of the folder", apart(tiny.logits(folder, IDS, top), ours), 1e-6)
        architecture, converted = as_converted(config, folder)
        stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors if tensor.name != "rope_freqs.weight"}
        same = stored.keys() == converted.keys() and all(np.array_equal(stored[key], converted[key]) for key in stored)
        report(f"{name}: tensors as llama.cpp's converter writes them", 0 if same else 1, 0)
        factors = {t.name: t.data for t in gguf.GGUFReader(path).tensors if t.name == "rope_freqs.weight"}
        rewritten(path, architecture, converted | factors, os.path.join(top, "theirs.gguf"))
        report(f"{name}: a file of the package gguf", apart(ours, tiny.logits(os.path.join(top, "theirs.gguf"), IDS, top)), 0)
        theirs = opened_by_transformers(config, top, "theirs.gguf")
        if theirs is not None:
            report(f"{name}: transformers on that file", apart(ours, theirs), TOLERANCE)
        llama = server.Server(path)
        log_probabilities = [llama.log_probabilities(ids, tiny.VOCABULARY) for ids in IDS]
        report(f"{name}: llama.cpp", apart([tiny.log_softmax(row) for row in ours], log_probabilities), tolerance)
        with open(path, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
    return {"made_with": f"xllamacpp 2026.10.11549, transformers {transformers.__version__}", "config": written,
            "shapes": shapes, "ids": IDS, "sha256": digest, "tolerance": tolerance,
            "log_probabilities": [[round(x, 6) for x in row] for row in log_probabilities]}


def main():
    os.makedirs(FIXTURES, exist_ok=True)
    only = sys.argv[1:] or list(MODELS)
    for name in only:
        with open(os.path.join(FIXTURES, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(one_model(name), f, sort_keys=True, separators=(",", ":"))
            f.write("\n")
    if not sys.argv[1:]:
        failed.extend(["smollm2"] * subprocess.run([sys.executable, os.path.join(HERE, "smollm2.py")], check=False).returncode)
    if failed:
        sys.exit(f"make.py: {len(failed)} failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
