# SPDX-License-Identifier: Apache-2.0
"""Folders of tiny models with weights from a formula and a byte-level tokenizer, without any package."""
import json
import math
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
sys.path.insert(0, os.path.dirname(HERE))
import formula  # noqa: E402

VOCABULARY = 264  # five more than the tokenizer has


def byte_level_alphabet():
    """The characters of byte-level BPE, by byte: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def tokenizer():
    alphabet = sorted(byte_level_alphabet().values())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": 256 + i, "content": text, **flags} for i, text in enumerate(special)],
            "normalizer": None, "pre_tokenizer": step, "post_processor": None, "decoder": step,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {text: i for i, text in enumerate(alphabet)}, "merges": []}}


def write_folder(folder, config, shapes):
    os.makedirs(folder, exist_ok=True)
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer()),
                        ("tokenizer_config.json", {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>",
                                                   "tokenizer_class": "PreTrainedTokenizerFast"})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    formula.write_safetensors(os.path.join(folder, "model.safetensors"), shapes)


def hocket(*command):
    done = subprocess.run([HOCKET, *map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"hocket {' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def logits(model, lists, top):
    """Logits behind the last token of every list, by hocket eval."""
    ids, out = os.path.join(top, "ids.json"), os.path.join(top, "logits.safetensors")
    with open(ids, "w", encoding="utf-8") as f:
        json.dump(lists, f)
    hocket("eval", model, "--ids", ids, "--save-logits", out)
    with open(out, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    rows = []
    for i in range(len(lists)):
        end = 8 + length + header[f"logits.{i}"]["data_offsets"][1]
        rows.append(list(struct.unpack(f"<{VOCABULARY}f", data[end - 4 * VOCABULARY:end])))
    return rows


def log_softmax(row):
    top = max(row)
    norm = top + math.log(sum(math.exp(x - top) for x in row))
    return [x - norm for x in row]
