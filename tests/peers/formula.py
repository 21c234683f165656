# SPDX-License-Identifier: Apache-2.0
"""Weights from a formula, so that a fixture holds none: the same numbers in a peer's process and in ours."""
import json
import struct
import zlib


def weights(name, shape):
    """Returns the values of one tensor in row-major order, each a multiple of 2^-16: exact in every model type except
    the 16-bit ones. Weights of a norm lie around 1."""
    count = 1
    for extent in shape:
        count *= extent
    around = 1 if ("norm" in name or ".ln_" in name) and not name.endswith(".bias") else 0
    state, values = zlib.crc32(name.encode()), []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        value = ((state >> 16) - 2**15) / 2**16 * 0.5
        values.append(around + value)
    return values


def write_safetensors(path, shapes):
    header, data = {}, b""
    for name, shape in sorted(shapes.items()):
        values = weights(name, shape)
        begin = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def adapter_config(folder, base_name):
    """Returns the adapter_config.json that PEFT wrote into `folder`, without what differs from run to run: the path of the
    base, which becomes `base_name`, and the order of a set of modules."""
    with open(f"{folder}/adapter_config.json", encoding="utf-8") as f:
        config = json.load(f)
    return dict(config, base_model_name_or_path=base_name, target_modules=sorted(config["target_modules"]))
