#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hocket plan convert --from deepspeed, verl, axolotl and torchtitan's JSON: the run that comes out is checked and
simulated; a search takes a file's model; unknown keys are refused with the nearest."""
import json
import unittest

from plan_box import PlanBox

CLUSTER = ("--cluster", "configs/clusters/h100-64x8.yaml")
DEEPSPEED = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
             "zero_optimization": {"stage": 2}, "steps_per_print": 5,
             "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
VERL = """#!/bin/bash
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=a.parquet \\
    data.train_batch_size=16 data.max_prompt_length=32 data.max_response_length=32 \\
    actor_rollout_ref.model.path=model actor_rollout_ref.actor.ppo_mini_batch_size=8 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.n=4 \\
    trainer.n_gpus_per_node=4 trainer.nnodes=1 trainer.total_training_steps=10 trainer.logger=console $@
"""
AXOLOTL = """base_model: model
datasets:
  - path: a.jsonl
    type: chat_template
sequence_len: 64
micro_batch_size: 1
gradient_accumulation_steps: 2
max_steps: 10
optimizer: adamw_torch
learning_rate: 1e-4
bf16: true
sample_packing: true
fsdp:
  - full_shard
logging_steps: 1
"""


def torchtitan(**training):
    attention = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "wo": {"in_features": 32, "out_features": 32}, "qk_norm": {"eps": 1e-6},
                 "rope": {"max_seq_len": 4096, "theta": 10000.0, "scaling": "none"}}
    layer = {"attention": attention, "feed_forward": {"w1": {"in_features": 32, "out_features": 64}}, "moe": None}
    return json.dumps({
        "model_spec": {"name": "qwen3", "flavor": "tiny", "model": {"dim": 32, "vocab_size": 512, "layers": [layer] * 4}},
        "training": {"max_context_length": 64, "num_tokens_per_microbatch_per_dp_rank": 128, "steps": 10, **training},
        "parallelism": {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 2}, "activation_checkpoint": None})


class ImportersTest(PlanBox):
    def convert(self, tool, text, *more):
        self.put("file", text)
        told = self.good("plan", "convert", "--from", tool, "file", "--out", "run.yaml", *more)
        self.assertIn("good", self.good("check", "run.yaml"))
        self.good("simulate", "run.yaml", *CLUSTER)
        return told

    def test_deepspeed(self):
        self.model()
        told = self.convert("deepspeed", json.dumps(DEEPSPEED), "--ranks", "4", "--set", "model.path=model", "--set",
                            "train.seq_len=64")
        self.assertIn("ignored  steps_per_print = 5", told)
        plan, train = self.keys("run.yaml")
        self.assertEqual((plan["dp"], plan["micro_batch"], train["global_batch"], plan["shard"]["grads"]), (4, 2, 16, "all"))
        self.refused("names no model; expected --set model.path=MODEL", "plan", "convert", "--from", "deepspeed", "file",
                     "--ranks", "4")
        self.put("file", json.dumps({**DEEPSPEED, "zero_optimisation": {"stage": 2}}))
        self.refused("try zero_optimization.stage", "plan", "convert", "--from", "deepspeed", "file", "--ranks", "4", "--set",
                     "model.path=model")

    def test_verl(self):
        self.model()
        told = self.convert("verl", VERL)
        self.assertIn("ignored  trainer.logger = console", told)
        plan, train = self.keys("run.yaml")
        self.assertEqual((plan["dp"], plan["micro_batch"], plan["shard"]["params"], train["seq_len"], train["steps"]),
                         (4, 2, "all", 64, 20))
        ppo = self.convert("verl", VERL.replace("adv_estimator=grpo", "adv_estimator=gae"))
        self.assertIn("note     model.dtype is f32, which a critic needs here", ppo)
        self.put("file", VERL.replace("train_batch_size", "train_batchsize"))
        self.refused("try data.train_batch_size", "plan", "convert", "--from", "verl", "file")

    def test_axolotl(self):
        self.model()
        told = self.convert("axolotl", AXOLOTL, "--ranks", "4")
        self.assertIn("ignored  logging_steps = 1", told)
        plan, train = self.keys("run.yaml")
        self.assertEqual((plan["dp"], plan["shard"]["params"], train["global_batch"], train["steps"]), (4, "all", 8, 10))
        self.put("file", AXOLOTL.replace("learning_rate", "learning_rat"))
        self.refused("line 10: learning_rat is 1e-4, and no release of Axolotl has that key; expected a known one; try "
                     "learning_rate", "plan", "convert", "--from", "axolotl", "file")

    def test_json_of_torchtitan(self):
        self.convert("torchtitan", torchtitan(num_tokens_per_train_step=1024))
        plan, train = self.keys("run.yaml")
        self.assertEqual((plan["dp"], plan["tp"], plan["micro_batch"], train["global_batch"], train["seq_len"]),
                         (2, 2, 2, 16, 64))
        self.put("file", torchtitan(num_tokens_per_train_stp=1024))
        self.refused("try training.num_tokens_per_train_step", "plan", "convert", "--from", "torchtitan", "file")
        self.put("file", torchtitan())
        self.good("plan", "file", "--from", "torchtitan", *CLUSTER, "--ranks", "16", "--time-limit", "0.01", "--out", "found.yaml")
        self.assertIn("good", self.good("check", "found.yaml"))

    def test_whole_gradients_beside_sharded_parameters_are_told(self):
        self.model()
        self.put("run.yaml", "{model: {path: model}, train: {global_batch: 8, seq_len: 64}, plan: {dp: 2, shard: {params: all}}}")
        told = self.good("plan", "convert", "run.yaml", "--out", "again.yaml")
        self.assertIn("note     plan.shard.grads is none: gradients stay whole over the 4 micro-batches of a step", told)
        self.assertNotIn("note", self.good("plan", "convert", "run.yaml", "--set", "plan.shard.grads=all", "--out", "again.yaml"))
        self.assertNotIn("note", self.good("plan", "convert", "run.yaml", "--set", "train.global_batch=2", "--out", "again.yaml"))

    def test_formats(self):
        self.put("file", "a: 1\n")
        self.refused("--from] is 'nemo'; expected one of megatron, torchtitan, deepspeed, verl, axolotl", "plan", "convert", "file",
                     "--from", "nemo")
        self.refused("--emit] is 'verl'; expected megatron or torchtitan", "plan", "convert", "file", "--emit", "verl")


if __name__ == "__main__":
    unittest.main()
