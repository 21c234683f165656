#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens Hocket checkpoints with transformers (model and tokenizer) and compares their logits with `hocket eval`.

CHECKPOINT is the folder that holds config.json, or one above it. Checks that every tensor of the file is used,
that none is made up, that AutoTokenizer gives the ids of tokenizer.json and decodes them back, and that logits
agree to the tolerance. Ends with `N passed, N failed`; exit code 1 on failure.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_models  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXTS = ["#include <vector>\n\nnamespace std {\n", "template <typename T>\n  constexpr bool is_same_v = true;",
         "  // \u00e9t\u00e9 \u4e2d\u6587 \U0001f600 tabs\tand   spaces  \n", "x"]


def model_folder(path):
    for pattern in ("config.json", "*/config.json", "*/*/config.json"):
        found = sorted(glob.glob(os.path.join(path, pattern)))
        if found:
            return os.path.dirname(found[-1])
    sys.exit(f"checkpoint_opens.py: no config.json in or under {path}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint", nargs="+")
    ap.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    ap.add_argument("--tolerance", type=float, default=1e-4)
    ap.add_argument("--no-tokenizer", action="store_true", help="the folder has no tokenizer: use random ids")
    args = ap.parse_args()
    results = [good for checkpoint in args.checkpoint for good in opens(args, checkpoint)]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def opens(args, checkpoint):
    """Prints a line for each check of one checkpoint, and returns which of them hold."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    results = []

    def report(what, good, detail=""):
        results.append(bool(good))
        print(f"{'ok    ' if good else 'FAILED'} {what}{': ' + detail if detail else ''}", flush=True)

    print(checkpoint)
    folder = model_folder(checkpoint)
    config = AutoConfig.from_pretrained(folder)
    extra = make_models.extra_arguments(config.model_type)
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **extra)
    model.eval()
    problems = {k: sorted(map(str, v))[:4] for k, v in info.items() if v and k.endswith(("_keys", "_msgs"))}
    report("every tensor of the checkpoint is used and none is absent", not problems, str(problems or ""))

    if args.no_tokenizer:
        gen = torch.Generator().manual_seed(7)
        ids = [torch.randint(0, config.vocab_size, (n,), generator=gen).tolist() for n in (9, 31, 2)]
    else:
        from tokenizers import Tokenizer

        tok = AutoTokenizer.from_pretrained(folder)
        raw = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        ids = [tok(t, add_special_tokens=False)["input_ids"] for t in TEXTS]
        want = [raw.encode(t, add_special_tokens=False).ids for t in TEXTS]
        report("AutoTokenizer gives the ids of tokenizer.json", ids == want, f"{type(tok).__name__}, {len(tok)} tokens")
        back = [tok.decode(i, clean_up_tokenization_spaces=False) for i in ids]
        report("decoding gives the text back", back == TEXTS, "" if back == TEXTS else repr(back))
        # The folder alone says where generation ends: once the end of text is the most likely token, it stops.
        end = tok.eos_token_id

        def end_after_four(sequence, scores):
            if sequence.shape[1] >= len(ids[3]) + 4:
                scores[:, end] = scores.max() + 1
            return scores

        made = model.generate(torch.tensor([ids[3]]), max_new_tokens=40, do_sample=False, use_cache=False,
                              logits_processor=LogitsProcessorList([end_after_four]))[0].tolist()
        report("generate stops at the end of text", end is not None and made[-1] == end and len(made) <= len(ids[3]) + 5,
               f"eos_token_id {model.generation_config.eos_token_id}, {len(made) - len(ids[3])} of 40 new tokens")
        top = max(max(i) for i in ids)
        report("ids are below vocab_size", top < config.vocab_size and len(tok) <= config.vocab_size,
               f"{len(tok)} tokens, vocab_size {config.vocab_size}")

    with tempfile.TemporaryDirectory(prefix="checkpoint_opens.") as tmp:
        ids_file, out = os.path.join(tmp, "ids.json"), os.path.join(tmp, "logits.safetensors")
        with open(ids_file, "w") as f:
            json.dump(ids, f)
        command = [args.hocket, "eval", checkpoint, "--ids", ids_file, "--save-logits", out]
        r = subprocess.run(command, capture_output=True, text=True)
        report("hocket eval on the checkpoint", r.returncode == 0, (r.stdout + r.stderr).strip()[-800:] if r.returncode else "")
        if r.returncode == 0:
            got = load_file(out)
            for i, s in enumerate(ids):
                with torch.no_grad():
                    want = model(input_ids=torch.tensor([s]), use_cache=False).logits[0].double()
                x = got.get(f"logits.{i}")
                if x is None or x.shape != want.shape:
                    report(f"logits.{i}", False, f"got {None if x is None else list(x.shape)}; expected {list(want.shape)}")
                    continue
                d = x.double() - want
                l2, top = (d.norm() / want.norm()).item(), (d.abs().max() / want.abs().max()).item()
                report(f"logits.{i}", l2 <= args.tolerance and top <= args.tolerance, f"relative L2 {l2:.1e}, max {top:.1e}")
    return results


if __name__ == "__main__":
    sys.exit(main())
