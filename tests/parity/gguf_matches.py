#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Hocket on a GGUF file with Hugging Face transformers and with llama.cpp: token ids, logits, greedy text.

Needs the packages gguf, accelerate and xllamacpp besides those of .venv (PYTHONPATH finds them), so it is run by hand:
gguf_matches.py MODEL.gguf [--skip-transformers] [--skip-llama-cpp]. Ends with `N passed, N failed`."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXTS = ["The capital of France is", "#include <vector>\n\nint main() {\n  return 42;\n",
         "In 1969, 12 people  walked 3.5 km; it's 100% \u00e9t\u00e9 \u4e2d\u6587 \U0001f600 tabs\tand   spaces  \n",
         "<|im_start|>user\nWhat is 7 + 5?<|im_end|>\n<|im_start|>assistant\n"]
NEW_TOKENS = 24
# Pre-tokenizers of `tokenizers` by tokenizer.ggml.pre, as the models' own files have them.
DIGITS = ("smollm", "starcoder")
results = []


def report(what, good, detail=""):
    results.append(bool(good))
    print(f"{'ok    ' if good else 'FAILED'} {what}{': ' + detail if detail else ''}", flush=True)


def tokenizer_of(path):
    """The tokenizer of a file, made of parts of `tokenizers`."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()
    tokens, kinds = get("tokens"), get("token_type")
    merges = [tuple(merge.split(" ")) for merge in get("merges")]
    tok = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if get("pre") in DIGITS:
        byte_level = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif get("pre") != "gpt-2":
        sys.exit(f"gguf_matches.py: tokenizer.ggml.pre is {get('pre')}")
    tok.pre_tokenizer, tok.decoder = byte_level, decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds) if kind == 3])
    return tok


def hocket(args, *command):
    done = subprocess.run([args.hocket, *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"hocket {' '.join(command)}\n{done.stderr}")
    return done.stdout


def compare_transformers(args, ids):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    folder, name = os.path.split(os.path.abspath(args.model))
    with tempfile.TemporaryDirectory() as top:
        lists, out = os.path.join(top, "ids.json"), os.path.join(top, "logits.safetensors")
        with open(lists, "w", encoding="utf-8") as f:
            json.dump(ids, f)
        begin = time.time()
        hocket(args, "eval", args.model, "--ids", lists, "--save-logits", out)
        print(f"       hocket eval: {time.time() - begin:.1f} s")
        got = load_file(out)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    for i, each in enumerate(ids):
        with torch.no_grad():
            want = model(torch.tensor([each]), use_cache=False).logits[0].double()
        have = got[f"logits.{i}"].double()
        worst = ((have - want).abs().max() / want.abs().max()).item()
        report(f"logits of text {i} ({len(each)} tokens)", worst <= args.tolerance, f"{worst:.2e} of the largest")
        report(f"most likely tokens of text {i}", torch.equal(have.argmax(-1), want.argmax(-1)))


def compare_llama_cpp(args):
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.warmup = False
    params.n_ctx = 512
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    for i, text in enumerate(TEXTS):
        answer = server.handle_completions({"prompt": text, "n_predict": NEW_TOKENS, "temperature": 0, "top_k": 1,
                                            "cache_prompt": False, "special": True})
        want = answer["content"] if "content" in answer else answer["choices"][0]["text"]
        got = json.loads(hocket(args, "generate", args.model, "--prompt", text, "--temperature", "0",
                                "--max-new-tokens", str(NEW_TOKENS), "--json"))["text"]
        report(f"greedy text {i}", got == want, repr(got[:60]) if got == want else f"{got!r}, llama.cpp {want!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--skip-transformers", action="store_true")
    parser.add_argument("--skip-llama-cpp", action="store_true")
    args = parser.parse_args()
    tok = tokenizer_of(args.model)
    ids = [tok.encode(text).ids for text in TEXTS]
    for i, text in enumerate(TEXTS):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            got = json.loads(hocket(args, "data", "encode", args.model, "--in", f.name))
        report(f"token ids of text {i}", got == ids[i], f"{len(ids[i])} tokens" if got == ids[i] else f"{got}, {ids[i]}")
    if not args.skip_transformers:
        compare_transformers(args, ids)
    if not args.skip_llama_cpp:
        compare_llama_cpp(args)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
