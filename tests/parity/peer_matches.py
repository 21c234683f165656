#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that bench/peer_torch.py computes the loss and every gradient of transformers, for both models.

The benchmark models with two layers each; every GEMM library and attention form. `N passed, N failed` at the end.
"""
import argparse
import json
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import peer_ops  # noqa: E402
import peer_torch  # noqa: E402


def pairs(x, heads, d):
    """Returns the rows of a q or k weight, moved from halves (transformers' rotate_half) to adjacent pairs (complex
    RoPE)."""
    return x.view(heads, 2, d // 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)


def peer_name_values(cfg, t):
    """Returns the peer's tensors (weights or gradients) from transformers' parameters t."""
    h, k, d = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"]
    out = {"embed": t["model.embed_tokens.weight"], "norm": t["model.norm.weight"], "head": t["lm_head.weight"]}
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out[f"{i}.norm1"] = t[p + "input_layernorm.weight"]
        out[f"{i}.norm2"] = t[p + "post_attention_layernorm.weight"]
        out[f"{i}.o"] = t[p + "self_attn.o_proj.weight"]
        out[f"{i}.qkv"] = torch.cat((pairs(t[p + "self_attn.q_proj.weight"], h, d),
                                     pairs(t[p + "self_attn.k_proj.weight"], k, d), t[p + "self_attn.v_proj.weight"]))
        if "num_experts" in cfg:
            out[f"{i}.qnorm"] = pairs(t[p + "self_attn.q_norm.weight"], 1, d)
            out[f"{i}.knorm"] = pairs(t[p + "self_attn.k_norm.weight"], 1, d)
            out[f"{i}.router"] = t[p + "mlp.gate.weight"]
            for e in range(cfg["num_experts"]):
                out[f"{i}.gate_up.{e}"] = t[p + "mlp.experts.gate_up_proj"][e]
                out[f"{i}.down.{e}"] = t[p + "mlp.experts.down_proj"][e]
        else:
            out[f"{i}.gate_up"] = torch.cat((t[p + "mlp.gate_proj.weight"], t[p + "mlp.up_proj.weight"]))
            out[f"{i}.down"] = t[p + "mlp.down_proj.weight"]
    return out


def main():
    torch.manual_seed(3)
    peer_torch.torch, peer_torch.F, peer_torch.ops = torch, torch.nn.functional, peer_ops
    passed = failed = 0
    for folder in ("dense-26m", "moe-36m"):
        with open(os.path.join(ROOT, "configs", "models", folder, "config.json")) as f:
            cfg = json.load(f)
        cfg.update(num_hidden_layers=2, router_aux_loss_coef=0.0, initializer_range=0.06)
        hf_cfg = AutoConfig.for_model(**cfg)
        extra = {"experts_implementation": "eager"} if "num_experts" in cfg else {}
        hf = AutoModelForCausalLM.from_config(hf_cfg, **extra)
        for name, p in hf.named_parameters():
            if name.endswith("norm.weight"):
                torch.nn.init.normal_(p, 1.0, 0.2)
        tokens = torch.randint(0, cfg["vocab_size"], (2, 257))
        want = hf(input_ids=tokens[:, :-1], use_cache=False).logits
        want = torch.nn.functional.cross_entropy(want.flatten(0, 1), tokens[:, 1:].flatten())
        want.backward()
        weights = peer_name_values(cfg, {n: p.detach() for n, p in hf.named_parameters()})
        grads = peer_name_values(cfg, {n: p.grad for n, p in hf.named_parameters()})
        for gemm in ("mkl", "onednn"):
            for attention in ("sdpa", "blocked"):
                for loss in ("chunked", "plain", "linear_cross_entropy"):
                    peer_ops.Gemm.choose(cfg, gemm)
                    args = argparse.Namespace(seed=0, seq=256, attention=attention, loss=loss, loss_rows=128)
                    model = peer_torch.Model(cfg, args)
                    assert model.params.keys() == weights.keys()
                    with torch.no_grad():
                        for n, p in model.params.items():
                            p.copy_(weights[n])
                    total, got = model.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
                    total.backward()
                    worst = max(((model.params[n].grad - g).norm() / g.norm()).item() for n, g in grads.items())
                    d = abs(got.item() - want.item()) / want.item()
                    good = worst <= 1e-4 and d <= 1e-5
                    passed, failed = passed + good, failed + (not good)
                    print(f"{folder:10} {gemm:7} {attention:8} {loss:21} loss {got.item():.5f} ({d:.0e}), worst gradient "
                          f"{worst:.1e}{'' if good else '  FAILED'}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
