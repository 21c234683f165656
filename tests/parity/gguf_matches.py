#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Hocket on a GGUF file with Hugging Face transformers: token ids and logits.

Needs the packages gguf and accelerate besides those of .venv (PYTHONPATH finds them), so it is run by hand, on the file
that tools/smollm2.py fetches: gguf_matches.py MODEL.gguf. Ends with `N passed, N failed`."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    tok = tokenizer_of(args.model)
    ids = [tok.encode(text).ids for text in TEXTS]
    for i, text in enumerate(TEXTS):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            got = json.loads(hocket(args, "data", "encode", args.model, "--in", f.name))
        report(f"token ids of text {i}", got == ids[i], f"{len(ids[i])} tokens" if got == ids[i] else f"{got}, {ids[i]}")
    compare_transformers(args, ids)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
