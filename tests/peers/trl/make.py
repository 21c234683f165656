#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ids and masks of TRL's trainers. fixtures/masks.json has those of our own templates and texts, and hashes for every
template in TRL's wheel with generation blocks; these templates are not ours, so they stay in .venv-peers/trl/templates."""
import hashlib
import json
import os
import pathlib
import re
import types

os.environ["TOKENIZERS_PARALLELISM"] = "false"
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
import sys  # noqa: E402
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "tests/parity")]
import make_losses  # noqa: E402
from cases import BLOCKS, CHATS, LENGTHS, SETS, TOOLS  # noqa: E402
from chat_templates import as_read  # noqa: E402
import trl  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402
from transformers.utils import logging  # noqa: E402
from trl import pack_dataset  # noqa: E402
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer  # noqa: E402
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer  # noqa: E402
from trl.trainer.sft_trainer import SFTTrainer  # noqa: E402

# BPE of a few hundred tokens, trained once on sources of this project: of bytes, and of characters with a marked blank and a
# beginning. They are inputs of the fixtures: other tokens would change the lengths of all rows.
TOKENIZERS = ("bytes", "marks")
NAMES = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}


class Examples(list):
    """The part of a datasets.Dataset that TRL prepares examples with, which keeps them as they are: Arrow adds keys."""
    column_names = None

    def map(self, function, fn_kwargs=None, batched=False, batch_size=None, remove_columns=None, **_):
        fn_kwargs = fn_kwargs or {}
        if batched:
            out = []
            for at in range(0, len(self), batch_size or len(self)):
                part = self[at:at + (batch_size or len(self))]
                columns = function({key: [example[key] for example in part] for key in part[0]}, **fn_kwargs)
                out += [dict(zip(columns, values)) for values in zip(*columns.values())]
            return Examples(out)
        drop = [remove_columns] if isinstance(remove_columns, str) else remove_columns or []
        return Examples({key: value for key, value in {**example, **function(dict(example), **fn_kwargs)}.items()
                         if key not in drop} for example in self)

    def filter(self, function, **_):
        return Examples(filter(function, self))


def settings(length, **more):
    return types.SimpleNamespace(dataset_num_proc=None, dataset_text_field="text", shuffle_dataset=False, max_length=length,
                                 truncation_mode="keep_start", packing_strategy="bfd", **more)


def sft(tokenizer, example, length, template=None, assistant=False):
    """[ids, trained] of an example, [] if it is dropped, or "refused"."""
    trainer = types.SimpleNamespace(_tokenizer=tokenizer, chat_template=template, completion_only_loss="completion" in example)
    try:
        rows = SFTTrainer._prepare_dataset(trainer, Examples([example]), tokenizer, settings(length, assistant_only_loss=assistant),
                                           False, None, "train")
    except Exception as error:  # jinja2's, and TRL's for an example without a trained token
        return f"refused: {type(error).__name__}"
    return [[row["input_ids"], [0] + [int(label != -100) for label in row["labels"][1:]]] for row in rows]


def preference(tokenizer, examples, length):
    rows = DPOTrainer._prepare_dataset(types.SimpleNamespace(_tokenizer=tokenizer), Examples(examples), tokenizer,
                                       settings(None), "train")
    collate = DataCollatorForPreference(pad_token_id=0, max_length=length)
    return [collated(collate([row]), "") for row in rows]


def collated(batch, prefix):
    return [[ids[:n], [0] + mask[1:n]] for ids, mask, n in zip(
        batch[prefix + "input_ids"].tolist(), batch[prefix + "completion_mask"].tolist(),
        batch[prefix + "attention_mask"].sum(1).tolist())]


def unpaired(tokenizer, examples, length):
    trainer = types.SimpleNamespace(_tokenizer=tokenizer, calculate_KL=True)
    rows = KTOTrainer._prepare_dataset(trainer, Examples(examples), tokenizer, settings(
        None, per_device_train_batch_size=len(examples), desirable_weight=1.0, undesirable_weight=1.0), "eval")
    collate = DataCollatorForUnpairedPreference(pad_token_id=0, max_length=length)
    return [collated(collate([row]), "") for row in rows], [collated(collate([row]), "KL_") for row in rows]


def own(tokenizer):
    """Everything about our own examples, as it is."""
    out = {}
    for name, examples in SETS.items():
        tokenizer.chat_template = BLOCKS
        for length in LENGTHS:
            key = f"{name}, {length}"
            if "preference" in name:
                out[key] = preference(tokenizer, examples, length)
            elif "unpaired" in name:
                out[key], out[key + ", mismatched"] = unpaired(tokenizer, examples, length)
            else:
                out[key] = [sft(tokenizer, example, length, BLOCKS, name == "chat") for example in examples]
    return out


def rows_of(tokenizer):
    """Lengths of the examples in TRL's packed rows."""
    from datasets import Dataset
    out = {}
    ids = [sft(tokenizer, example, 4096)[0][0] for example in SETS["text"] + SETS["completion"]] * 3
    for length in (64, 200):
        packed = pack_dataset(Dataset.from_dict({"input_ids": ids}), length, "bfd")
        out[str(length)] = sorted(sorted(lengths) for lengths in packed["seq_lengths"])
    return out


def hash_of(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def theirs(tokenizer, template):
    out = {}
    for name, (messages, with_tools) in CHATS.items():
        example = {"messages": as_read(template, messages, **NAMES), **({"tools": TOOLS} if with_tools else {})}
        for length in LENGTHS:
            got = sft(tokenizer, example, length, template, True)
            out[f"{name}, {length}"] = got if isinstance(got, str) else hash_of(got)
    return out


def main():
    logging.set_verbosity_error()
    folder = ROOT / ".venv-peers/trl/templates"
    os.makedirs(folder, exist_ok=True)
    held = {"made_with": f"trl {trl.__version__}", "own": {}, "rows": {}, "templates": {}}
    found = sorted((pathlib.Path(trl.__file__).parent / "chat_templates").glob("*_training.jinja"))
    for name in TOKENIZERS:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE / "fixtures" / name / "tokenizer.json"), **NAMES)
        held["own"][name] = own(tokenizer)
        held["rows"][name] = rows_of(tokenizer)
        for template in found:
            # A fixture is of one day.
            text = re.sub(r"strftime_now\([^)]*\)", '"2026-01-31"', template.read_text(encoding="utf-8"))
            (folder / template.name).write_text(text, encoding="utf-8")
            entry = held["templates"].setdefault(template.name, {"template": hash_of(text), "masks": {}})
            entry["masks"][name] = theirs(tokenizer, text)
    with open(HERE / "fixtures/masks.json", "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
                                   for key, value in held.items()) + "\n}\n")
    make_losses.main(PreTrainedTokenizerFast(tokenizer_file=str(HERE / "fixtures/bytes/tokenizer.json"), **NAMES))
    print(f"{len(found)} templates, {sum(len(e) for e in held['own'].values())} lists of our own examples")


if __name__ == "__main__":
    main()
