#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny random Hugging Face models of odd sizes, with reference logits and gradients, in a folder.

OUT/<name>/           config.json and safetensors as transformers 5 saves them
OUT/<name>-v4/        the same weights beside a config.json as transformers 4 wrote it
OUT/<name>*/ids.json  token lists of different lengths
OUT/<name>*/reference/logits.safetensors   logits.0, logits.1, ... in fp64
OUT/<name>*/reference/grads.safetensors    gradients of sum(NLL) / number of predicted tokens over all lists,
                                           under the names of the model's own safetensors
"""
import argparse
import contextlib
import copy
import json
import os
import random
import re
import shutil
import sys
from unittest import mock

import torch
from safetensors.torch import load_file, save_file
import transformers
from draw_models import draw_model
from hf_parity import relative
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}


def rope(theta, scaling=None):
    return {"rope_theta": theta, **(scaling or {"rope_type": "default"})}


class ParallelLlamaConfig(LlamaConfig):
    model_type = "parallel_llama"


class ParallelLlamaLayer(LlamaDecoderLayer):
    """A layer of the form x + attention(norm(x)) + mlp(norm(x)), which no Llama of transformers has."""

    def __init__(self, config, index):
        super().__init__(config, index)
        del self.post_attention_layernorm

    def forward(self, hidden_states, **kwargs):
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(hidden_states=normed, **kwargs)[0]
        return hidden_states + attended + self.mlp(normed)


class ParallelLlamaForCausalLM(LlamaForCausalLM):
    config_class = ParallelLlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.model.layers = torch.nn.ModuleList(ParallelLlamaLayer(config, i) for i in range(config.num_hidden_layers))


AutoConfig.register("parallel_llama", ParallelLlamaConfig)
AutoModelForCausalLM.register(ParallelLlamaConfig, ParallelLlamaForCausalLM)

PARTIAL = {"rope_type": "default", "partial_rotary_factor": 0.6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 3.0}


def longrope(pairs, theta, original, partial=1.0):
    """Factors that differ by pair, and between the short and the long list."""
    return {"rope_type": "longrope", "rope_theta": theta, "partial_rotary_factor": partial,
            "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
            "long_factor": [1.5 + 0.7 * i for i in range(pairs)], "original_max_position_embeddings": original}


FAMILIES_OF_EXPERTS = ("qwen3_moe", "mixtral", "olmoe")


def classes(family):
    """The configuration and the model of a family in transformers."""
    if family == "parallel_llama":
        return ParallelLlamaConfig, ParallelLlamaForCausalLM
    config = transformers.CONFIG_MAPPING[family]
    return config, transformers.MODEL_FOR_CAUSAL_LM_MAPPING[config]


def extra_arguments(family):
    """Arguments of from_pretrained. torch's grouped_mm refuses odd row strides; only eager attention has soft caps."""
    arguments = {"experts_implementation": "eager"} if family in FAMILIES_OF_EXPERTS else {}
    return {**arguments, **({"attn_implementation": "eager"} if family == "gemma2" else {})}


def new_model(family, config):
    """A model that transformers makes, with the implementations that extra_arguments names."""
    model = classes(family)[1](config).eval()
    for what, which in extra_arguments(family).items():
        getattr(model, f"set_{what}")(which)
    return model


@contextlib.contextmanager
def fp64_alone():
    """transformers names fp32 for norms, softmaxes and rotary tables whatever the type of a model; here it gets fp64."""
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch, "float", torch.float64), \
                mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def exact(family, model):
    """The same model in fp64; run it under fp64_alone()."""
    with fp64_alone():
        twin = new_model(family, copy.deepcopy(model.config)).double()
        twin.load_state_dict(model.state_dict())
    return twin


# Largest relative rounding in the fp32 of transformers itself. Beyond it rounding and a fault in ours look alike.
MAX_ROUNDING = 5e-6

