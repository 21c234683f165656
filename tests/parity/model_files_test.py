#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
"""Models copied, exported and fine-tuned: weights keep their types, and transformers finds the tokenizer, chat template,
special tokens, defaults of generation and license that stood beside them. Tokens added to a model: transformers opens it,
with the logits and the rows that its own resize_token_embeddings gives."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
HOCKET = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
CARD = "---\nlicense: apache-2.0\n---\n# A model\n"
VOCABULARY = 320


def hocket(*command):
    done = subprocess.run([HOCKET, *map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"hocket {command}: {done.stdout}{done.stderr}")
    return done.stdout


def make_model(folder, tied=False, rows=VOCABULARY, dtype=torch.float32):
    """A folder as transformers saves it, with all that may stand beside the weights."""
    torch.manual_seed(5)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train([str(ROOT / "README.md")], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token=SPECIAL[1], eos_token=SPECIAL[2], unk_token=SPECIAL[0],
                                   pad_token=SPECIAL[3], chat_template=TEMPLATE, model_max_length=200)
    config = LlamaConfig(vocab_size=rows, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                         tie_word_embeddings=tied, initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=3)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.25, top_k=7, top_p=0.5, bos_token_id=1,
                                               eos_token_id=[2, 0], pad_token_id=3, max_new_tokens=33)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    (folder / "README.md").write_text(CARD)
    (folder / "LICENSE").write_text("Apache License\n")
    (folder / "preprocessor_config.json").write_text("{}")
    return model, tok


def last_logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


class ModelFiles(unittest.TestCase):
    def setUp(self):
        box = tempfile.TemporaryDirectory()
        self.addCleanup(box.cleanup)
        self.top = pathlib.Path(box.name)

    def expect_files(self, folder, stops, but=()):
        """transformers finds in a folder what make_model put there."""
        tok = AutoTokenizer.from_pretrained(folder)
        want = AutoTokenizer.from_pretrained(self.top / "hf")
        self.assertEqual(tok.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False),
                         "<|im_start|>user\nhi<|im_end|>\n")
        for name in ("bos_token", "eos_token", "unk_token", "pad_token", "model_max_length"):
            if name not in but:
                self.assertEqual(getattr(tok, name), getattr(want, name), name)
        generation = GenerationConfig.from_pretrained(folder)
        self.assertEqual(generation.eos_token_id, stops)
        for name, value in (("temperature", 0.25), ("top_k", 7), ("top_p", 0.5), ("do_sample", True),
                            ("max_new_tokens", 33)):
            if name not in but:
                self.assertEqual(getattr(generation, name), value, name)
        self.assertTrue((folder / "README.md").read_text().startswith("---\nlicense: apache-2.0\n"))
        if "LICENSE" not in but:
            self.assertEqual((folder / "LICENSE").read_text(), "Apache License\n")

    def test_types_are_kept(self):
        make_model(self.top / "hf")
        path = self.top / "hf" / "model.safetensors"
        tensors = load_file(path)
        types = [torch.float16, torch.bfloat16, torch.float32]
        mixed = {name: t.to(types[i % 3]) for i, (name, t) in enumerate(sorted(tensors.items()))}
        save_file(mixed, path, metadata={"format": "pt"})
        told = hocket("checkpoint", "import", self.top / "hf", "--out", self.top / "copy")
        self.assertIn("not copied: preprocessor_config.json", told)
        for name, tensor in load_file(self.top / "copy" / "model.safetensors").items():
            self.assertEqual(tensor.dtype, mixed[name].dtype, name)
            self.assertTrue(torch.equal(tensor, mixed[name]), name)
        # A GGUF file and back: vectors are f32 there.
        hocket("checkpoint", "export", self.top / "hf", "--out", self.top / "m.gguf")
        hocket("checkpoint", "import", self.top / "m.gguf", "--out", self.top / "back")
        for name, tensor in load_file(self.top / "back" / "model.safetensors").items():
            self.assertEqual(tensor.dtype, torch.float32 if tensor.ndim == 1 else mixed[name].dtype, name)
            self.assertTrue(torch.equal(tensor.float(), mixed[name].float()), name)
        hocket("checkpoint", "import", self.top / "hf", "--out", self.top / "half", "--type", "bf16")
        for name, tensor in load_file(self.top / "half" / "model.safetensors").items():
            self.assertTrue(torch.equal(tensor, mixed[name].double().to(torch.bfloat16)), name)
        self.assertEqual(json.loads((self.top / "half" / "config.json").read_text())["dtype"], "bfloat16")

    def test_copies_and_gguf_files(self):
        make_model(self.top / "hf")
        hocket("checkpoint", "import", self.top / "hf", "--out", self.top / "copy")
        self.expect_files(self.top / "copy", [2, 0])
        for name in os.listdir(self.top / "hf"):
            if name not in ("config.json", "model.safetensors", "preprocessor_config.json"):
                self.assertEqual((self.top / "hf" / name).read_bytes(), (self.top / "copy" / name).read_bytes(), name)
        told = hocket("checkpoint", "export", self.top / "hf", "--out", self.top / "m.gguf")
        for part in ("max_new_tokens", "model_max_length 200", "LICENSE", "README.md but for its license"):
            self.assertIn("GGUF has no place for " if part == "LICENSE" else part, told)
            self.assertIn(part, told)
        hocket("checkpoint", "import", self.top / "m.gguf", "--out", self.top / "back")
        self.expect_files(self.top / "back", [2, 0], but=("model_max_length", "max_new_tokens", "LICENSE"))
        (self.top / "messages.json").write_text('[{"role": "user", "content": "hi"}]')
        for model in ("m.gguf", "back"):
            text = hocket("data", "chat-template", self.top / model, "--messages", self.top / "messages.json")
            self.assertIn("<|im_start|>user\nhi<|im_end|>", text, model)

    def test_checkpoints_of_training(self):
        make_model(self.top / "hf", dtype=torch.bfloat16)
        data = self.top / "data"
        hocket("data", "prepare", "--files", ROOT / "docs" / "glossary.md", "--out", data, "--tokenizer", self.top / "hf")
        (self.top / "run.yaml").write_text(
            f"model: {{path: {self.top / 'hf'}, dtype: f32}}\ndata: {{dir: {data}}}\n"
            f"train: {{steps: 2, seq_len: 32, global_batch: 2, save_every: 1}}\noutput: {{dir: {self.top / 'out'}}}\n")
        told = hocket("train", self.top / "run.yaml")
        self.assertIn("checkpoints do not get these files", told)
        self.assertIn("preprocessor_config.json", told)
        newest = self.top / "out" / "checkpoints" / "step-000002"
        self.expect_files(newest, [2, 0])
        tensors = load_file(newest / "model.safetensors")
        self.assertEqual({t.dtype for t in tensors.values()}, {torch.float32})
        # The export of a checkpoint has them as well, and its type.
        hocket("checkpoint", "import", self.top / "out", "--out", self.top / "copy")
        self.expect_files(self.top / "copy", [2, 0])
        copied = load_file(self.top / "copy" / "model.safetensors")
        self.assertTrue(all(torch.equal(copied[name], t) for name, t in tensors.items()))
        self.assertFalse((self.top / "copy" / "run.json").exists())

    def test_documents_that_end_otherwise(self):
        make_model(self.top / "hf")
        other = self.top / "other"
        other.mkdir()
        (other / "tokenizer.json").write_bytes((self.top / "hf" / "tokenizer.json").read_bytes())
        (other / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|pad|>"}))
        hocket("data", "prepare", "--files", ROOT / "docs" / "glossary.md", "--out", self.top / "data", "--tokenizer", other)
        (self.top / "run.yaml").write_text(
            f"model: {{path: {self.top / 'hf'}}}\ndata: {{dir: {self.top / 'data'}}}\n"
            f"train: {{steps: 1, seq_len: 32, global_batch: 2}}\noutput: {{dir: {self.top / 'out'}}}\n")
        told = hocket("train", self.top / "run.yaml")
        self.assertIn("eos_token_id is [2, 0, 3], not [2, 0]: documents of the data end with 3", told)
        self.expect_files(self.top / "out" / "checkpoints" / "step-000001", [2, 0, 3])


class AddTokens(unittest.TestCase):
    def compare(self, tied, rows, words, multiple):
        with tempfile.TemporaryDirectory() as name:
            top = pathlib.Path(name)
            model, tok = make_model(top / "hf", tied, rows)
            (top / "t.jinja").write_text("{% for m in messages %}<turn>{{ m['content'] }}{% endfor %}")
            command = ["checkpoint", "add-tokens", top / "hf", "--out", top / "more", "--token", "<turn>", "--token",
                       "<|tool|>", "--eos-token", "<stop>", "--chat-template", top / "t.jinja", "--json",
                       "--pad-to-multiple-of", multiple]
            for word in words:
                command += ["--word", word]
            told = json.loads(hocket(*command))
            again = AutoTokenizer.from_pretrained(top / "more")
            reference = AutoTokenizer.from_pretrained(top / "hf")
            reference.add_special_tokens({"additional_special_tokens": ["<turn>", "<|tool|>"]})
            reference.add_special_tokens({"eos_token": "<stop>"})
            reference.add_tokens(words)
            text = "a<turn>b<|tool|> " + " ".join(words) + " <stop>"
            self.assertEqual(again(text)["input_ids"], reference(text)["input_ids"])
            self.assertEqual(again.eos_token, "<stop>")
            self.assertEqual(again.decode(again(text)["input_ids"], skip_special_tokens=True),
                             reference.decode(reference(text)["input_ids"], skip_special_tokens=True))
            self.assertEqual({token: reference.convert_tokens_to_ids(token) for token in told["tokens"]}, told["tokens"])
            self.assertEqual(again.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False), "<turn>hi")

            loaded, info = AutoModelForCausalLM.from_pretrained(top / "more", dtype=torch.float32,
                                                                output_loading_info=True)
            self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])
            old_ids = tok.encode("the plan of one<|im_end|>", add_special_tokens=False).ids
            want, got = last_logits(model, old_ids), last_logits(loaded.eval(), old_ids)
            known = tok.get_vocab_size()
            self.assertTrue(torch.equal(want[:, :known], got[:, :known]))
            self.assertEqual(loaded.config.eos_token_id, told["tokens"]["<stop>"])
            self.assertEqual(loaded.generation_config.eos_token_id, [2, 0, told["tokens"]["<stop>"]])

            size = max(rows, len(reference))
            model.resize_token_embeddings(size, pad_to_multiple_of=multiple, mean_resizing=False)
            self.assertEqual(loaded.config.vocab_size, model.config.vocab_size)
            for part in ("get_input_embeddings", "get_output_embeddings"):
                theirs, ours = getattr(model, part)().weight, getattr(loaded, part)().weight
                self.assertEqual(theirs.shape, ours.shape)
                self.assertTrue(torch.equal(theirs[:known], ours[:known]))
                mean = theirs[:known].double().mean(0)
                for row in told["tokens"].values():
                    self.assertLess((ours[row].double() - mean).abs().max().item(), 1e-6)

    def test_untied(self):
        self.compare(False, VOCABULARY, ["zzyzx", "hocket"], 8)

    def test_tied(self):
        self.compare(True, VOCABULARY, [], 1)

    def test_spare_rows(self):
        self.compare(False, VOCABULARY + 40, ["zzyzx"], 64)


if __name__ == "__main__":
    sys.exit(unittest.main())
