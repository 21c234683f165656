#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Hocket's tokenizers with Hugging Face `tokenizers` on one thread: the same texts by turns, ids only, in CPU
seconds, with caches of words that are empty at the start of each round.

tokenizer_speed.py [--bench build/hocket_tokenizer_speed] [--rounds 5] --texts FILE_OR_FOLDER... -- TOKENIZER.json...
Prints MB/s of both and the median of the rounds' ratios (above 1: ours is faster), of documents (encode_batch_fast) and of
one long text. Exits 1 where ids differ in number or a ratio is below --least."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "parity"))
from tokenizer_parity import texts_of  # noqa: E402


def compare(args, path, texts, folder):
    """(median ratio, line to print)."""
    theirs = Tokenizer.from_file(path)
    source = os.path.join(folder, "texts.jsonl")
    with open(source, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(text) + "\n" for text in texts)
    size = sum(len(text.encode()) for text in texts) / 1e6
    ratios, ours, other = [], [], []
    with subprocess.Popen([args.bench, path, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bench:
        for _ in range(args.rounds):
            bench.stdin.write("round\n")
            bench.stdin.flush()
            seconds, count, _ = bench.stdout.readline().split()
            theirs.model._clear_cache()
            start = time.process_time()
            encoded = theirs.encode_batch_fast(texts, add_special_tokens=False)
            other.append(time.process_time() - start)
            ours.append(float(seconds))
            ratios.append(other[-1] / ours[-1])
            if sum(map(len, encoded)) != int(count):
                sys.exit(f"{path}: {count} ids, tokenizers {sum(map(len, encoded))}")
        bench.stdin.close()
    median = statistics.median(ratios)
    return median, (f"{size / statistics.median(ours):7.2f} MB/s, tokenizers {size / statistics.median(other):6.2f} MB/s, "
                    f"{median:.2f} times ({min(ratios):.2f} to {max(ratios):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/hocket_tokenizer_speed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=float, default=1.5)
    parser.add_argument("--texts", nargs="+", required=True)
    parser.add_argument("tokenizers", nargs="+")
    args = parser.parse_args()
    documents = [text for _, text in texts_of(args.texts)]
    slow = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in args.tokenizers:
            for name, texts in (("documents", documents), ("one text", ["\n".join(documents)])):
                ratio, line = compare(args, path, texts, folder)
                slow += ratio < args.least
                print(f"{os.path.basename(path):24} {name:10} {line}", flush=True)
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