# name -> (family, arguments of its config, extra). Sizes are odd on purpose: no power of two, no common divisors.
MODELS = {
    "llama-gqa": ("llama", dict(
        vocab_size=98, hidden_size=36, intermediate_size=58, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=6, rope_parameters=rope(10000.0)), {}),
    "llama-tied": ("llama", dict(
        vocab_size=131, hidden_size=40, intermediate_size=51, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, rope_parameters=rope(500000.0), tie_word_embeddings=True), {}),
    "llama-headdim": ("llama", dict(
        vocab_size=113, hidden_size=42, intermediate_size=75, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, head_dim=18, rms_norm_eps=1e-5, rope_parameters=rope(7777.0)), {"single": True}),
    "llama-llama3": ("llama", dict(
        vocab_size=89, hidden_size=48, intermediate_size=66, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=64, tie_word_embeddings=True,
        rope_parameters=rope(10000.0, LLAMA3)), {"shards": "40KB"}),
    "llama-parallel": ("parallel_llama", dict(
        vocab_size=104, hidden_size=40, intermediate_size=62, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, rope_parameters=rope(10000.0)), {}),
    "mistral-window": ("mistral", dict(
        vocab_size=94, hidden_size=36, intermediate_size=54, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, head_dim=6, sliding_window=6, rope_parameters=rope(10000.0)), {}),
    "moe-top2": ("qwen3_moe", dict(
        vocab_size=102, hidden_size=36, intermediate_size=50, moe_intermediate_size=22, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=10, num_experts=6, num_experts_per_tok=2,
        norm_topk_prob=True, rope_parameters=rope(10000.0)), {}),
    "moe-top1-tied": ("qwen3_moe", dict(
        vocab_size=79, hidden_size=30, intermediate_size=44, moe_intermediate_size=17, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=3, head_dim=14, num_experts=10, num_experts_per_tok=1,
        norm_topk_prob=False, tie_word_embeddings=True, rope_parameters=rope(1000000.0)), {"single": True}),
    "moe-top3-mixed": ("qwen3_moe", dict(
        vocab_size=108, hidden_size=44, intermediate_size=61, moe_intermediate_size=26, num_hidden_layers=5,
        num_attention_heads=4, num_key_value_heads=1, head_dim=16, num_experts=14, num_experts_per_tok=3,
        norm_topk_prob=False, mlp_only_layers=[3], decoder_sparse_step=2, rope_parameters=rope(20000.0)), {}),
    "moe-odd-experts": ("qwen3_moe", dict(
        vocab_size=93, hidden_size=34, intermediate_size=40, moe_intermediate_size=19, num_hidden_layers=3,
        num_attention_heads=5, num_key_value_heads=5, head_dim=8, num_experts=7, num_experts_per_tok=3,
        norm_topk_prob=True, rms_norm_eps=1e-5, mlp_only_layers=[0], rope_parameters=rope(10000.0)),
        {"shards": "40KB"}),
    "moe-window": ("qwen3_moe", dict(
        vocab_size=96, hidden_size=32, intermediate_size=42, moe_intermediate_size=18, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=10, num_experts=6, num_experts_per_tok=2,
        norm_topk_prob=True, use_sliding_window=True, sliding_window=9, rope_parameters=rope(10000.0)), {}),
    "qwen2-window": ("qwen2", dict(
        vocab_size=106, hidden_size=36, intermediate_size=54, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=6, max_window_layers=2,
        rope_parameters=rope(10000.0)), {}),
    "qwen2-tied": ("qwen2", dict(
        vocab_size=90, hidden_size=30, intermediate_size=46, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=64,
        rope_parameters=rope(10000.0, YARN)), {"shards": "20KB"}),
    "qwen3-window": ("qwen3", dict(
        vocab_size=100, hidden_size=36, intermediate_size=54, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, head_dim=10, use_sliding_window=True, sliding_window=7, max_window_layers=1,
        rope_parameters=rope(10000.0)), {}),
    "qwen3-tied": ("qwen3", dict(
        vocab_size=86, hidden_size=30, intermediate_size=46, num_hidden_layers=3, num_attention_heads=5,
        num_key_value_heads=1, head_dim=8, attention_bias=True, tie_word_embeddings=True,
        rope_parameters=rope(1000000.0)), {}),
    "smollm3": ("smollm3", dict(
        vocab_size=98, hidden_size=36, intermediate_size=54, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=3, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=6,
        rope_parameters=rope(10000.0)), {}),
    "smollm3-untied": ("smollm3", dict(
        vocab_size=92, hidden_size=40, intermediate_size=50, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, no_rope_layers=[1, 0, 0, 1, 1], mlp_bias=True,
        tie_word_embeddings=False, rope_parameters=rope(5000.0)), {}),
    "olmo2": ("olmo2", dict(
        vocab_size=94, hidden_size=36, intermediate_size=50, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=3, rope_parameters=rope(500000.0)), {}),
    "olmo2-tied": ("olmo2", dict(
        vocab_size=88, hidden_size=40, intermediate_size=42, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=True, rope_parameters=rope(10000.0)), {}),
    "phi3": ("phi3", dict(
        vocab_size=102, hidden_size=40, intermediate_size=54, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, rope_parameters=rope(10000.0, PARTIAL)), {"shards": "20KB"}),
    "phi3-longrope": ("phi3", dict(
        vocab_size=96, hidden_size=36, intermediate_size=46, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, sliding_window=9, max_position_embeddings=64,
        original_max_position_embeddings=40, rope_parameters=longrope(3, 10000.0, 40, 0.5)), {}),
    "phi3-longrope-long": ("phi3", dict(
        vocab_size=96, hidden_size=36, intermediate_size=46, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=64,
        original_max_position_embeddings=4, rope_parameters=longrope(6, 10000.0, 4)), {"weights": 0.7}),
    "gemma3": ("gemma3_text", dict(
        vocab_size=100, hidden_size=36, intermediate_size=50, num_hidden_layers=5, num_attention_heads=6,
        num_key_value_heads=2, head_dim=10, query_pre_attn_scalar=17, sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": rope(1000000.0, LINEAR), "sliding_attention": rope(10000.0)}), {}),
    "gemma3-untied": ("gemma3_text", dict(
        vocab_size=92, hidden_size=30, intermediate_size=44, num_hidden_layers=4, num_attention_heads=3,
        num_key_value_heads=1, head_dim=8, query_pre_attn_scalar=8, sliding_window=7, tie_word_embeddings=False,
        sliding_window_pattern=2, final_logit_softcapping=20.0), {}),
    "gemma2": ("gemma2", dict(
        vocab_size=94, hidden_size=36, intermediate_size=50, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, head_dim=10, query_pre_attn_scalar=12, sliding_window=6,
        attn_logit_softcapping=5.0, final_logit_softcapping=8.0), {}),
    "granite": ("granite", dict(
        vocab_size=98, hidden_size=36, intermediate_size=54, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4,
        logits_scaling=2.5, rope_parameters=rope(10000.0)), {}),
    "granite-tied": ("granite", dict(
        vocab_size=84, hidden_size=40, intermediate_size=50, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, embedding_multiplier=6.0, attention_multiplier=0.1, residual_multiplier=0.22,
        logits_scaling=8.0, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        rope_parameters=rope(10000.0)), {}),
    "gpt2": ("gpt2", dict(
        vocab_size=98, n_embd=36, n_layer=4, n_head=6, n_positions=40), {}),
    "gpt2-inner": ("gpt2", dict(
        vocab_size=90, n_embd=40, n_layer=3, n_head=4, n_inner=54, n_positions=34, activation_function="relu"),
        {"shards": "20KB"}),
    "neox": ("gpt_neox", dict(
        vocab_size=98, hidden_size=36, intermediate_size=58, num_hidden_layers=4, num_attention_heads=3,
        rope_parameters=rope(10000.0, {"rope_type": "default", "partial_rotary_factor": 0.34})), {}),
    "neox-sequential": ("gpt_neox", dict(
        vocab_size=92, hidden_size=40, intermediate_size=50, num_hidden_layers=3, num_attention_heads=4,
        use_parallel_residual=False, tie_word_embeddings=True,
        rope_parameters=rope(10000.0, {"rope_type": "default", "partial_rotary_factor": 1.0})), {}),
    "moe-mixtral": ("mixtral", dict(
        vocab_size=100, hidden_size=36, intermediate_size=22, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2, sliding_window=9,
        rope_parameters=rope(1000000.0)), {}),
    "moe-mixtral-tied": ("mixtral", dict(
        vocab_size=88, hidden_size=30, intermediate_size=26, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=True,
        rope_parameters=rope(10000.0)), {"shards": "20KB"}),
    "moe-olmoe": ("olmoe", dict(
        vocab_size=94, hidden_size=36, intermediate_size=20, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
        rope_parameters=rope(10000.0)), {}),
}


def randomise(model, seed, matrices=1.0):
    """Draws weights large enough that every part of the model shows in the logits; norm weights around 1. Smaller matrices
    make scores that a rope scales by much less sharp."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=gen, dtype=torch.float32)
            if name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
                p.copy_((0.0 if "gemma" in model.config.model_type else 1.0) + 0.3 * noise)
            elif any(part in name for part in ("embed_tokens", "lm_head", "wte", "wpe", "embed_in", "embed_out")):
                p.copy_(0.25 * noise)
            elif name.endswith(".bias"):
                p.copy_(0.3 * noise)
            else:
                p.copy_(noise * (matrices * 1.3 / p.shape[-1] ** 0.5))


def run(model, ids):
    """Returns the logits of each list, and the gradients (by parameter name) of the mean next-token loss."""
    model.zero_grad(set_to_none=True)
    logits, total, predicted = [], 0.0, sum(len(s) - 1 for s in ids)
    for s in ids:
        t = torch.tensor([s])
        out = model(input_ids=t, use_cache=False).logits[0]
        logits.append(out.detach())
        if len(s) > 1:
            loss = torch.nn.functional.cross_entropy(out[:-1], t[0, 1:], reduction="sum") / predicted
            loss.backward()
            total += loss.item()
    return logits, total


def routing_margin(model, ids):
    """Returns the smallest gap between the last expert chosen and the first not chosen, over all tokens and layers."""
    gaps = [1.0]

    def hook(module, _, out):
        probs = torch.softmax(out[0].double(), -1).sort(-1, descending=True).values
        if module.top_k < probs.shape[-1]:
            gaps.append((probs[:, module.top_k - 1] - probs[:, module.top_k]).min().item())

    handles = [m.register_forward_hook(hook) for m in model.modules() if hasattr(m, "top_k") and hasattr(m, "weight")]
    with torch.no_grad():
        for s in ids:
            model(input_ids=torch.tensor([s]), use_cache=False)
    for h in handles:
        h.remove()
    return min(gaps)


def load_all(folder):
    """Returns all tensors of a saved model, from one file or several."""
    tensors = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(folder, f)))
    return tensors


def gradients_by_saved_name(model, tmp):
    """Saves a copy of the model whose weights are the gradients: transformers itself maps the names."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    model.save_pretrained(tmp)
    grads = load_all(tmp)
    shutil.rmtree(tmp)
    return grads


def run_both(family, model, ids):
    """Runs a model in fp32 and in fp64. Returns the fp64 twin after its backward pass, its logits and loss, and the worst
    relative difference of fp32 from it."""
    twin = exact(family, model)
    with fp64_alone():
        logits, loss = run(twin, ids)
    rounded, _ = run(model, ids)
    pairs = [*zip(rounded, logits)]
    for p, q in zip(model.parameters(), twin.parameters()):
        if q.grad is not None:
            pairs.append((p.grad, q.grad))
    return twin, logits, loss, max(max(relative(got, want)) for got, want in pairs)


def v4_config(folder, config):
    """Returns the config.json of the same model as transformers 4 wrote it; keys that it could leave out are left
    out."""
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    params = c.pop("rope_parameters", None)
    if config.model_type == "gemma3_text":
        c["rope_local_base_freq"] = params["sliding_attention"].pop("rope_theta")
        params = params["full_attention"]
    if config.model_type == "gpt_neox":
        c["rotary_emb_base"], c["rotary_pct"] = params.pop("rope_theta"), params.pop("partial_rotary_factor")
    if params is not None:
        if "rope_theta" in params:
            c["rope_theta"] = params.pop("rope_theta")
        if config.model_type == "phi3":
            c["partial_rotary_factor"] = params.pop("partial_rotary_factor", 1.0)
        c["rope_scaling"] = None if params["rope_type"] == "default" else params
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.51.0"
    if "num_local_experts" in c and config.model_type == "qwen3_moe":
        c["num_experts"] = c.pop("num_local_experts")
    elif config.model_type.endswith(("llama", "mistral")) and c["head_dim"] * config.num_attention_heads == config.hidden_size:
        del c["head_dim"]
        if config.num_key_value_heads == config.num_attention_heads:
            del c["num_key_value_heads"]
    return c


class Unclear(Exception):
    """No weights of a model that rounding leaves as they are."""


def make(name, model, out, seed):
    """Writes a model of MODELS, or one like these."""
    family, kwargs, extra = model
    config = classes(family)[0](**{"pad_token_id": None, **kwargs}, bos_token_id=None, eos_token_id=None)
    gen = torch.Generator().manual_seed(seed)
    lengths = [7, 13, 33, 5, 21] + ([1] if extra.get("single") else [])
    ids = [torch.randint(0, config.vocab_size, (n,), generator=gen).tolist() for n in lengths]
    model = new_model(family, config)
    for attempt in range(50):
        randomise(model, seed + attempt, extra.get("weights", 1.0))
        # fp32 must not be able to choose another expert than fp64; and transformers' own fp32 must keep the tolerance.
        if routing_margin(model, ids) > 1e-4:
            twin, logits, loss, rounding = run_both(family, model, ids)
            if rounding < MAX_ROUNDING:
                break
    else:
        raise Unclear(f"no seed gives {name} a clear routing and small errors of rounding")
    folder = os.path.join(out, name)
    model.save_pretrained(folder, **({"max_shard_size": extra["shards"]} if "shards" in extra else {}))
    grads = gradients_by_saved_name(twin, os.path.join(out, "tmp"))
    saved = load_all(folder)
    assert grads.keys() == saved.keys() and all(grads[k].shape == saved[k].shape for k in saved), name
    with open(os.path.join(folder, "ids.json"), "w") as f:
        json.dump(ids, f)
    os.mkdir(os.path.join(folder, "reference"))
    save_file({f"logits.{i}": x.contiguous() for i, x in enumerate(logits)},
              os.path.join(folder, "reference", "logits.safetensors"))
    save_file(grads, os.path.join(folder, "reference", "grads.safetensors"))
    with open(os.path.join(folder, "reference", "loss.json"), "w") as f:
        json.dump({"loss": loss, "predicted_tokens": sum(len(s) - 1 for s in ids)}, f)
    return folder, config, ids, logits


def make_v4(family, folder, config, ids, logits):
    """Writes the same model as transformers 4 did."""
    old = folder + "-v4"
    v4 = v4_config(folder, config)
    shutil.copytree(folder, old)
    with open(os.path.join(old, "config.json"), "w") as f:
        json.dump(v4, f, indent=2)
    again = AutoModelForCausalLM.from_pretrained(old, dtype=torch.float32, **extra_arguments(family)).eval()
    with torch.no_grad():
        for s, want in zip(ids, logits):
            got = again(input_ids=torch.tensor([s]), use_cache=False).logits[0]
            assert torch.allclose(got.double(), want, rtol=1e-3, atol=1e-3), f"{old} differs from {folder}"
    return old


def families_of_hocket():
    inc = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "models", "models.inc")
    with open(inc, encoding="utf-8") as f:
        return re.findall(r"^X\((\w+)\)", f.read(), re.M)


def main():
    missing = set(families_of_hocket()) - {family for family, *_ in MODELS.values()}
    if missing:
        sys.exit(f"make_models.py: no model of {', '.join(sorted(missing))}; expected one of every family of models.inc")
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", help="folder to write into (made if absent)")
    ap.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS), metavar="NAME")
    ap.add_argument("--random", type=int, default=0, metavar="N", help="N drawn models instead (draw_models.py)")
    ap.add_argument("--seed", type=int, default=1234)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for number in range(args.random):
        model = draw_model(random.Random(1000 * args.seed + number), families_of_hocket())
        name = f"{'moe-' if model[0] in FAMILIES_OF_EXPERTS else ''}{model[0]}-{args.seed}-{number}"
        try:
            print(make(name, model, args.out, args.seed)[0], flush=True)
        except (Unclear, ValueError, KeyError, StrictDataclassError) as e:  # or transformers refuses it
            print(f"{name} left out: {model[1]}: {type(e).__name__}: {e}", flush=True)
    for name in args.only if args.random == 0 else []:
        made = make(name, MODELS[name], args.out, args.seed)
        print(made[0], make_v4(MODELS[name][0], *made), sep="\n")


if __name__ == "__main__":
    main()
