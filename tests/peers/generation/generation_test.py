#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""`hocket serve` with tiny models of every family: log-probabilities and greedy texts are those that make.py wrote with
transformers, under every plan; draws follow from the seed; and a text has the same bits alone, in a batch, in chunks, from
the prefix cache, after preemption and in an evaluation."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import served
from served import Counts, Server

NEW_TOKENS = 32
SEED, TEMPERATURE = 2**40 + 7, 0.8
PLANS = {"dp 2": ["plan.dp=2"], "tp 2": ["plan.tp=2"], "tp 3": ["plan.tp=3"], "pp 2": ["plan.pp=2"],
         "ep 2": ["plan.dp=2", "plan.ep=2"]}
ALL = {"logprobs": served.VOCABULARY, "temperature": TEMPERATURE}
FLAGS = ("--max-logprobs", served.VOCABULARY, "--disable-access-log")


def page_bytes(config):
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    head_dim = config.get("head_dim") or config.get("hidden_size", config.get("n_embd")) // heads
    return 2 * 4 * 32 * layers * (config.get("num_key_value_heads") or heads) * head_dim


def logits_of(folder, lists, top):
    """Returns the fp32 rows of `hocket eval`, by list and token."""
    ids, out = os.path.join(top, "ids.json"), os.path.join(top, "logits.safetensors")
    with open(ids, "w", encoding="utf-8") as f:
        json.dump(lists, f)
    subprocess.run([served.HOCKET, "eval", folder, "--ids", ids, "--save-logits", out], check=True, capture_output=True)
    with open(out, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    header, rows = json.loads(data[8:8 + length]), []
    for i in range(len(lists)):
        begin, end = header[f"logits.{i}"]["data_offsets"]
        flat, width = struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin:8 + length + end]), served.VOCABULARY
        rows.append([flat[j:j + width] for j in range(0, len(flat), width)])
    return rows


