#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Hocket's tokenizer with Hugging Face `tokenizers`: identical ids and round trips for
tokenizers trained by either side (GPT-2, Llama-3 and Qwen-2 pre-tokenizers, added tokens, NFC), and
the same vocabulary and merges from training on the same files.

    tokenizer_parity.py [--hocket build/hocket] [--strings N] [--seed S] FILE_OR_FOLDER...

The files are the text to train on and to encode; without any, the C++ headers of this machine.
Exits 1 at the first difference."""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
EOS = "<|endoftext|>"
MIXED = [
    "", " ", "\n", "hello world", "  two  blanks  ", "it's we'll I'M THEY'RE 'tis 'ſ",
    "tabs\tand\r\nlines\n\n\n  x", "1234567890 ١٢٣ ⅷ ²", "naïve café — “quotes” …",
    "日本語のテキスト、漢字とかな。", "한국어 문장입니다", "Привет, мир! Ещё", "مرحبا بالعالم",
    "नमस्ते दुनिया", "😀👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301 vs \u00e9, \u1100\u1161\u11a8, \u0344\u0958",
    "\u00a0nbsp\u2003em\u180emvs\u200bzw\u3000wide\u0085nel\x1c\x1d", "a" * 5000, " " * 3000,
    "ab" * 700, "()[]{}<>;:=+-*/&&||!!", EOS, f"a{EOS}b {EOS} {EOS}{EOS}", "<|endoftext",
    "\x00\x01",
]


def random_string(rng):
    kind = rng.random()
    n = rng.randrange(1, 40)
    if kind < 0.3:
        pool = [rng.randrange(0x20, 0x7F) for _ in range(n)]
    elif kind < 0.5:
        pool = [rng.choice([0x20, 0x0A, 0x0D, 0x09, 0xA0, 0x3000, 0x61, 0x31, 0x27, 0x73, 0x2E])
                for _ in range(n)]
    elif kind < 0.7:
        pool = [rng.choice([rng.randrange(0x80, 0x600), rng.randrange(0x300, 0x370), 0x61, 0x20])
                for _ in range(n)]
    else:
        pool = []
        while len(pool) < n:
            c = rng.randrange(0x110000 if kind > 0.9 else 0x10000)
            # Characters that only one side's version of Unicode knows may differ: no
            # unassigned characters, and those that combine or decompose only from a version that both know.
            combines = unicodedata.category(chr(c))[0] == "M" or unicodedata.decomposition(chr(c))
            known = unicodedata.ucd_3_2_0 if combines else unicodedata
            if not 0xD800 <= c < 0xE000 and known.category(chr(c)) != "Cn":
                pool.append(c)
    return "".join(map(chr, pool))


def texts_of(paths):
    files = []
    for path in paths:
        below = os.path.join(path, "**", "*")
        found = glob.glob(below, recursive=True) if os.path.isdir(path) else [path]
        files += sorted(f for f in found if os.path.isfile(f))
    out, seen = [], set()
    for f in files:
        with open(f, "rb") as handle:
            raw = handle.read()
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            continue
        if text and "\0" not in text and text not in seen:
            seen.add(text)
            out.append((f, text))
    return out


def hf_tokenizer(pattern=None, nfc=False, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is None:
        t.pre_tokenizer = byte_level
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    if nfc:
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    return t


def hf_train(t, texts, vocab):
    trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, special_tokens=[EOS],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    t.train_from_iterator(texts, trainer)
    return t


class Parity:
    def __init__(self, hocket, work):
        self.hocket, self.work = hocket, work

    def run(self, *args):
        done = subprocess.run([self.hocket, "data", *args], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(args)}: {done.stderr}")

    def lines(self, verb, tokenizer, values):
        source, target = os.path.join(self.work, "in.jsonl"), os.path.join(self.work, "out.jsonl")
        with open(source, "w") as f:
            f.writelines(json.dumps(v) + "\n" for v in values)
        began = time.time()
        self.run(verb, tokenizer, "--lines", "--in", source, "--out", target)
        self.seconds = time.time() - began
        with open(target) as f:
            return [json.loads(line) for line in f]

    def compare(self, name, path, texts):
        theirs = Tokenizer.from_file(path)
        began = time.time()
        want = [e.ids for e in theirs.encode_batch(texts, add_special_tokens=False)]
        their_seconds = time.time() - began
        got = self.lines("encode", path, texts)
        our_seconds = self.seconds
        for text, a, b in zip(texts, got, want):
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                near = theirs.decode(b[max(0, at - 3):at + 5])
                sys.exit(f"{name}: ids differ from token {at} on; got {a[at:at + 8]}, expected "
                         f"{b[at:at + 8]}; at {near!r} of {text[:60]!r}")
        back = self.lines("decode", path, got)
        wanted = [theirs.decode(ids, skip_special_tokens=False) for ids in want]
        for text, a, b in zip(texts, back, wanted):
            if a != b:
                sys.exit(f"{name}: decoding differs; got {a[:80]!r}, expected {b[:80]!r}")
        size = sum(len(t.encode()) for t in texts)
        print(f"{name}: {len(texts)} texts, {size} bytes, {sum(map(len, got))} ids equal; whole "
              f"command {our_seconds:.2f} s, tokenizers alone {their_seconds:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hocket", default="build/hocket")
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("paths", nargs="*", default=["/usr/include/c++"])
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread on either side
    rng = random.Random(args.seed)
    print(f"seed {args.seed}")
    corpus = texts_of(args.paths)
    texts = [t for _, t in corpus]
    samples = texts + MIXED + [random_string(rng) for _ in range(args.strings)]
    with tempfile.TemporaryDirectory() as work:
        parity = Parity(args.hocket, work)
        ours = os.path.join(work, "ours")
        began = time.time()
        files = [word for f, _ in corpus for word in ("--files", f)]
        parity.run("train-tokenizer", *files, "--vocab-size", str(args.vocab_size),
                   "--valid-fraction", "0", "--out", ours)
        our_seconds = time.time() - began
        began = time.time()
        theirs = json.loads(hf_train(hf_tokenizer(), texts, args.vocab_size).to_str())["model"]
        with open(os.path.join(ours, "tokenizer.json")) as f:
            mine = json.load(f)["model"]
        merges = [m.split(" ") for m in mine["merges"]]
        if mine["vocab"] != theirs["vocab"] or merges != theirs["merges"]:
            pairs = enumerate(zip(merges, theirs["merges"]))
            first = next((i for i, (a, b) in pairs if a != b), None)
            sys.exit(f"training differs from merge {first} on; got {len(merges)} merges, expected "
                     f"{len(theirs['merges'])}")
        print(f"training on {len(texts)} texts: the same {len(mine['vocab'])} tokens and "
              f"{len(merges)} merges; whole command {our_seconds:.2f} s, tokenizers alone "
              f"{time.time() - began:.2f} s")
        parity.compare("ours", os.path.join(ours, "tokenizer.json"), samples)

        added = [AddedToken("<|im_start|>", special=True), AddedToken("<tool>", normalized=False),
                 AddedToken("<mask>", lstrip=True, special=True),
                 AddedToken("<r>", rstrip=True, special=True),
                 AddedToken("std::", single_word=True)]
        samples += ["x <|im_start|>y<tool>z <mask> and <r>  b std::vector std:: xstd:: "
                    "std::<r>\n\tq",
                    "<mask><mask> <r> <r>", " <mask>", "<r> ", "<tool", "e\u0301<tool>e\u0301"]
        for name, pattern, nfc, ignore in [("gpt2", None, False, False),
                                           ("llama3", LLAMA3, False, True),
                                           ("qwen2", QWEN2, True, False)]:
            t = hf_train(hf_tokenizer(pattern, nfc, ignore), texts[: len(texts) // 4] + MIXED, 2000)
            t.add_tokens(added)
            path = os.path.join(work, f"{name}.json")
            t.save(path)
            parity.compare(name, path, samples)
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        t.normalizer = None
        path = os.path.join(work, "prefix.json")
        t.save(path)
        parity.compare("prefix space", path, samples)
    print("all equal")


if __name__ == "__main__":
    main()
