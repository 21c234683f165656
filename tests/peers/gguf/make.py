#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the package gguf: blocks of every element type with the numbers that they stand for, numbers with their
blocks, and a file with every type of metadata and element. Compared in tests/gguf/peers_test.cc."""
import json
import os

import gguf
import numpy as np

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


if __name__ == "__main__":
    main()
