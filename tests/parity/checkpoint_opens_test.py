#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
"""Checkpoints of `hocket train` open with transformers and give the same logits: see checkpoint_opens.py."""
import os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
HOCKET = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket"
SHAPE = ("vocab_size: 320, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
         "head_dim: 8, intermediate_size: 48, rms_norm_eps: 1.0e-6, max_position_embeddings: 128, hidden_act: silu")
MODELS = {
    "llama": f"{{model_type: llama, {SHAPE}, tie_word_embeddings: true}}",
    "mistral": f"{{model_type: mistral, {SHAPE}, tie_word_embeddings: false, sliding_window: 7}}",
    "qwen3_moe": f"{{model_type: qwen3_moe, {SHAPE}, tie_word_embeddings: false, moe_intermediate_size: 24, "
                 "num_experts: 4, num_experts_per_tok: 2, norm_topk_prob: true, router_aux_loss_coef: 0.01}",
    "gpt2": "{model_type: gpt2, vocab_size: 320, n_embd: 32, n_layer: 2, n_head: 4, n_positions: 128}",
    "phi3": f"{{model_type: phi3, {SHAPE}, tie_word_embeddings: false, partial_rotary_factor: 0.5}}",
}
RUN = """
model: {config: %(model)s}
data: {files: ["%(root)s/src/base/*.cc"], dir: "%(top)s/data", tokenizer: "%(top)s/tok", vocab_size: 320,
       valid_fraction: 0}
train: {steps: 3, global_batch: 2, seq_len: 64, warmup_steps: 1, eval_every: 0}
plan: {threads_per_rank: 1, micro_batch: 1}
output: {dir: "%(top)s/%(name)s", report: false, trace: false}
"""

if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    with tempfile.TemporaryDirectory() as top:
        for number, (name, model) in enumerate(MODELS.items()):
            config = pathlib.Path(top) / f"{name}.yaml"
            config.write_text(RUN % {"model": model, "root": ROOT, "top": top, "name": name})
            verbs = [["data", "train-tokenizer"], ["data", "prepare"]] if number == 0 else []
            for verb in verbs + [["train"]]:
                subprocess.run([HOCKET, *verb, config], check=True, stdout=subprocess.DEVNULL)
        sys.exit(subprocess.call([sys.executable, here / "checkpoint_opens.py", *(f"{top}/{name}" for name in MODELS),
                                  "--hocket", HOCKET]))
