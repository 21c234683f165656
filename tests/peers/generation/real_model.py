#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct served: its log-probabilities, greedy texts and draws are those of transformers in fp64, which opens
the same GGUF file, under every plan; and a text has the same bits however it is computed. Ends with `N passed, N failed`."""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time

import served
from served import Counts, Server

sys.path.insert(0, os.path.join(served.ROOT, "tools"))
import smollm2  # noqa: E402

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = ["The", "The capital of France is", "def fibonacci(n):\n", "La Tour Eiffel est \u00e0 Paris, et",
           "SELECT name, COUNT(*) FROM users", "In 1969, 12 people  walked 3.5 km; \U0001f600 means",
           CHAT.format("Name three colours."),
           "<|im_start|>system\nYou answer in one word.<|im_end|>\n" + CHAT.format("Is the sky blue?")]
TEMPERATURE, SEED = 0.8, 11
# The model has 9 heads and 3 key heads: tp 2 divides them unevenly.
PLANS = {"one rank": ((), 0), "dp 2": (("plan.dp=2",), 0), "tp 2": (("plan.tp=2",), 0), "tp 3": (("plan.tp=3",), 0),
         "pp 2": (("plan.pp=2",), 0), "tp 2, processes": (("plan.tp=2",), 2)}
PAGE_BYTES = 2 * 4 * 32 * 30 * 3 * 64
DRAWN = {"temperature": TEMPERATURE, "seed": SEED}


class Reference:
    """transformers in fp64."""

    def __init__(self, path):
        import torch
        import transformers
        sys.path.insert(0, os.path.join(served.ROOT, "tests", "parity"))
        import make_models  # which turns progress bars off
        self.torch, self.context = torch, make_models.fp64_alone
        torch.set_num_threads(1)  # threads that wait for each other take long where other work runs
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            os.path.dirname(path), gguf_file=os.path.basename(path), dtype=torch.float32, attn_implementation="eager").eval()
        self.model = make_models.exact("llama", loaded)
        self.versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.known = {}

    def rows(self, ids):
        """Returns log-probabilities [token, vocabulary] behind each token."""
        key = tuple(ids)
        if key not in self.known:
            with self.torch.no_grad(), self.context():
                logits = self.model(input_ids=self.torch.tensor([ids]), use_cache=False).logits[0]
                self.known[key] = self.torch.log_softmax(logits, -1)
        return self.known[key]

    def forced(self, ids, rows):
        return [rows[i, token].item() for i, token in enumerate(ids[1:])]

    def distances(self, position, row, tokens):
        """Returns how far the uniform number of a position is from picking each of the tokens, in order of ids."""
        spans, u = self.torch.softmax(row / TEMPERATURE, -1), served.uniform(SEED, 0, position)
        ends = spans.cumsum(-1)
        return [max(0.0, (ends[token] - spans[token]).item() - u, u - ends[token].item()) for token in tokens]


def compare(name, answers, reference, one_rank):
    """Compares a plan's answers with transformers, and its draws with those of one rank."""
    counts = Counts()
    for i, (prompt, greedy, drawn, as_prompt) in enumerate(answers):
        what = f"{name}, prompt {i}"
        tokens, values, _ = greedy
        rows = reference.rows(prompt + tokens)[len(prompt) - 1:-1]
        # As long as every token is the reference's own choice, the texts are equal.
        best = rows.topk(2)
        near = (best.values[:, 0] - best.values[:, 1] < served.NEAR).tolist()
        counts.greedy(what, tokens, best.indices[:, 0].tolist(), near.index(True) if True in near else None)
        forced = reference.forced(prompt + tokens, reference.rows(prompt + tokens))
        counts.log_probabilities(what, values, forced[len(prompt) - 1:])
        counts.log_probabilities(f"{what}, as a prompt", as_prompt, forced)
        tokens, values, _ = drawn
        rows = reference.rows(prompt + tokens)
        counts.log_probabilities(f"{what}, drawn", values, reference.forced(prompt + tokens, rows)[len(prompt) - 1:])

        def edge_distance(at, *candidates, start=prompt, rows=rows):
            return max(reference.distances(len(start) + at, rows[len(start) - 1 + at], candidates))
        for at, token in enumerate(tokens):  # transformers' own distribution gives the same token for the same number
            apart = edge_distance(at, token)
            if apart >= served.NEAR:
                counts.problems.append(f"{what}: draw {at} is {token}, {apart:.1e} away from its span")
        if one_rank is not None:
            counts.sampled(what, tokens, one_rank[i][2][0], edge_distance)
    return counts


def answers_of(server, prompts, count):
    """Returns (prompt, greedy text, drawn text, log-probabilities of the greedy one as a prompt) of each."""
    greedy = server.generate_all(prompts, count)
    drawn = server.generate_all(prompts, count, **DRAWN)
    return [(prompt, text, other, server.log_probabilities(prompt + text[0]))
            for prompt, text, other in zip(prompts, greedy, drawn)]


