#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures with Hugging Face PEFT: logits and losses of 20 AdamW steps of tiny models with adapters, in fp64.

Weights of models and adapters follow from a formula. The data are prepared by Hocket (HOCKET_BINARY_DIR, or build), which
also trains an adapter of every model that PEFT then opens: its logits must be those of Hocket.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import peft
import torch
import transformers
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
sys.path[:0] = [os.path.dirname(HERE), os.path.join(ROOT, "tests", "parity"), HERE]
import formula
import runs

COMMON = dict(vocab_size=runs.VOCAB, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, tie_word_embeddings=False,
              bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA = dict(COMMON, intermediate_size=20, num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-6)
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES = {
    "llama": (transformers.LlamaConfig(**LLAMA, head_dim=4),
              dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])),
    "llama_patterns": (transformers.LlamaConfig(**LLAMA, head_dim=4),
                       dict(r=4, lora_alpha=6, target_modules=["q_proj", "up_proj", "gate_proj"], use_rslora=True,
                            rank_pattern={"up_proj": 2, "layers.1.self_attn.q_proj": 3}, alpha_pattern={"gate_proj": 5},
                            modules_to_save=["lm_head"])),
    # Names within words, and a module of modules, in which a target has no adapter.
    "llama_saved": (transformers.LlamaConfig(**LLAMA, head_dim=4),
                    dict(r=2, lora_alpha=4, target_modules=["q_proj", "up_proj"], modules_to_save=["norm", "mlp"])),
    "phi3": (transformers.Phi3Config(**LLAMA), dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "gate_up_proj"])),
    "gpt2": (transformers.GPT2Config(vocab_size=runs.VOCAB, n_embd=12, n_layer=2, n_head=3, n_positions=64, n_inner=20,
                                     bos_token_id=None, eos_token_id=None, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
             dict(r=3, lora_alpha=6, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)),
    "qwen3_moe": (transformers.Qwen3MoeConfig(
        **LLAMA, head_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=7, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[], router_aux_loss_coef=0.0),
        dict(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"], target_parameters=EXPERTS)),
}


def shapes_of(path):
    with safe_open(path, "pt") as f:
        return {name: list(f.get_slice(name).get_shape()) for name in f.keys()}


def open_base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                             experts_implementation="eager").eval()


def open_adapter(base, folder, trainable=False):
    return peft.PeftModel.from_pretrained(open_base(base), folder, is_trainable=trainable).double().eval()


def logits_of(model):
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].tolist() for ids in runs.IDS]


def losses_of(model, data):
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in params if p.ndim > 1], "weight_decay": runs.DECAY},
              {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=runs.LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for tokens, targets, positions in data:
        optimizer.zero_grad()
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def rounded(values):
    return [rounded(v) for v in values] if isinstance(values, list) else round(values, 9)


def fixture(name, config, lora, top):
    base, adapter = os.path.join(top, name), os.path.join(top, name + "-adapter")
    # Shapes of the model's files and of PEFT's; then the numbers by the formula.
    config.save_pretrained(base)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
    shapes = shapes_of(os.path.join(base, "model.safetensors"))
    formula.write_safetensors(os.path.join(base, "model.safetensors"), shapes)
    made = peft.get_peft_model(open_base(base), peft.LoraConfig(task_type="CAUSAL_LM", **lora))
    made.save_pretrained(adapter)
    adapter_shapes = shapes_of(os.path.join(adapter, "adapter_model.safetensors"))
    formula.write_safetensors(os.path.join(adapter, "adapter_model.safetensors"), adapter_shapes)
    with open(os.path.join(base, "config.json"), encoding="utf-8") as f:
        written = json.load(f)
    runs.write_texts(os.path.join(top, "text"))
    run = runs.write_run(top, name + ".yaml", base, os.path.join(top, name + "-out"), adapter)
    if not os.path.exists(os.path.join(top, "data")):
        runs.hocket(HOCKET, "data", "train-tokenizer", run)
        runs.hocket(HOCKET, "data", "prepare", run)
    import train_parity
    data = train_parity.batches(os.path.join(top, "data"))
    content = {"made_with": f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
               "config": written, "shapes": shapes,
               "adapter_config": formula.adapter_config(adapter, name), "adapter_shapes": adapter_shapes,
               "logits": rounded(logits_of(open_adapter(base, adapter))),
               "losses": rounded(losses_of(open_adapter(base, adapter, True), data))}
    expect_opens(base, run, os.path.join(top, name + "-out"))
    return content


def expect_opens(base, run, out):
    """An adapter that Hocket trained, in PEFT and in Hocket."""
    runs.hocket(HOCKET, "train", run)
    step = runs.last_checkpoint(out)
    theirs = logits_of(open_adapter(base, step))
    ours = runs.logits(HOCKET, step)
    worst = max(abs(a - b) for rows, flat in zip(theirs, ours) for a, b in zip(sum(rows, []), flat))
    if not worst < 1e-5:
        raise SystemExit(f"{step}: PEFT's logits differ by {worst}")
    print(f"PEFT opens {step}: logits within {worst:.1e}", flush=True)


def main():
    torch.set_num_threads(1)
    os.makedirs(os.path.join(HERE, "fixtures"), exist_ok=True)
    with tempfile.TemporaryDirectory() as top:
        for name, (config, lora) in CASES.items():
            if len(sys.argv) > 1 and sys.argv[1] not in name:
                continue
            with open(os.path.join(HERE, "fixtures", name + ".json"), "w", encoding="utf-8") as f:
                json.dump(fixture(name, config, lora, top), f, sort_keys=True, separators=(",", ":"))
                f.write("\n")


if __name__ == "__main__":
    main()
