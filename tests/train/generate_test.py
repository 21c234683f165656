#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=600
"""Greedy text is, token by token, the argmax of the logits that `eval` computes from all earlier tokens at once.

Prompts are shorter and longer than a chunk of the prefill; texts run long after it, and up to the end of text, where they
stop. The candidates come from the model of reference_util.py; `eval` judges them. The text is the same under every plan,
on threads and processes."""
import json
import os
import subprocess
import unittest

import torch
from reference_util import DENSE, MOE, Folder, cli_util, forward, random_weights
from safetensors.torch import load_file
from tokenizers import Tokenizer

CHUNK = 64  # prefill chunk, in tokens of a prompt


def greedy(w, ids, most, stop, c, legal):
    """Returns the continuation of `ids` up to `most` tokens or `stop`, which it leaves out."""
    ids, begin = list(ids), len(ids)
    with torch.no_grad():
        while len(ids) - begin < most:
            logits, _ = forward(w, torch.tensor(ids), torch.arange(len(ids)), c)
            best = logits[-1, :legal].argmax().item()
            if best == stop:
                return ids[begin:], True
            ids.append(best)
    return ids[begin:], False


class Generate(Folder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = Tokenizer.from_file(cls.path("data/tokenizer.json"))
        with open(cls.path("data/index.json"), encoding="utf-8") as f:
            cls.eos = json.load(f)["tokenizer"]["eos"]

    def ids(self, prompt):
        return self.tokenizer.encode(prompt).ids

    def generate(self, name, prompt, most, plan=(), launcher=(), temperature=0):
        """Returns the text after the prompt, and a final newline."""
        words = [f"--set=plan.{key}" for key in plan]
        said = self.hocket(*launcher, "generate", self.path(name), "--prompt", prompt, "--temperature",
                           str(temperature), "--tokenizer", self.path("data/tokenizer.json"),
                           "--max-new-tokens", str(most), *words)
        self.assertTrue(said.startswith(prompt) and said.endswith("\n"), said)
        return said[len(prompt):-1]

    def judge(self, name, lists, lengths):
        """Asserts that every id from lengths[i] on is the argmax of eval's logits at the token before it."""
        with open(self.path("ids.json"), "w", encoding="utf-8") as f:
            json.dump(lists, f)
        self.hocket("eval", self.path(name), "--ids", self.path("ids.json"), "--save-logits",
                    self.path("logits.safetensors"))
        legal = self.tokenizer.get_vocab_size()
        for i, (logits, ids) in enumerate(zip(
                (load_file(self.path("logits.safetensors"))[f"logits.{i}"] for i in range(len(lists))),
                lists)):
            for at in range(lengths[i], len(ids)):
                self.assertEqual(logits[at - 1, :legal].argmax().item(), ids[at], f"{name} {i} at {at}")

    def compare(self, name, c, seed):
        weights = random_weights(c, seed, 0.5)
        self.model(name, c, weights)
        w = {n: t.double() for n, t in weights.items()}
        legal = self.tokenizer.get_vocab_size()
        text = "template int x = auto return { std :: } ; int int x :: auto = std return template ; } {"
        prompts = [text[:6], text[:11], text * 4, text * 7]
        self.assertLess(len(self.ids(prompts[1])), CHUNK)
        self.assertGreater(len(self.ids(prompts[3])), 2 * CHUNK)
        lists, lengths = [], []
        for prompt in prompts:
            begin = self.ids(prompt)
            more, _ = greedy(w, begin, 90, self.eos, c, legal)
            self.assertGreater(len(set(more)), 3, "the text stands still")
            lists.append(begin + more)
            lengths.append(len(begin))
            self.assertEqual(self.generate(name, prompt, 90),
                             self.tokenizer.decode(more, skip_special_tokens=False), f"{name} {prompt!r}")
        self.judge(name, lists, lengths)

    def test_dense(self):
        self.compare("dense", dict(DENSE, max_position_embeddings=512), 21)

    def test_experts(self):
        self.compare("moe", dict(MOE, max_position_embeddings=512), 23)

    def plans(self, name, c, plans):
        """Asserts the same text, greedy and drawn, under every plan, as threads and as processes."""
        self.model(name, c, random_weights(c, 27, 0.5))
        text = "template int x = auto return { std :: } ; " * 3
        for temperature in 0, 0.7:
            alone = self.generate(name, text, 40, temperature=temperature)
            for plan, ranks in plans:
                with self.subTest(plan=plan, temperature=temperature):
                    self.assertEqual(alone, self.generate(name, text, 40, plan, (), temperature))
                    if ranks and os.path.exists(os.path.join(os.path.dirname(cli_util.HOCKET), "libhocket_torch.so")):
                        launcher = ("launch", "-n", str(ranks))
                        self.assertEqual(alone, self.generate(name, text, 40, plan, launcher, temperature))

    def test_plans_of_dense(self):
        self.plans("dense-plans", dict(DENSE, max_position_embeddings=512),
                   [(["tp=2"], 2), (["pp=2"], 0), (["pp=2", "tp=2"], 4), (["dp=2"], 0), (["cp=2"], 0),
                    (["dp=2", "shard.params=all"], 2), (["tp=2", "sequence_parallel=true"], 0), (["tp=4"], 0)])

    def test_plans_of_experts(self):
        self.plans("moe-plans", dict(MOE, max_position_embeddings=512),
                   [(["dp=2", "ep=2"], 2), (["tp=2", "etp=2"], 0), (["pp=2", "dp=2", "ep=2"], 4)])

    def test_stops_at_the_end_of_text(self):
        c = dict(DENSE, max_position_embeddings=512)
        legal = self.tokenizer.get_vocab_size()
        for seed in range(400):
            weights = random_weights(c, seed, 0.5)
            w = {n: t.double() for n, t in weights.items()}
            begin = self.ids("int x =")
            more, ended = greedy(w, begin, 12, self.eos, c, legal)
            if ended and len(more) > 2:
                break
        else:
            self.fail("no seed ends its text")
        self.model("ends", c, weights)
        self.judge("ends", [begin + more + [self.eos]], [len(begin)])
        self.assertEqual(self.generate("ends", "int x =", 40),
                         self.tokenizer.decode(more, skip_special_tokens=False))

    def texts(self, name, *words):
        """Returns the objects of `generate --json`, greedy unless the words say otherwise."""
        said = self.hocket("generate", self.path(name), "--json", "--tokenizer", self.path("data/tokenizer.json"),
                           *words)
        return [json.loads(line) for line in said.splitlines()]

    def chat_model(self, name):
        """Makes a model with a chat template; returns (weights in f64, config, number of tokens with a text)."""
        c = dict(DENSE, max_position_embeddings=512)
        weights = random_weights(c, 31, 0.5)
        self.model(name, c, weights)
        with open(os.path.join(self.path(name), "chat_template.jinja"), "w", encoding="utf-8") as f:
            f.write("{% for m in messages %}{{ m.role }} = {{ m.content }} ;\n{% endfor %}"
                    "{% if add_generation_prompt %}return {% endif %}")
        return {n: t.double() for n, t in weights.items()}, c, self.tokenizer.get_vocab_size()

    def test_chat(self):
        w, c, legal = self.chat_model("chat")
        prompt = "system = std ;\nuser = int x ;\nreturn "
        ids = self.tokenizer.encode(prompt).ids
        more, _ = greedy(w, ids, 30, self.eos, c, legal)
        greedily = ("--temperature", "0", "--max-new-tokens", "30")
        [text] = self.texts("chat", "--chat", "int x", "--system", "std", *greedily)
        self.assertEqual(prompt, text["prompt"])
        self.assertEqual(("length", len(ids), more), (text["finish_reason"], text["prompt_tokens"], text["token_ids"]))
        # The same from a file, beside a prompt without a template, which gets what it gets alone.
        with open(self.path("prompts.jsonl"), "w", encoding="utf-8") as f:
            messages = [{"role": "system", "content": "std"}, {"role": "user", "content": "int x"}]
            f.write(json.dumps({"messages": messages}) + "\n" + json.dumps("int x =") + "\n")
        of_file = self.texts("chat", "--prompts", self.path("prompts.jsonl"), *greedily)
        [alone] = self.texts("chat", "--prompt", "int x =", *greedily)
        self.assertEqual([text, alone], of_file)

    def test_samples(self):
        self.chat_model("samples")
        drawn = ("--prompt", "int x =", "--max-new-tokens", "20", "--temperature", "0.9")
        [first] = self.texts("samples", *drawn)
        three = self.texts("samples", *drawn, "--samples", "3")
        self.assertEqual(first, three[0])
        self.assertEqual(3, len({text["text"] for text in three}))
        self.assertEqual([0, 1, 2], [text["sample"] for text in three])
        # Standard error says how far the texts are, and how fast, beside the sum at the end.
        ran = subprocess.run([cli_util.HOCKET, "generate", self.path("samples"), "--json", "--tokenizer",
                              self.path("data/tokenizer.json"), *drawn, "--samples", "3"],
                             capture_output=True, text=True, check=True)
        self.assertRegex(ran.stderr, r"(?m)^[0-3] of 3 texts, [\d.e+]+ tokens/s$")

    def test_logprobs(self):
        w, c, _ = self.chat_model("logprobs")
        ids = self.ids("int x =")
        [text] = self.texts("logprobs", "--prompt", "int x =", "--max-new-tokens", "8", "--logprobs", "3")
        with torch.no_grad():
            every = ids + text["token_ids"]
            logits, _ = forward(w, torch.tensor(every), torch.arange(len(every)), c)
        expected = torch.log_softmax(logits[len(ids) - 1:-1], -1)
        self.assertEqual([8, 8], [len(text["token_logprobs"]), len(text["top_logprobs"])])
        for row, token, logprob, top in zip(expected, text["token_ids"], text["token_logprobs"], text["top_logprobs"]):
            self.assertAlmostEqual(row[token].item(), logprob, places=4)
            best = row.topk(3)
            self.assertEqual(best.indices.tolist(), [each["token_id"] for each in top])
            for value, each in zip(best.values.tolist(), top):
                self.assertAlmostEqual(value, each["logprob"], places=4)
        refused = subprocess.run([cli_util.HOCKET, "generate", self.path("logprobs"), "--prompt", "x", "--logprobs", "3"],
                                 capture_output=True, text=True, check=False)
        self.assertEqual(2, refused.returncode)
        self.assertIn("--logprobs needs --json", refused.stderr)

    def test_stops(self):
        w, c, legal = self.chat_model("stops")
        begin = self.ids("int x =")
        more, _ = greedy(w, begin, 30, self.eos, c, legal)
        whole = self.tokenizer.decode(more, skip_special_tokens=False)
        greedily = ("--prompt", "int x =", "--temperature", "0", "--max-new-tokens", "30")
        # A string across the border of two tokens, of letters that a terminal and JSON show as they are.
        borders = [len(self.tokenizer.decode(more[:n], skip_special_tokens=False)) for n in range(3, 28)]
        stop = next(cut for cut in (whole[at - 1:at + 1] for at in borders) if cut.isascii() and cut.isprintable())
        [text] = self.texts("stops", *greedily, "--stop", stop)
        self.assertEqual(("stop", stop), (text["finish_reason"], text["stop_reason"]))
        length = len(self.tokenizer.decode(text["token_ids"], skip_special_tokens=False))
        self.assertEqual(whole[:length].index(stop) + 2, length)
        self.assertNotIn(stop, text["text"])
        # Tokens that config.json or generation_config.json name, besides the tokenizer's end of text.
        at = next(i for i in range(5, 30) if more[i] not in more[:i])
        for file in "generation_config.json", "config.json":
            with self.subTest(file=file):
                path = os.path.join(self.path("stops"), file)
                before = ""
                if os.path.exists(path):
                    with open(path, encoding="utf-8") as f:
                        before = f.read()
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(dict(json.loads(before or "{}"), eos_token_id=[more[at], 1]), f)
                [text] = self.texts("stops", *greedily)
                self.assertEqual((more[:at], "stop", more[at]),
                                 (text["token_ids"], text["finish_reason"], text["stop_reason"]))
                [text] = self.texts("stops", *greedily, "--ignore-eos")
                self.assertEqual(more, text["token_ids"])
                with open(path, "w", encoding="utf-8") as f:
                    f.write(before or "{}")

    def test_defaults_of_the_models_files(self):
        w, c, legal = self.chat_model("defaults")
        with open(os.path.join(self.path("defaults"), "generation_config.json"), "w", encoding="utf-8") as f:
            json.dump({"do_sample": False, "max_new_tokens": 7, "typical_p": 0.9}, f)
        more, _ = greedy(w, self.ids("int x ="), 7, self.eos, c, legal)
        [text] = self.texts("defaults", "--prompt", "int x =")
        self.assertEqual(more, text["token_ids"])
        [text] = self.texts("defaults", "--prompt", "int x =", "--max-new-tokens", "9")
        self.assertEqual((9, more), (len(text["token_ids"]), text["token_ids"][:7]))
        # A penalty of the file is that of the option, which wins. Below 1 it makes tokens come again.
        prompt = ("--prompt", "int x =", "--max-new-tokens", "60")
        plain = self.texts("defaults", *prompt)
        repeating = self.texts("defaults", *prompt, "--repetition-penalty", "0.05")
        self.assertNotEqual(plain, repeating)
        with open(os.path.join(self.path("defaults"), "generation_config.json"), "w", encoding="utf-8") as f:
            json.dump({"do_sample": False, "repetition_penalty": 0.05}, f)
        self.assertEqual(repeating, self.texts("defaults", *prompt))
        self.assertEqual(plain, self.texts("defaults", *prompt, "--repetition-penalty", "1"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