def plans(path, prompts, count, report):
    reference, one_rank = Reference(path), None
    print(f"transformers in fp64: {reference.versions}", flush=True)
    for name, (settings, processes) in PLANS.items():
        if processes and not os.path.exists(os.path.join(os.path.dirname(served.HOCKET), "libhocket_torch.so")):
            print(f"skipped {name}: this build has no libhocket_torch.so", flush=True)
            continue
        with Server(path, "--disable-access-log", "--max-model-len", 1024, plan=settings, processes=processes) as server:
            answers = answers_of(server, prompts, count)
        counts = compare(name, answers, reference, one_rank)
        one_rank = one_rank or answers
        report(f"{name}: {counts.line()}; {'the' if answers == one_rank else 'not the'} bits of one rank", counts.problems)


def bits(path, prompts, count, report):
    flags = ("--disable-access-log", "--max-model-len", 1024)
    kinds = ({"logprobs": 5}, {"logprobs": 5, **DRAWN})
    with Server(path, *flags, "--no-enable-prefix-caching") as server:
        alone = [[server.generate(prompt, count, **more) for prompt in prompts] for more in kinds]
        values = [server.log_probabilities(prompt + tokens) for prompt, (tokens, _, _) in zip(prompts, alone[0])]

    def differing(server, at_a_time):
        mixed = [(i, kind) for i in range(len(prompts)) for kind in (0, 1)]
        got = server.generate_each([(prompts[i], kinds[kind]) for i, kind in mixed], count, at_a_time)
        return [f"prompt {i}, {('greedy', 'drawn')[kind]}" for (i, kind), each in zip(mixed, got) if each != alone[kind][i]]

    texts = 2 * len(prompts)
    with Server(path, *flags, "--no-enable-prefix-caching") as server:
        report(f"bits: {texts} texts in one batch", differing(server, texts))
    with Server(path, *flags, "--max-num-seqs", 4, "--max-num-batched-tokens", 7, "--no-enable-prefix-caching") as server:
        report(f"bits: {texts} texts, 4 at a time, prompts in chunks of up to 7 tokens", differing(server, texts))
    with Server(path, *flags) as server:
        differing(server, 4)
        before = server.metric("prefix_cache_hits_total")
        problems = differing(server, texts)
        hits = int(server.metric("prefix_cache_hits_total") - before)
        report(f"bits: {texts} texts, {hits} tokens of prompts from the cache", problems if hits else ["no hit"])
    pages = 2 + max(len(prompt) + count for prompt in prompts) // 32 + 4
    few = ("--disable-access-log", "--max-model-len", 32 * (pages - 4), "--kv-cache-memory", pages * PAGE_BYTES)
    with Server(path, *few) as server:
        problems = differing(server, texts)
        times = int(server.metric("num_preemptions_total"))
        report(f"bits: {texts} texts on {pages} pages, {times} preemptions", problems if times else ["no preemption"])
    report("bits: as a prompt", [f"prompt {i}" for i, (prompt, (_, text_values, _)) in enumerate(zip(prompts, alone[0]))
                                 if values[i][len(prompt) - 1:] != text_values])
    evaluated(path, prompts, alone[0], report)


def evaluated(path, prompts, texts, report):
    """Compares with the fp32 logits of `hocket eval`: the log-probabilities of two tokens differ by as much, in fp64."""
    problems, count = [], 0
    with tempfile.TemporaryDirectory() as top:
        ids, out = os.path.join(top, "ids.json"), os.path.join(top, "logits.safetensors")
        for prompt, (tokens, _, alternatives) in zip(prompts, texts):
            with open(ids, "w", encoding="utf-8") as f:
                json.dump([prompt + tokens], f)
            subprocess.run([served.HOCKET, "eval", path, "--ids", ids, "--save-logits", out], check=True, capture_output=True)
            with open(out, "rb") as f:
                data = f.read()
            (length,) = struct.unpack("<Q", data[:8])
            begin, end = json.loads(data[8:8 + length])["logits.0"]["data_offsets"]
            width = (end - begin) // 4 // len(prompt + tokens)
            for at, row in enumerate(alternatives):
                first = 8 + length + begin + 4 * width * (len(prompt) - 1 + at)
                logit = {j: struct.unpack_from("<f", data, first + 4 * j)[0] for j in row}
                some = next(iter(row))
                apart = max(abs(row[j] - row[some] - (logit[j] - logit[some])) for j in row)
                count += len(row) - 1
                if apart > 1e-13:
                    problems.append(f"prompt with {len(prompt)} tokens, token {at}: a logit is {apart:.1e} away")
    report(f"bits: {count} logits as in an evaluation", problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--only", choices=("plans", "bits"))
    args = parser.parse_args()
    path = smollm2.fetch()
    if path is None:
        print("real_model.py: skipped: the model cannot be had here")
        return 0
    begin, results = time.time(), []

    def report(what, problems):
        results.append(not problems)
        print(f"{'FAILED' if problems else 'ok    '} {what}", *problems[:5], sep="\n    ", flush=True)

    with open(os.path.join(served.ROOT, "LICENSE"), encoding="utf-8") as f:
        texts = [*PROMPTS, f.read(2000)]
    with Server(path, "--disable-access-log", "--max-model-len", 1024) as server:
        prompts = [server.post("/tokenize", prompt=text)["tokens"] for text in texts]
    print(f"{len(prompts)} prompts of {', '.join(str(len(prompt)) for prompt in prompts)} tokens, {args.new_tokens} new ones each")
    if args.only != "plans":
        bits(path, prompts, args.new_tokens, report)
    if args.only != "bits":
        plans(path, prompts, args.new_tokens, report)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed in {time.time() - begin:.0f} s")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
