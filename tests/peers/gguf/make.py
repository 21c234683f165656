#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the package gguf: blocks of every element type with the numbers that they stand for, numbers with their
blocks, and a file with every type of metadata and element (compared in tests/gguf/peers_test.cc); and tiny models in
quantised files with the logits of Hugging Face transformers, which reads GGUF (compared in logits_test.py)."""
import json
import os

import gguf
import numpy as np
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "fixtures")
Type = gguf.GGMLQuantizationType
READ = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Bytes of a block at which its f16 scales begin.
SCALES = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208]}


def random_blocks(name, count, random):
    """Blocks of random bits; their scales are finite numbers."""
    _, size = gguf.GGML_QUANT_SIZES[Type[name]]
    if name == "F32":
        return random.standard_normal(count).astype(np.float32).view(np.uint8).reshape(count, size)
    if name == "BF16":
        bits = (random.standard_normal(count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits.view(np.uint8).reshape(count, size)
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in SCALES[name]:
        scales = (random.standard_normal(count) * 0.1).astype(np.float16)
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks


def numbers_to_write(random):
    """Rows of 32: normal numbers, zeros, one with a tie between integers, large, tiny and subnormal ones."""
    rows = random.standard_normal((8, 32)).astype(np.float32)
    rows[1] = 0
    rows[2] = np.linspace(-127, 127, 32, dtype=np.float32)
    rows[2, 1:5] = [0.5, -0.5, 1.5, 2.5]
    rows[3] *= 1.5e4
    rows[4] *= 1e-4
    rows[5] *= 1e-6
    rows[6] *= 1e-30
    rows[7, 1:] = 0
    return rows


def write_file(path, random):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    value = gguf.GGUFValueType
    for name, number, kind in [("u8", 200, value.UINT8), ("i8", -100, value.INT8), ("u16", 60000, value.UINT16),
                               ("i16", -30000, value.INT16), ("u32", 4000000000, value.UINT32),
                               ("i32", -2000000000, value.INT32), ("u64", 2**63 + 5, value.UINT64),
                               ("i64", -2**62, value.INT64), ("f32", 0.1, value.FLOAT32), ("f64", 0.1, value.FLOAT64),
                               ("bool", True, value.BOOL), ("string", "zwölf\n", value.STRING)]:
        writer.add_key_value("test." + name, number, kind)
    writer.add_array("test.strings", ["a", "", "Ġ b"])
    writer.add_array("test.ints", [3, -1, 4])
    writer.add_array("test.floats", [0.25, -1.5])
    writer.add_array("test.bools", [True, False])
    tensors = {}
    for i, name in enumerate(READ):
        per_block, size = gguf.GGML_QUANT_SIZES[Type[name]]
        rows, columns = 2, 3 if per_block == 1 else 1
        blocks = random_blocks(name, rows * columns, random).reshape(rows, columns * size)
        raw = {"F32": np.float32, "F16": np.float16}.get(name)
        tensor = f"blk.{i}.test.weight"
        writer.add_tensor(tensor, blocks.view(raw) if raw else blocks, raw_dtype=None if raw else Type[name])
        numbers = gguf.dequantize(blocks.view(raw) if raw else blocks, Type[name])
        tensors[tensor] = {"type": name, "dims": list(numbers.shape), "numbers": numbers.tobytes().hex()}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def tiny_model(name, heads, kv_heads, head_dim, experts=0, tied=False):
    """Writes NAME.gguf with random weights of several types, and returns ids with the logits of transformers."""
    width, ffn, layers, vocab = 32, 64, 2, 40
    random = np.random.default_rng(len(name))
    path = os.path.join(FIXTURES, name + ".gguf")
    writer = gguf.GGUFWriter(path, name.split("_")[0])
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(20000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(ffn)

    def matrix(tensor, kind, *shape):
        values = (random.standard_normal(shape) * 0.2).astype(np.float32)
        if kind in ("Q4_1", "Q5_0"):
            blocks = random_blocks(kind, values.size // 32, random)
            scales = np.abs(random.standard_normal(values.size // 32) * 0.02).astype(np.float16)
            blocks[:, 0:2] = scales.view(np.uint8).reshape(-1, 2)
            if kind == "Q4_1":  # the minimum, so that numbers lie around 0
                blocks[:, 2:4] = (scales * np.float16(-7.5)).view(np.uint8).reshape(-1, 2)
            raw = blocks.reshape(*shape[:-1], -1)
            writer.add_tensor(tensor, raw, raw_dtype=Type[kind])
        elif kind in ("F32", "F16"):
            writer.add_tensor(tensor, values.astype(np.float32 if kind == "F32" else np.float16))
        else:
            writer.add_tensor(tensor, gguf.quantize(values, Type[kind]), raw_dtype=Type[kind])

    def norm(tensor, size):
        writer.add_tensor(tensor, (1 + 0.1 * random.standard_normal(size)).astype(np.float32))

    matrix("token_embd.weight", "Q8_0", vocab, width)
    norm("output_norm.weight", width)
    if not tied:
        matrix("output.weight", "F16", vocab, width)
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight", width)
        norm(f"blk.{i}.ffn_norm.weight", width)
        matrix(f"blk.{i}.attn_q.weight", "Q4_1", heads * head_dim, width)
        matrix(f"blk.{i}.attn_k.weight", "Q5_0", kv_heads * head_dim, width)
        matrix(f"blk.{i}.attn_v.weight", "BF16", kv_heads * head_dim, width)
        matrix(f"blk.{i}.attn_output.weight", "Q8_0", width, heads * head_dim)
        if experts:
            norm(f"blk.{i}.attn_q_norm.weight", head_dim)
            norm(f"blk.{i}.attn_k_norm.weight", head_dim)
            matrix(f"blk.{i}.ffn_gate_inp.weight", "F32", experts, width)
            matrix(f"blk.{i}.ffn_gate_exps.weight", "Q4_1", experts, ffn, width)
            matrix(f"blk.{i}.ffn_up_exps.weight", "Q8_0", experts, ffn, width)
            matrix(f"blk.{i}.ffn_down_exps.weight", "Q5_0", experts, width, ffn)
        else:
            matrix(f"blk.{i}.ffn_gate.weight", "Q4_1", ffn, width)
            matrix(f"blk.{i}.ffn_up.weight", "Q8_0", ffn, width)
            matrix(f"blk.{i}.ffn_down.weight", "Q5_0", width, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    extra = {}
    if experts:
        # transformers takes neither the experts' width from the file nor, as llama.cpp does, that weights sum to one.
        extra = {"experts_implementation": "eager", "config": transformers.Qwen3MoeConfig(
            vocab_size=vocab, hidden_size=width, intermediate_size=ffn, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 20000.0}, num_experts=experts,
            num_experts_per_tok=2, moe_intermediate_size=ffn, norm_topk_prob=True, tie_word_embeddings=tied)}
    model = transformers.AutoModelForCausalLM.from_pretrained(FIXTURES, gguf_file=name + ".gguf", dtype=torch.float32,
                                                              attn_implementation="eager", **extra)
    model = model.double().eval()
    ids = [[3, 1, 4, 1, 5, 9, 2, 6, 39, 0], [17, 22]]
    with torch.no_grad():
        logits = [model(torch.tensor([each])).logits[0].tolist() for each in ids]
    return {"made_with": f"gguf 0.19.0, transformers {transformers.__version__}", "ids": ids,
            "logits": [[[round(x, 7) for x in row] for row in each] for each in logits]}


def main():
    os.makedirs(FIXTURES, exist_ok=True)
    random = np.random.default_rng(7)
    decoded = {}
    for name in READ:
        per_block, _ = gguf.GGML_QUANT_SIZES[Type[name]]
        blocks = random_blocks(name, 48 if per_block == 1 else 3 if per_block == 32 else 2, random)
        raw = {"F32": np.float32, "F16": np.float16}.get(name, np.uint8)
        numbers = gguf.dequantize(blocks.view(raw), Type[name])
        decoded[name] = {"blocks": blocks.tobytes().hex(), "numbers": numbers.astype(np.float32).tobytes().hex()}
    rows = numbers_to_write(random)
    encoded = {"numbers": rows.tobytes().hex()}
    for name in ("F16", "BF16", "Q8_0"):
        encoded[name] = gguf.quantize(rows, Type[name]).tobytes().hex()
    tensors = write_file(os.path.join(FIXTURES, "every_type.gguf"), random)
    with open(os.path.join(FIXTURES, "blocks.json"), "w", encoding="utf-8") as f:
        json.dump({"made_with": "gguf 0.19.0", "decoded": decoded, "encoded": encoded, "tensors": tensors}, f,
                  sort_keys=True, indent=0)
        f.write("\n")
    models = {"llama_tied": dict(heads=4, kv_heads=2, head_dim=8, tied=True),
              "qwen3moe": dict(heads=2, kv_heads=1, head_dim=32, experts=4)}
    for name, sizes in models.items():
        with open(os.path.join(FIXTURES, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(tiny_model(name, **sizes), f, sort_keys=True, separators=(",", ":"))
            f.write("\n")


if __name__ == "__main__":
    main()