class Generation(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.TemporaryDirectory()
        self.addCleanup(self.top.cleanup)

    def models(self):
        """Returns every model's name, folder and fixture."""
        names, models = sorted(os.listdir(served.FIXTURES)), []
        self.assertGreaterEqual(len(names), 16)
        for name in names:
            with open(os.path.join(served.FIXTURES, name), encoding="utf-8") as f:
                want = json.load(f)
            models.append((name.removesuffix(".json"), os.path.join(self.top.name, name.removesuffix(".json")), want))
            served.write_folder(models[-1][1], want["config"], want["shapes"])
        return models

    def compare(self, server, want, one_rank=None):
        """Compares a server with transformers, and its draws with those of one rank. Returns the counts and the draws."""
        counts = Counts()
        texts = server.generate_all(want["prompts"], NEW_TOKENS)
        draws = [tokens for tokens, _, _ in server.generate_all(want["prompts"], NEW_TOKENS, temperature=TEMPERATURE, seed=SEED)]
        for i, (prompt, (tokens, values, _)) in enumerate(zip(want["prompts"], texts)):
            text, near, all_values = want["texts"][i], want["near_ties"][i], want["log_probabilities"][i]
            what = f"prompt {i}"
            counts.greedy(what, tokens, text, near)
            same = next((j for j in range(NEW_TOKENS) if tokens[j] != text[j]), NEW_TOKENS)
            counts.log_probabilities(what, values[:same], all_values[len(prompt) - 1:][:same])
            counts.log_probabilities(f"{what}, as a prompt", server.log_probabilities(prompt + text), all_values)

            def edge_distance(at, *tokens, start=prompt):
                before = start + one_rank[i][:at]
                _, _, rows = server.generate(before, 1, **ALL, seed=SEED)
                return served.distance(rows[0], TEMPERATURE, served.uniform(SEED, 0, len(before)), tokens)
            if one_rank is not None:
                counts.sampled(what, draws[i], one_rank[i], edge_distance)
        return counts, draws

    def check(self, what, counts):
        self.assertGreater(counts.values, 0)
        self.assertEqual([], counts.problems, what)

    def test_plans(self):
        table = {name: Counts() for name in ("one rank", *PLANS)}
        for name, folder, want in self.models():
            with Server(folder, *FLAGS) as server:
                counts, draws = self.compare(server, want)
            table["one rank"].add(counts)
            self.check(name, counts)
            for plan, settings in PLANS.items():
                if plan == "ep 2" and not name.startswith("moe"):
                    continue
                with self.subTest(model=name, plan=plan), Server(folder, *FLAGS, plan=settings) as server:
                    counts, _ = self.compare(server, want, draws)
                    table[plan].add(counts)
                    self.check(name, counts)
        for plan, counts in table.items():
            print(f"{plan}: {counts.line()}", flush=True)

    def test_processes(self):
        if not os.path.exists(os.path.join(os.path.dirname(served.HOCKET), "libhocket_torch.so")):
            raise unittest.SkipTest("this build has no libhocket_torch.so (tools/setup.sh --torch)")
        total = Counts()
        for name, folder, want in self.models():
            plans = {"llama-gqa": ("tp 2", "pp 2", "dp 2"), "moe-top2": ("ep 2",)}.get(name, ())
            for plan in plans:
                with self.subTest(plan=plan), Server(folder, *FLAGS) as one:
                    _, draws = self.compare(one, want)
                    with Server(folder, *FLAGS, plan=PLANS[plan], processes=2) as server:
                        counts, _ = self.compare(server, want, draws)
                    total.add(counts)
                    self.check(name, counts)
        print(f"processes: {total.line()}", flush=True)

    def test_draws_follow_from_the_seed(self):
        draws = 0
        for _, folder, want in self.models():
            with Server(folder, *FLAGS) as server:
                for prompt in want["prompts"][::4]:
                    tokens, _, rows = server.generate(prompt, NEW_TOKENS, **ALL, seed=SEED)
                    for i, (token, row) in enumerate(zip(tokens, rows)):
                        u = served.uniform(SEED, 0, len(prompt) + i)
                        self.assertEqual(served.VOCABULARY, len(row))
                        self.assertLess(served.distance(row, TEMPERATURE, u, [token]), 1e-6)
                        draws += 1
        print(f"draws that a seed fixes: {draws}", flush=True)

    def test_bits(self):
        compared, preempted, cached = 0, 0, 0
        for name, folder, want in self.models():
            prompts = want["prompts"]
            kinds = ({"logprobs": 5}, {"logprobs": 5, "temperature": TEMPERATURE, "seed": SEED})
            with Server(folder, *FLAGS, "--no-enable-prefix-caching") as server:
                alone = [[server.generate(prompt, NEW_TOKENS, **more) for prompt in prompts] for more in kinds]
                values = [server.log_probabilities(prompt + tokens) for prompt, (tokens, _, _) in zip(prompts, alone[0])]
                rows = [server.generate(prompt, NEW_TOKENS, logprobs=served.VOCABULARY)[2] for prompt in prompts]

            def same(what, server):
                nonlocal compared
                # Requests of both kinds, twice each, at a time.
                mixed = [(i, kind) for i in range(len(prompts)) for kind in (0, 1)] * 2
                bodies = [(prompts[i], kinds[kind]) for i, kind in mixed]
                for (i, kind), got in zip(mixed, server.generate_each(bodies, NEW_TOKENS)):
                    self.assertEqual(alone[kind][i], got, f"{name}, {what}: prompt {i}, {('greedy', 'drawn')[kind]}")
                    compared += NEW_TOKENS

            with Server(folder, *FLAGS, "--no-enable-prefix-caching") as server:
                same("in a batch", server)
            with Server(folder, *FLAGS, "--max-num-seqs", 3, "--max-num-batched-tokens", 5) as server:
                same("in chunks", server)
            with Server(folder, *FLAGS) as server:
                same("with a cache", server)
                before = server.metric("prefix_cache_hits_total")
                same("from the cache", server)
                self.assertGreater(server.metric("prefix_cache_hits_total"), before)
                cached += int(server.metric("prefix_cache_hits_total"))
            with Server(folder, *FLAGS, "--kv-cache-memory", 10 * page_bytes(want["config"])) as server:
                same("after preemption", server)
                self.assertGreater(server.metric("num_preemptions_total"), 0)
                preempted += int(server.metric("num_preemptions_total"))
            whole = logits_of(folder, [prompt + tokens for prompt, (tokens, _, _) in zip(prompts, alone[0])], self.top.name)
            for prompt, (_, drawn, _), prompt_values, texts_rows, logits in zip(prompts, alone[0], values, rows, whole):
                self.assertEqual(drawn, prompt_values[len(prompt) - 1:], f"{name}: as a prompt")
                # log p - log q is the difference of two logits of fp32, in fp64.
                for at, row in enumerate(texts_rows):
                    want_row = logits[len(prompt) - 1 + at]
                    apart = max(abs(row[j] - row[0] - (want_row[j] - want_row[0])) for j in row)
                    self.assertLess(apart, 1e-13, f"{name}: logits of token {at} as in an evaluation")
        print(f"bits: {compared} tokens compared, {preempted} preemptions, {cached} tokens from the cache", flush=True)


if __name__ == "__main__":
    sys.exit(unittest.main())
