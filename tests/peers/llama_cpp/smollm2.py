#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Greedy text of SmolLM2-135M-Instruct, written as GGUF in F32: Hocket's equals llama.cpp's for 20 prompts.

A text is compared up to the first step at which llama.cpp's two best logits differ by less than 1e-3; such near ties are
counted. Ends with `N passed, N failed, N near ties`."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import smollm2  # noqa: E402

NEAR = 1e-3
STOPS = (0, 2)  # <|endoftext|>, <|im_end|>: whether the last one is listed differs
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    "The capital of France is", "Once upon a time, in a small village by the sea,",
    "#include <vector>\n\nint main() {\n", "def fibonacci(n):\n", "In 1969, 12 people  walked 3.5 km;",
    "The three laws of thermodynamics are", "Water boils at 100 degrees because", "1, 1, 2, 3, 5, 8,",
    "Dear Sir or Madam,\n\n", "La Tour Eiffel est \u00e0 Paris, et", "SELECT name, COUNT(*) FROM users",
    "The \u4e2d\u6587 word for water is", "\U0001f600 means", "   \t",
    CHAT.format("What is 7 + 5?"), CHAT.format("Name three colours."), CHAT.format("Write a haiku about rain."),
    CHAT.format("Who wrote Hamlet?"), CHAT.format("Translate 'good morning' into German."),
    "<|im_start|>system\nYou answer in one word.<|im_end|>\n" + CHAT.format("Is the sky blue?")]


def hocket(*command):
    binary = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
    done = subprocess.run([binary, *map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"hocket {' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    args = parser.parse_args()
    model = smollm2.fetch()
    if model is None:
        print("smollm2.py: skipped: the model cannot be had here")
        return 0
    import server
    passed, failed, ties, tokens = 0, 0, 0, 0
    begin = time.time()
    with tempfile.TemporaryDirectory() as top:
        path = os.path.join(top, "f32.gguf")
        hocket("checkpoint", "export", model, "--type", "f32", "--out", path)
        # All prompts in one process; a line of JSON for each.
        prompts = os.path.join(top, "prompts.jsonl")
        with open(prompts, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": text}) + "\n" for text in PROMPTS[:args.prompts])
        ours = [json.loads(line) for line in
                hocket("generate", path, "--prompts", prompts, "--temperature", 0, "--max-new-tokens", args.new_tokens,
                       "--json").splitlines()]
        llama = server.Server(path)
        for i, (text, got) in enumerate(zip(PROMPTS, ours)):
            _, ended, steps = llama.complete(text, args.new_tokens, 2)
            steps = [step for step in steps if step[0][0] not in STOPS]
            have = [token for token in got["token_ids"] if token not in STOPS]
            near = next((at for at, (one, two) in enumerate(steps) if one[1] - two[1] < NEAR), None)
            want = [step[0][0] for step in steps][:near]
            ties += near is not None
            same = have[:len(want)] == want and (near is not None or (len(have), got["finish_reason"]) == (len(want), ended))
            passed, failed, tokens = passed + same, failed + (not same), tokens + len(want)
            told = f"{len(want)} tokens" + ("" if near is None else f", then a near tie at step {near}")
            print(f"{'ok    ' if same else 'FAILED'} prompt {i}: {told}{'' if same else f': {have}, llama.cpp {want}'}",
                  flush=True)
    print(f"{passed} passed, {failed} failed, {ties} near ties; {tokens} tokens compared in {time.time() - begin:.0f} s")
    return 1 if failed or passed + failed < args.prompts else 0


if __name__ == "__main__":
    sys.exit(main())
