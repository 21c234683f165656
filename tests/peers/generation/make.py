#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures with Hugging Face transformers in fp64: greedy texts of tiny models, one or more of every family, with the
log-probability of each of their tokens. Last, texts of SmolLM2-135M-Instruct are compared (real_model.py)."""
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.dirname(HERE), os.path.join(ROOT, "tests", "parity")]
import formula  # noqa: E402
import make_models  # noqa: E402
import served  # noqa: E402

# Models of tests/parity/make_models.py. Between them plans split heads, key heads, layers and experts unevenly.
MODELS = ("llama-gqa", "llama-headdim", "llama-parallel", "mistral-window", "qwen2-window", "qwen3-window", "smollm3", "olmo2",
          "phi3", "gemma2", "gemma3", "granite", "gpt2", "neox", "moe-top2", "moe-mixtral", "moe-olmoe")
LENGTHS = (1, 2, 7, 19, 32, 33, 64, 100)  # pages have 32 tokens
NEW_TOKENS = 32
POSITIONS = 160
MARGIN = 1e-5  # of the router's probabilities; below it fp32 may choose another expert


def config_of(name):
    family, arguments, _ = make_models.MODELS[name]
    positions = "n_positions" if family == "gpt2" else "max_position_embeddings"
    sizes = {"pad_token_id": None, **arguments, "vocab_size": served.VOCABULARY, positions: POSITIONS}
    return family, make_models.classes(family)[0](**sizes, bos_token_id=None, eos_token_id=None)


def stored(model):
    """Returns {name: shape} of the model's own safetensors, and its config.json."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
            shapes = {name: list(f.get_slice(name).get_shape()) for name in f.keys()}
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            return shapes, json.load(f)


def greedy(model, prompt, count):
    """Returns the most likely text, and for each of its steps how far the two best logits are apart."""
    ids, gaps = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            best = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
            ids.append(best.indices[0].item())
            gaps.append((best.values[0] - best.values[1]).item())
    return ids[len(prompt):], gaps


def log_probabilities(model, ids):
    """Returns those of all tokens but the first."""
    with torch.no_grad():
        rows = torch.log_softmax(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double(), -1)
    return [rows[i, token].item() for i, token in enumerate(ids[1:])]


def fixture(name):
    family, config = config_of(name)
    shapes, written = stored(make_models.new_model(family, copy.deepcopy(config)))
    with tempfile.TemporaryDirectory() as folder:
        served.write_folder(folder, written, shapes)
        loaded = make_models.classes(family)[1].from_pretrained(folder, dtype=torch.float32,
                                                                **make_models.extra_arguments(family)).eval()
    model = make_models.exact(family, loaded)
    with make_models.fp64_alone():
        for seed in range(100):
            generator = random.Random(seed)
            prompts = [[generator.randrange(served.VOCABULARY) for _ in range(length)] for length in LENGTHS]
            texts, gaps = zip(*(greedy(model, prompt, NEW_TOKENS) for prompt in prompts))
            wholes = [prompt + text for prompt, text in zip(prompts, texts)]
            if make_models.routing_margin(model, wholes) > MARGIN:
                break
        else:
            sys.exit(f"make.py: no prompts give {name} a clear routing")
        values = [log_probabilities(model, ids) for ids in wholes]
    near = [next((i for i, gap in enumerate(row) if gap < served.NEAR), None) for row in gaps]
    print(f"{name}: {len({token for text in texts for token in text})} different tokens in texts, smallest gap of two best "
          f"logits {min(min(row) for row in gaps):.1e}, {sum(x is not None for x in near)} near ties, seed {seed}", flush=True)
    return {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}", "config": written,
            "shapes": shapes, "prompts": prompts, "texts": texts, "near_ties": near,
            "log_probabilities": [[round(x, 8) for x in row] for row in values]}


def main():
    missing = set(make_models.families_of_hocket()) - {make_models.MODELS[name][0] for name in MODELS}
    if missing:
        sys.exit(f"make.py: no model of {', '.join(sorted(missing))}; expected one of every family of models.inc")
    torch.set_num_threads(1)  # the models are tiny
    os.makedirs(served.FIXTURES, exist_ok=True)
    for name in sys.argv[1:] or MODELS:
        with open(os.path.join(served.FIXTURES, name + ".json"), "w", encoding="utf-8") as f:
            text = json.dumps(fixture(name), sort_keys=True, separators=(",", ":"))
            f.write(re.sub(r'("\w+":\[\[|"shapes")', r"\n\1", text) + "\n")
    if len(sys.argv) == 1:
        sys.exit(subprocess.call([sys.executable, os.path.join(HERE, "real_model.py")]))


if __name__ == "__main__":
    main()
