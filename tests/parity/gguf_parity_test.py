#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
"""A model folder of transformers, written as GGUF and read again: `tokenizers` gives the same ids, transformers opens the
folder that `checkpoint import` makes of the file, and weights, logits, greedy text and chat template are the same."""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
HOCKET = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket"
SEED = 11
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


KINDS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                       pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "llama-bpe": split(LLAMA3),
    "qwen2": split(QWEN2),
}


def trained(kind):
    """A small tokenizer of one kind, trained on this repository."""
    tok = Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe"))
    tok.pre_tokenizer, tok.decoder = KINDS[kind], decoders.ByteLevel()
    if kind == "qwen2":
        tok.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train([str(path) for path in sorted((ROOT / "docs").glob("*.md"))[:12]], trainer)
    tok.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tok


def texts(count):
    """Texts of words, digits, blanks and line ends in any order, with other alphabets and special tokens."""
    draw = random.Random(SEED)
    pieces = ["a", "the", "It's", "we'LL", "\u00e9t\u00e9", "\u4e2d\u6587", "\U0001f600", "1", "23", "4567", "\u0663",
              "\u00bd", "\u2167", ".", "!?", "--", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000",
              "e\u0301", "<|im_start|>", "<tool>", "_", "x1y2", "#include"]
    return ["".join(draw.choice(pieces) for _ in range(draw.randint(1, 24))) for _ in range(count)]


def hocket(*command):
    done = subprocess.run([HOCKET, *map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"hocket {command}: {done.stderr}")
    return done.stdout


class GgufParity(unittest.TestCase):
    def folder(self, top, kind, tied):
        """A folder as transformers saves it."""
        torch.manual_seed(SEED)
        tok = trained(kind)
        fast = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|im_end|>", bos_token="<|im_start|>",
                                       pad_token="<|endoftext|>", chat_template=TEMPLATE)
        config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                             rms_norm_eps=1e-5, tie_word_embeddings=tied, initializer_range=0.3, bos_token_id=1,
                             eos_token_id=2, pad_token_id=0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        model.save_pretrained(top / "hf")
        fast.save_pretrained(top / "hf")
        return tok, model

    def test_every_pretokenizer(self):
        some = texts(400)
        for kind in KINDS:
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as name:
                top = pathlib.Path(name)
                tok, model = self.folder(top, kind, tied=kind == "smollm")
                hocket("checkpoint", "export", top / "hf", "--out", top / "m.gguf", "--type", "f32")
                (top / "texts").write_text("".join(json.dumps(text) + "\n" for text in some), encoding="utf-8")
                got = [json.loads(line) for line in
                       hocket("data", "encode", top / "m.gguf", "--lines", "--in", top / "texts").splitlines()]
                for text, ids in zip(some, got):
                    self.assertEqual(ids, tok.encode(text, add_special_tokens=False).ids, repr(text))
                self.same_model(top, tok, model, some)

    def same_model(self, top, tok, model, some):
        ids = [tok.encode(text, add_special_tokens=False).ids for text in some[:3]]
        (top / "ids.json").write_text(json.dumps(ids))
        logits = {}
        for name in ("hf", "m.gguf"):
            hocket("eval", top / name, "--ids", top / "ids.json", "--save-logits", top / "logits")
            logits[name] = load_file(top / "logits")
        for name, want in logits["hf"].items():
            self.assertTrue(torch.equal(logits["m.gguf"][name], want), name)
        # No token comes before the prompt.
        prompt = "the plan of"
        start = torch.tensor([tok.encode(prompt, add_special_tokens=False).ids])
        with torch.no_grad():
            made = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=8, do_sample=False,
                                  suppress_tokens=list(range(tok.get_vocab_size(), 512)))  # without a text
        made = made[0, start.shape[1]:].tolist()
        want = tok.decode(made[:made.index(2)] if 2 in made else made, skip_special_tokens=False)
        got = json.loads(hocket("generate", top / "m.gguf", "--prompt", prompt, "--temperature", "0",
                                "--max-new-tokens", "8", "--json"))
        self.assertEqual(got["text"].encode("utf-8", "replace"), want.encode("utf-8", "replace"))

        hocket("checkpoint", "import", top / "m.gguf", "--out", top / "back", "--type", "f32")
        back = AutoModelForCausalLM.from_pretrained(top / "back", dtype=torch.float32)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(back.state_dict()[name], tensor), name)
        again = AutoTokenizer.from_pretrained(top / "back")
        self.assertEqual(again.chat_template, TEMPLATE)
        self.assertEqual((again.bos_token, again.eos_token, again.pad_token), tuple(SPECIAL[i] for i in (1, 2, 0)))
        for text in some[:100]:
            self.assertEqual(again(text, add_special_tokens=False)["input_ids"],
                             tok.encode(text, add_special_tokens=False).ids, repr(text))
        self.assertEqual(back.generation_config.eos_token_id, 2)


if __name__ == "__main__":
    sys.exit(unittest.main())
