#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures with Hugging Face transformers: logits and mean next-token loss of tiny models in fp64."""
import json
import os
import sys

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import formula

COMMON = dict(vocab_size=23, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3,
              num_key_value_heads=1, head_dim=4, max_position_embeddings=32, rms_norm_eps=1e-6, hidden_act="silu",
              tie_word_embeddings=False)
MODELS = {
    "llama": transformers.LlamaConfig(**COMMON, rope_theta=10000.0),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **COMMON, rope_theta=10000.0, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=7,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], router_aux_loss_coef=0.0),
}
IDS = [[3, 1, 4, 1, 5, 9, 2], [6, 22, 0]]


def stored_names(model):
    """Returns {name: shape} of the model's own safetensors, whose experts are separate tensors."""
    import tempfile
    from safetensors import safe_open
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
            return {name: list(f.get_slice(name).get_shape()) for name in f.keys()}


def fixture(name, config):
    import tempfile
    shapes = stored_names(transformers.AutoModelForCausalLM.from_config(config))
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        formula.write_safetensors(os.path.join(folder, "model.safetensors"), shapes)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                                  attn_implementation="eager",
                                                                  experts_implementation="eager").eval()
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            written = json.load(f)
    logits, loss, targets = [], 0.0, 0
    with torch.no_grad():
        for ids in IDS:
            out = model(torch.tensor([ids])).logits[0]
            logits.append([[round(x, 9) for x in row] for row in out.tolist()])
            loss += torch.nn.functional.cross_entropy(out[:-1], torch.tensor(ids[1:]), reduction="sum").item()
            targets += len(ids) - 1
    return {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}", "config": written,
            "shapes": shapes, "ids": IDS, "logits": logits, "loss": round(loss / targets, 9)}


def main():
    os.makedirs(os.path.join(HERE, "fixtures"), exist_ok=True)
    for name, config in MODELS.items():
        with open(os.path.join(HERE, "fixtures", name + ".json"), "w", encoding="utf-8") as f:
            json.dump(fixture(name, config), f, sort_keys=True, separators=(",", ":"))
            f.write("\n")


if __name__ == "__main__":
    main()
