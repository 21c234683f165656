# SPDX-License-Identifier: Apache-2.0
"""Losses of TRL's SFTTrainer, DPOTrainer and KTOTrainer over 20 steps of tiny models in fp64, for make.py.

Weights of models and adapters follow from a formula. Examples go through TRL from the JSON lines to the loss."""
import json
import os
import tempfile

import losses
import peft
import torch
import transformers
import trl
from cases import BLOCKS, HERE
from datasets import load_dataset
from safetensors import safe_open

import formula

CONFIGS = {"llama": lambda: transformers.LlamaConfig(**losses.COMMON),
           "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**losses.EXPERTS)}
TRAINERS = {"sft": (trl.SFTTrainer, trl.SFTConfig), "dpo": (trl.DPOTrainer, trl.DPOConfig), "kto": (trl.KTOTrainer, trl.KTOConfig)}


def shapes_of(path):
    with safe_open(path, "pt") as f:
        return {name: list(f.get_slice(name).get_shape()) for name in f.keys()}


def open_base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                             experts_implementation="eager")


def made(name, lora, top):
    """Folders of the model and of its adapter (or None), with their configurations and shapes."""
    base, adapter = os.path.join(top, "base"), os.path.join(top, "adapter")
    transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).save_pretrained(base)
    held = {"shapes": shapes_of(os.path.join(base, "model.safetensors"))}
    formula.write_safetensors(os.path.join(base, "model.safetensors"), held["shapes"])
    with open(os.path.join(base, "config.json"), encoding="utf-8") as f:
        held["config"] = json.load(f)
    if not lora:
        return base, None, held
    peft.get_peft_model(open_base(base), peft.LoraConfig(task_type="CAUSAL_LM", **losses.LORA[name])).save_pretrained(adapter)
    held["adapter_shapes"] = shapes_of(os.path.join(adapter, "adapter_model.safetensors"))
    formula.write_safetensors(os.path.join(adapter, "adapter_model.safetensors"), held["adapter_shapes"])
    held["adapter_config"] = formula.adapter_config(adapter, name)
    return base, adapter, held


def trained(case, tokenizer, top):
    """The fixture of a case: rows, losses and metrics of every step, before its update."""
    objective, name, lora, preference = losses.CASES[case]
    base, adapter, held = made(name, lora, top)
    model = open_base(base)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True).double()
    data = os.path.join(top, "examples.jsonl")
    losses.write_examples(data, objective)
    dataset = load_dataset("json", data_files=data, split="train", cache_dir=os.path.join(top, "cache"))
    trainer_class, config_class = TRAINERS[objective]
    found = []

    class Trainer(trainer_class):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            found.append({"loss": loss.item()})
            return loss

        def log(self, logs, *args, **kwargs):
            super().log(logs, *args, **kwargs)
            if "loss" in logs:
                found[-1].update({key: logs[key] for key in losses.METRICS[objective]})

    more = dict(preference)
    reference = {}
    if objective == "sft":
        more = dict(packing=True, packing_strategy="bfd", assistant_only_loss=True, max_length=losses.PACKED_LENGTH)
    else:
        more.update(max_length=losses.PREFERENCE_LENGTH)
        if not lora:
            reference = dict(ref_model=open_base(base))
        if "loss_type" in more:
            more["loss_type"] = [more["loss_type"]]

    def settings(rows):
        return config_class(
            output_dir=os.path.join(top, "out"), max_steps=losses.STEPS, per_device_train_batch_size=rows, learning_rate=losses.LR,
            lr_scheduler_type="linear", warmup_steps=0, weight_decay=losses.DECAY, adam_beta1=losses.BETA1,
            adam_beta2=losses.BETA2, adam_epsilon=losses.EPS, max_grad_norm=losses.CLIP, seed=losses.SEED, bf16=False, use_cpu=True,
            optim="adamw_torch", gradient_checkpointing=False, logging_steps=1, save_strategy="no", report_to=[],
            disable_tqdm=True, dataloader_pin_memory=False, **more)

    trainer = Trainer(model=model, args=settings(len(dataset)), train_dataset=dataset, processing_class=tokenizer, **reference)
    rows = len(trainer.train_dataset)
    if rows != len(dataset):  # packed: a batch for all rows of a step
        trainer = Trainer(model=model, args=settings(rows), train_dataset=dataset, processing_class=tokenizer)
    trainer.train()
    if len(found) != losses.STEPS or rows % 2 != 0:
        raise SystemExit(f"{case}: {len(found)} steps of {rows} rows; expected {losses.STEPS} of an even number")
    print(f"{case}: {rows} rows, loss {found[0]['loss']:.4f} to {found[-1]['loss']:.4f}", flush=True)
    return {**held, "rows": rows, "steps": [{key: round(value, 9) for key, value in step.items()} for step in found]}


def main(tokenizer):
    torch.set_num_threads(1)
    tokenizer.chat_template = BLOCKS
    held = {"made_with": f"trl {trl.__version__}, transformers {transformers.__version__}, peft {peft.__version__}, "
                         f"torch {torch.__version__}"}
    for case in losses.CASES:
        with tempfile.TemporaryDirectory() as top:
            held[case] = trained(case, tokenizer, top)
    with open(HERE / "fixtures/losses.json", "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
                                   for key, value in held.items()) + "\n}\n")
