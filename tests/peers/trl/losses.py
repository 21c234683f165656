# SPDX-License-Identifier: Apache-2.0
"""Trainings whose losses are compared with TRL's trainers: models, adapters, examples and settings of both sides.

Every step has all rows, so the order of rows within a step does not matter: both read the same JSONL file from its text to
the update of the weights."""
import json
import os

from cases import BLOCKS, CHAT_PAIRS, CHAT_UNPAIRED, CHATS, TALK, assistant, user, write_lines

STEPS, LR, DECAY, BETA1, BETA2, EPS, CLIP, SEED = 20, 4e-3, 0.1, 0.9, 0.95, 1e-8, 1.0, 5
VOCAB, PREFERENCE_LENGTH, PACKED_LENGTH = 508, 1024, 96
COMMON = dict(vocab_size=VOCAB, hidden_size=12, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
              intermediate_size=20, max_position_embeddings=2048, rms_norm_eps=1e-6, tie_word_embeddings=False,
              bos_token_id=None, eos_token_id=None, pad_token_id=None)
EXPERTS = dict(COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True, decoder_sparse_step=1,
               mlp_only_layers=[], router_aux_loss_coef=0.0)
LORA = {"llama": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
        "qwen3_moe": dict(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"],
                          target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])}
# name: (objective, model, whether with an adapter, keys of `preference`). TRL 1.16 ignores label_smoothing with loss_type
# sigmoid: tests/train/objectives_test.py compares it with its formula.
CASES = {
    "sft llama": ("sft", "llama", False, {}),
    "sft qwen3_moe": ("sft", "qwen3_moe", False, {}),
    "sft llama lora": ("sft", "llama", True, {}),
    "sft qwen3_moe lora": ("sft", "qwen3_moe", True, {}),
    "dpo llama": ("dpo", "llama", False, {"beta": 0.3}),
    "dpo llama sigmoid_norm": ("dpo", "llama", False, {"beta": 0.3, "loss_type": "sigmoid_norm"}),
    "dpo llama ipo": ("dpo", "llama", False, {"beta": 0.5, "loss_type": "ipo"}),
    "dpo llama hinge": ("dpo", "llama", False, {"beta": 0.2, "loss_type": "hinge"}),
    "dpo qwen3_moe": ("dpo", "qwen3_moe", False, {"beta": 0.3}),
    "dpo llama lora": ("dpo", "llama", True, {"beta": 0.3}),
    "kto llama": ("kto", "llama", False, {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.75}),
    "kto qwen3_moe": ("kto", "qwen3_moe", False, {"beta": 0.3}),
    "kto llama lora": ("kto", "llama", True, {"beta": 0.3}),
}
ANSWERS = ["logps/chosen", "logps/rejected", "logits/chosen", "logits/rejected"]
METRICS = {"sft": [], "dpo": ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", *ANSWERS],
           "kto": ["kl", "rewards/chosen", "rewards/rejected", *ANSWERS]}


def examples(objective):
    if objective == "dpo":
        return CHAT_PAIRS
    if objective == "kto":
        return CHAT_UNPAIRED
    # Each keeps a trained token within PACKED_LENGTH: others would be left out here and be rows of nothing there.
    chats = [example for example in TALK if len(example["messages"][0]["content"]) < 100]
    chats += [{"messages": messages} for name, (messages, _) in CHATS.items() if name in ("one turn", "system", "several turns")]
    return chats + [{"messages": [user(f"Once more, {word}?"), assistant("Yes, " + f"{word} " * count)]}
                    for word, count in (("really", 8), ("again", 20), ("and so on", 12), ("so", 33))]


def write_examples(path, objective):
    write_lines(path, examples(objective))


def run_of(case, folder, model, data, rows, adapter=None, dtype="f64"):
    """The run of a case, as the JSON of a run.yaml; its output is `folder`/out."""
    objective, _, _, preference = CASES[case]
    template = os.path.join(folder, "template.jinja")
    with open(template, "w", encoding="utf-8", newline="") as f:
        f.write(BLOCKS)
    run = {"objective": objective, "model": {"path": str(model), "init": "weights", "dtype": dtype},
           "data": {"sources": [{"path": str(data)}], "valid_fraction": 0, "packing": objective == "sft",
                    "chat_template": template},
           # transformers counts steps from 0: its step of full learning rate is our last one of a warm-up.
           "train": {"steps": STEPS + 1, "global_batch": rows, "seed": SEED, "schedule": "linear", "lr": LR, "min_lr": 0,
                     "seq_len": PACKED_LENGTH if objective == "sft" else PREFERENCE_LENGTH, "warmup_steps": 1,
                     "max_grad_norm": CLIP, "balance_coef": 0, "save_minutes": 0, "eval_every": 0},
           "optimizer": {"weight_decay": DECAY, "beta1": BETA1, "beta2": BETA2, "eps": EPS},
           "plan": {"micro_batch": rows, "threads_per_rank": 1},
           "output": {"dir": os.path.join(folder, "out"), "report": False, "trace": False, "baselines": "none",
                      "sample_tokens": 0}}
    if preference:
        run["preference"] = preference
    if adapter is not None:
        run["adapter"] = {"type": "lora", "path": str(adapter)}
    return json.dumps(run)
