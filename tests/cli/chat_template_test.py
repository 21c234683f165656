#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
"""The chat template that a model was trained with (data.chat_template) is in its checkpoints, adapters, merged folders and
GGUF files, in place of the base's, and renders their chats."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.request

import cli_util

TOKENIZER = os.path.join(cli_util.ROOT, "tests/peers/trl/fixtures/bytes")
MODEL = {"model_type": "llama", "vocab_size": 504, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 24, "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
         "max_position_embeddings": 128, "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": 4, "bos_token_id": 1}
LORA = {"type": "lora", "r": 2, "targets": ["q_proj"]}
NEW = ("{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
       "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}")
BY_NEW = "<s><|im_start|>user Hi<|im_end|><|im_start|>assistant "
OLD = "{% for m in messages %}{{ m['role'] }} says {{ m['content'] }}. {% endfor %}"
BY_OLD = "user says Hi. "


class ChatTemplate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("chats.jsonl"), "w", encoding="utf-8") as f:
            for i in range(4):
                f.write(json.dumps({"messages": [{"role": "user", "content": f"{i}"},
                                                 {"role": "assistant", "content": f"{i + 1}"}]}) + "\n")
        self.write("new.jinja", NEW)
        # A base without a template, and one with its own, of which a key has another: the file counts.
        self.train("first", {"config": MODEL})
        shutil.copytree(self.checkpoint("first"), self.path("bare"))
        for name in ("chat_template.jinja", "run.json", "optimizer.safetensors"):
            if os.path.exists(self.path("bare", name)):
                os.remove(self.path("bare", name))
        shutil.copytree(self.path("bare"), self.path("own"))
        self.write("own/chat_template.jinja", OLD)
        config = self.tokenizer_config(self.path("own"))
        self.write("own/tokenizer_config.json", json.dumps({**config, "chat_template": "never this"}))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def checkpoint(self, run, step=1):
        return self.path(run, "checkpoints", f"step-{step:06}")

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def tokenizer_config(self, folder):
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as f:
            return json.load(f)

    def hocket(self, *words, code=0, **more):
        done = subprocess.run([cli_util.HOCKET, *words], capture_output=True, text=True, errors="replace", check=False,
                              cwd=self.folder, timeout=240, **more)
        self.assertEqual(code, done.returncode, f"{words}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
        return done

    def train(self, name, model, *words, adapter=None, **more):
        self.write(name + ".yaml", json.dumps({
            "objective": "sft", "model": model, **({"adapter": adapter} if adapter else {}),
            "data": {"sources": [{"path": self.path("chats.jsonl")}], "valid_fraction": 0, "packing": False,
                     "chat_template": self.path("new.jinja"), **({"tokenizer": TOKENIZER} if "config" in model else {})},
            "train": {"steps": 1, "seq_len": 64, "warmup_steps": 0, "global_batch": 2},
            "output": {"dir": self.path(name), "trace": False, "report": False}}))
        return self.hocket("train", name + ".yaml", *words, **more)

    def rendered(self, *model):
        """Returns the prompt that a message becomes, and standard error."""
        done = self.hocket("generate", *model, "--chat", "Hi", "--max-new-tokens", "1", "--json")
        self.assertNotIn("has no effect", done.stderr)
        return json.loads(done.stdout)["prompt"], done.stderr

    def copy_adapter(self, name):
        """Copies the files of PEFT alone."""
        os.makedirs(self.path(name))
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(os.path.join(self.checkpoint("lora"), file), self.path(name))

    def test_checkpoints_have_it(self):
        self.write("questions.jsonl", json.dumps({"question": "1", "choices": ["2", "3"], "answer": 0}))
        for base in ("bare", "own"):
            for kind, adapter in (("full", None), ("lora", LORA)):
                with self.subTest(f"{base}, {kind}"):
                    run = f"{base}-{kind}"
                    said = self.train(run, {"path": self.path(base)}, adapter=adapter).stdout
                    self.assertEqual(base == "own", f"the chat template {self.path('new.jinja')}, not the model's" in said, said)
                    folder = self.checkpoint(run)
                    with open(os.path.join(folder, "chat_template.jinja"), encoding="utf-8") as f:
                        self.assertEqual(NEW, f.read())
                    self.assertNotIn("chat_template", self.tokenizer_config(folder))
                    copies = [run, folder]
                    if adapter:
                        self.hocket("checkpoint", "merge", run, "--out", run + "-merged")
                        copies.append(run + "-merged")
                    self.hocket("checkpoint", "export", run, "--out", run + ".gguf")
                    for copy in [*copies, run + ".gguf"]:
                        self.assertEqual(BY_NEW, self.rendered(copy)[0], copy)
                    self.assertNotIn("has no effect", self.hocket("eval", run, "--choices", "questions.jsonl").stderr)

    def test_an_adapter_beside_its_base(self):
        self.train("lora", {"path": self.path("own")}, adapter=LORA)
        named = "the chat template is that of the adapter "
        self.assertEqual(BY_OLD, self.rendered("own")[0])
        prompt, said = self.rendered("own", "--adapter", "lora")
        self.assertEqual(BY_NEW, prompt)
        self.assertIn(named + "lora/checkpoints/step-000001", said)
        self.assertIn(named, self.hocket("chat", "own", "--adapter", "lora", "--max-new-tokens", "1", input="Hi\n").stderr)
        self.assertNotIn(named, self.rendered("lora")[1])
        self.hocket("checkpoint", "merge", "lora", "--base", "own", "--out", "merged")
        self.assertEqual(BY_NEW, self.rendered("merged")[0])
        self.assertNotIn("chat_template", self.tokenizer_config(self.path("merged")))

        # Folders of PEFT: without a template, and without a tokenizer that is read here.
        for name in ("plain", "keyed"):
            self.copy_adapter(name)
        self.write("keyed/tokenizer_config.json", json.dumps({"chat_template": NEW}))
        for name, expected in (("plain", BY_OLD), ("keyed", BY_NEW)):
            self.hocket("checkpoint", "merge", name, "--base", "own", "--out", name + "-merged")
            for model in (("own", "--adapter", name), (name,), (name + "-merged",)):
                prompt, said = self.rendered(*model)
                self.assertEqual(expected, prompt, model)
                self.assertEqual(name == "keyed" and name in model, named + name in said, said)

        # A template does not take the place of a tokenizer's configuration.
        shutil.copytree(self.path("own"), self.path("unconfigured"))
        os.remove(self.path("unconfigured", "tokenizer_config.json"))
        self.hocket("checkpoint", "merge", "keyed", "--base", "unconfigured", "--out", "configured")
        config = self.tokenizer_config(self.path("configured"))
        self.assertEqual(("<|im_end|>", "PreTrainedTokenizerFast", NEW),
                         (config["eos_token"], config["tokenizer_class"], config["chat_template"]))

        # An adapter with a tokenizer and no template has its base's.
        shutil.copytree(self.path("plain"), self.path("tokens"))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(self.checkpoint("lora"), file), self.path("tokens"))
        self.hocket("checkpoint", "merge", "tokens", "--out", "tokens-merged")
        for model in (("tokens",), ("own", "--adapter", "tokens"), ("tokens-merged",)):
            self.assertEqual(BY_OLD, self.rendered(*model)[0], model)
        self.train("again", {"path": self.path("tokens"), "init": "weights"}, "--set", "data.chat_template=")
        self.assertEqual(BY_OLD, self.rendered("again")[0])

    def test_a_merged_model_has_the_special_tokens_of_its_adapter(self):
        """A tokenizer in the adapter's folder is saved with it, by PEFT's users: it counts, whether the base is named or not.
        The base's other stop tokens stay."""
        self.write("own/generation_config.json", json.dumps({"eos_token_id": [4, 2], "bos_token_id": 1, "temperature": 0.5}))
        self.train("lora", {"path": self.path("own")}, adapter=LORA)
        for name in ("same", "other"):
            self.copy_adapter(name)
            shutil.copy(self.path("own", "tokenizer.json"), self.path(name))
        own = self.tokenizer_config(self.path("own"))
        self.write("same/tokenizer_config.json", json.dumps(own))
        self.write("other/tokenizer_config.json", json.dumps({**own, "eos_token": "<|eot_id|>", "pad_token": "<unk>"}))
        for options in ((), ("--base", "own")):
            for name, eos, stops, pad in (("same", 4, [4, 2], None), ("other", 5, [4, 2, 5], 0)):
                with self.subTest(name, options=options):
                    merged = f"{name}-{len(options)}"
                    said = self.hocket("checkpoint", "merge", name, *options, "--out", merged).stdout
                    self.assertEqual(name == "other", "the tokenizer is that of the adapter, " in said, said)
                    self.assertEqual(name == "other", "config.json: eos_token_id is 5, not 4" in said, said)
                    found = {}
                    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
                        with open(self.path(merged, file), encoding="utf-8") as f:
                            found[file] = json.load(f)
                    self.assertEqual((eos, pad), (found["config.json"]["eos_token_id"], found["config.json"].get("pad_token_id")))
                    generation = found["generation_config.json"]
                    self.assertEqual((stops, pad, 0.5),
                                     (generation["eos_token_id"], generation.get("pad_token_id"), generation["temperature"]))
                    self.assertEqual("<|eot_id|>" if name == "other" else own["eos_token"],
                                     found["tokenizer_config.json"]["eos_token"])
        said = self.hocket("checkpoint", "export", "other", "--out", "other.gguf").stdout
        self.assertIn("the tokenizer is that of the adapter, other", said)
        # The base's tokenizer can be asked for.
        self.hocket("checkpoint", "merge", "other", "--tokenizer", "own", "--out", "asked")
        self.assertEqual(own["eos_token"], self.tokenizer_config(self.path("asked"))["eos_token"])

    def test_a_server(self):
        self.train("lora", {"path": self.path("own")}, adapter=LORA)
        self.copy_adapter("keyed")
        self.write("keyed/tokenizer_config.json", json.dumps({"chat_template": NEW}))
        with open(self.path("serve.log"), "w+", encoding="utf-8") as log:
            server = subprocess.Popen([cli_util.HOCKET, "serve", "own", "--adapter", "keyed", "--port", "0"], cwd=self.folder,
                                      stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                found, end = None, time.monotonic() + 120
                while not found:
                    with open(log.name, encoding="utf-8") as f:
                        text = f.read()
                    found = re.search(r"serving \S+ at (http://\S+)", text)
                    self.assertTrue(found or (server.poll() is None and time.monotonic() < end), text)
                    time.sleep(0.05)
                self.assertIn("the chat template is that of the adapter keyed", text)
                with urllib.request.urlopen(found.group(1) + "/tokenizer_info", timeout=60) as answer:
                    info = json.load(answer)
                self.assertEqual((NEW, "<s>"), (info["chat_template"], info["bos_token"]))
                body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "return_token_strs": True}).encode()
                request = urllib.request.Request(found.group(1) + "/tokenize", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    self.assertIn("<|im_start|>", json.load(answer)["token_strs"])
            finally:
                server.kill()
                server.wait()

    def test_a_resumed_training(self):
        """A template that makes the same tokens is printed as a changed setting, and saved; another one is refused."""
        self.train("run", {"path": self.path("own")})
        self.write("same.jinja", "{# the same #}" + NEW)
        said = self.train("run", {"path": self.path("own")}, "--set", "train.steps=2", "--set", "data.chat_template=same.jinja")
        self.assertIn('data.chat_template "' + self.path("new.jinja") + '" -> "same.jinja"', said.stdout)
        with open(os.path.join(self.checkpoint("run", 2), "chat_template.jinja"), encoding="utf-8") as f:
            self.assertEqual("{# the same #}" + NEW, f.read())
        self.write("other.jinja", NEW.replace("<|im_end|>", "<|end|>"))
        said = self.train("run", {"path": self.path("own")}, "--set", "train.steps=3", "--set", "data.chat_template=other.jinja",
                          code=2)
        self.assertIn('was saved with data.chat_template = "same.jinja"; this run has data.chat_template = "other.jinja"', said.stderr)


if __name__ == "__main__":
    unittest.main()
