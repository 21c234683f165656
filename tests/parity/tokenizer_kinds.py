#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Hocket's tokenizers with Hugging Face `tokenizers` for every kind that docs/tokenizers.md names: identical
ids, and identical text back, for vocabularies that are trained here on the given text.

    tokenizer_kinds.py [--hocket build/hocket] [--strings N] [--seed S] [--only PATTERN] [--tokenizer FILE]... FILE_OR_FOLDER...

Texts are the files, mixed lines and N random strings per kind. --tokenizer FILE compares a tokenizer.json that is there,
instead of trained ones. Ranges of tokens are compared where no normalizer changes the text. Exits 1 at the first
difference."""
import argparse
import json
import os
import random
import re
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers as pre
from tokenizers import processors, trainers

from tokenizer_parity import LLAMA3, MIXED, QWEN2, Parity, random_string, texts_of

DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+"]
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
THREES = r"(?<=\p{N})(?=(?:\p{N}{3})+(?:\P{N}|$))"  # matches nothing, before each group of three digits
BYTES = [f"<0x{b:02X}>" for b in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]


def split(pattern, behavior="isolated", invert=False):
    return pre.Split(pattern, behavior, invert)


def byte_level(*before, prefix=False, regex=False, ignore_merges=False, normalizer=None):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer = pre.Sequence([*before, pre.ByteLevel(add_prefix_space=prefix, use_regex=regex)])
    t.decoder = decoders.ByteLevel()
    if normalizer is not None:
        t.normalizer = normalizer
    return t


def chars(model, pre_tokenizer=None, normalizer=None, decoder=None):
    t = Tokenizer(model)
    if pre_tokenizer is not None:
        t.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        t.normalizer = normalizer
    if decoder is not None:
        t.decoder = decoder
    return t


def bpe(**options):
    return models.BPE(unk_token="<unk>", **options)


LLAMA_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def llama2(fuse=True):
    return chars(bpe(fuse_unk=fuse, byte_fallback=True), None,
                 normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                 decoders.Sequence([*LLAMA_DECODER, decoders.Strip(" ", 1, 0)]))


def gemma():
    return chars(bpe(fuse_unk=True, byte_fallback=True), split(" ", "merged_with_previous"),
                 normalizers.Replace(" ", "▁"), decoders.Sequence(LLAMA_DECODER))


def kinds():
    """Name → (tokenizer without a vocabulary, tokens that training puts first)."""
    meta = lambda scheme, cut=True: (pre.Metaspace("▁", scheme, cut), decoders.Metaspace("▁", scheme, cut))
    out = {
        "gpt2": byte_level(regex=True),
        "gpt2 prefix": byte_level(regex=True, prefix=True),
        "llama3": byte_level(split(Regex(LLAMA3)), ignore_merges=True),
        "qwen2": byte_level(split(Regex(QWEN2)), normalizer=normalizers.NFC()),
        "smollm": byte_level(pre.Digits(individual_digits=True), regex=True),
        "deepseek": byte_level(*[split(Regex(p)) for p in DEEPSEEK]),
        "deepseek coder": byte_level(*[split(Regex(p)) for p in DEEPSEEK_CODER], pre.Digits(True)),
        "gpt4o": byte_level(split(Regex(GPT4O), "removed", True)),
        "neox": byte_level(regex=True, normalizer=normalizers.NFC()),
        "threes": byte_level(split(Regex(THREES)), regex=True),
        "prefix of pieces": byte_level(split(Regex(r"\n+")), prefix=True),
        "llama2": llama2(), "gemma": gemma(),
        "no cut": chars(bpe(), None, None, decoders.Fuse()),
        "digits": chars(bpe(), pre.Sequence([pre.WhitespaceSplit(), pre.Digits()])),
        "whitespace": chars(bpe(), pre.Whitespace()),
        "bert cut": chars(bpe(fuse_unk=True), pre.BertPreTokenizer(), normalizers.Lowercase()),
        "delimiter": chars(bpe(), pre.CharDelimiterSplit("_")),
        "nfkc": chars(bpe(), pre.Whitespace(), normalizers.NFKC()),
        "nfkd": chars(bpe(), pre.Whitespace(), normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])),
        "nfd": chars(bpe(), pre.WhitespaceSplit(), normalizers.Sequence([normalizers.NFD(), normalizers.Strip()])),
        "regex replace": chars(bpe(), *reversed([normalizers.Sequence([
            normalizers.Replace(Regex(r" {2,}"), " "), normalizers.Strip(left=True, right=False),
            normalizers.Lowercase()]), meta("first")[0]]), meta("first")[1]),
    }
    for behavior in ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]:
        out[f"punctuation {behavior}"] = chars(bpe(), pre.Punctuation(behavior))
        for invert in [False, True]:
            out[f"split {behavior} {invert}"] = chars(bpe(fuse_unk=invert), split("e", behavior, invert))
            out[f"regex {behavior} {invert}"] = byte_level(split(Regex(r"\s|[aeiou]"), behavior, invert))
    for scheme in ["always", "first", "never"]:
        for cut in [True, False]:
            out[f"bpe metaspace {scheme} {cut}"] = chars(bpe(byte_fallback=True), *[meta(scheme, cut)[0], None,
                decoders.Sequence([decoders.ByteFallback(), meta(scheme, cut)[1]])])
            out[f"unigram metaspace {scheme} {cut}"] = chars(models.Unigram(), meta(scheme, cut)[0], None,
                                                             meta(scheme, cut)[1])
    out["unigram bytes"] = chars(models.Unigram(), *[meta("always")[0], normalizers.NFKC(), decoders.Sequence(
        [decoders.ByteFallback(), meta("always")[1]])])
    out["unigram byte level"] = chars(models.Unigram(), pre.ByteLevel(add_prefix_space=False), None,
                                      decoders.ByteLevel())
    return out


def train(name, t, texts, vocab):
    alphabet = pre.ByteLevel.alphabet() if isinstance(t.decoder, decoders.ByteLevel) else []
    special = SPECIAL + (BYTES if "fallback" in t.to_str() and '"byte_fallback":true' in t.to_str() else [])
    if isinstance(t.model, models.Unigram):
        trainer = trainers.UnigramTrainer(vocab_size=vocab, special_tokens=SPECIAL, unk_token="<unk>",
                                          initial_alphabet=alphabet, show_progress=False, n_sub_iterations=1)
    else:
        trainer = trainers.BpeTrainer(vocab_size=vocab + len(special), special_tokens=special, initial_alphabet=alphabet,
                                      limit_alphabet=1000, show_progress=False, max_token_length=16)
    t.train_from_iterator(texts, trainer)
    if name == "unigram bytes":
        model = json.loads(t.to_str())
        model["model"]["byte_fallback"] = True
        model["model"]["vocab"] += [[b, -20.0] for b in BYTES]
        t = Tokenizer.from_str(json.dumps(model))
    # Tokens that stand for bytes are none that a text may hold.
    model = json.loads(t.to_str())
    model["added_tokens"] = [a for a in model["added_tokens"] if a["content"] not in BYTES]
    t = Tokenizer.from_str(json.dumps(model))
    t.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<mask>", lstrip=True), AddedToken("<r>", rstrip=True)])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("Std::", single_word=True)])
    if name == "neox":
        t.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 25)])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t


ADDED = ["x <|im_start|>y<tool>z <mask> and <r>  b Std::vector std:: xStd:: Std::<r>\n\tq", "<mask><mask> <r> <r>",
         " <mask>", "<r> ", "<tool", "e\u0301<tool>e\u0301", "a    b  c          d\n      e", "</s>", "a</s> b", "<s>", "<unk>",
         "\ufeffbom", "x\ufeff", "<0x41>", " <|im_start|> a", "▁", "▁▁a ▁", "12345678 x1234.5678", "١٢٣٤٥"]


def lines_of(parity, path, texts, *options):
    source, target = os.path.join(parity.work, "in.jsonl"), os.path.join(parity.work, "out.jsonl")
    with open(source, "w") as f:
        f.writelines(json.dumps(text) + "\n" for text in texts)
    parity.run("encode", path, "--lines", "--in", source, "--out", target, *options)
    with open(target) as f:
        return [json.loads(line) for line in f]


def options(parity, name, path, texts):
    """Tokens of the post-processor, special tokens as text, and ranges."""
    t = Tokenizer.from_file(path)
    added = lines_of(parity, path, texts, "--add-special-tokens")
    for text, got in zip(texts, added):
        want = t.encode(text).ids
        if got != want:
            sys.exit(f"{name}: with special tokens added {text[:60]!r} gives {got[:9]}, expected {want[:9]}")
    # A Unigram vocabulary gives special tokens in spite of that, by its own way; ours does not.
    split_special = lines_of(parity, path, texts, "--split-special-tokens")
    t.encode_special_tokens = True
    special = {i for i, a in t.get_added_tokens_decoder().items() if a.special}
    for text, got in zip(texts, split_special):
        want = t.encode(text, add_special_tokens=False).ids
        if got != want and not special & set(want):
            sys.exit(f"{name}: with special tokens split {text[:60]!r} gives {got[:9]}, expected {want[:9]}")
    t.encode_special_tokens = False
    if t.normalizer is not None or isinstance(t.decoder, decoders.ByteLevel) or '"byte_fallback":true' in t.to_str():
        return
    for text, got in zip(texts, lines_of(parity, path, texts, "--offsets")):
        e = t.encode(text, add_special_tokens=False)
        starts = [0]
        for c in text:
            starts.append(starts[-1] + len(c.encode()))
        want = [[i, starts[a], starts[b]] for i, (a, b) in zip(e.ids, e.offsets)]
        # A blank that is put before a text has no bytes of it; `tokenizers` gives it those of the first character.
        want = [[w[0], *g[1:]] if g[1] == g[2] else w for g, w in zip(got, want)]
        if got != want:
            at = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), 0)
            sys.exit(f"{name}: ranges of {text[:60]!r} differ at token {at}; got {got[at:at + 4]}, expected "
                     f"{want[at:at + 4]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hocket", default="build/hocket")
    parser.add_argument("--strings", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocab-size", type=int, default=1500)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", default="", help="folder for the tokenizers")
    parser.add_argument("--tokenizer", action="append", default=[])
    parser.add_argument("paths", nargs="*", default=["/usr/include/c++"])
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(f"seed {args.seed}")
    corpus = [t for _, t in texts_of(args.paths)]
    with tempfile.TemporaryDirectory() as work:
        found = {path: None for path in args.tokenizer} or kinds()
        for name, t in found.items():
            if not re.search(args.only, name):
                continue
            rng = random.Random(f"{args.seed} {name}")
            path = name
            if t is not None:
                t = train(name, t, corpus + MIXED * 3, args.vocab_size)
                path = os.path.join(args.keep or work, f"{name}.json")
                t.save(path)
            samples = corpus + MIXED + ADDED + [random_string(rng) for _ in range(args.strings)]
            parity = Parity(args.hocket, work)
            parity.compare(name, path, samples)
            options(parity, name, path, samples[len(corpus):][:400])
    print("all equal")


if __name__ == "__main__":
    main()
