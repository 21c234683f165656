# SPDX-License-Identifier: Apache-2.0
"""Small trainings by rewards for tests: files of a task, a run on them, its metrics and samples."""
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import cli_util  # pylint: disable=wrong-import-position

WIDTHS = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 4, "intermediate_size": 24, "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
          "max_position_embeddings": 64, "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": 0,
          "bos_token_id": 0, "initializer_range": 0.3}
DENSE = dict(WIDTHS, model_type="llama")
MOE = dict(WIDTHS, model_type="qwen3_moe", tie_word_embeddings=False, num_experts=4, num_experts_per_tok=2,
           moe_intermediate_size=8, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
           router_aux_loss_coef=0.0)


# Bytes of a rank: six pages of 32 tokens, for eight texts of up to three (long_prompts).
FEW_PAGES = 48 * 1024


def only(path):
    """Returns section data with these prompts to train on, and none held out."""
    return {"sources": [{"path": path}], "evaluation": [], "valid_fraction": 0}


class RlTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.hocket("data", "task", "reverse", "--out", "task", "--digits", "4", "--train", "64", "--held-out", "8",
                 "--warmup", "64")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def hocket(self, *words, code=0, timeout=300):
        done = subprocess.run([cli_util.HOCKET, *map(str, words)], capture_output=True, text=True, check=False,
                              cwd=self.folder, timeout=timeout)
        self.assertEqual(code, done.returncode, f"{words}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
        return done.stdout + done.stderr

    def write_run(self, name, config=None, **sections):
        """Writes NAME.yaml: three updates of four prompts with four samples, on random weights."""
        run = {"objective": "rl",
               "model": {"config": config or DENSE},
               "data": {"tokenizer": self.path("task"), "sources": [{"path": self.path("task/train.jsonl")}],
                        "evaluation": [{"name": "held_out", "path": self.path("task/held_out.jsonl")}]},
               "train": {"steps": 3, "seq_len": 32, "lr": 0.01, "schedule": "constant", "warmup_steps": 0, "seed": 3},
               "optimizer": {"weight_decay": 0},
               "rl": {"prompts_per_step": 4, "samples_per_prompt": 4, "max_new_tokens": 6, "eval_prompts": 4,
                          "rewards": [{"type": "digits"}], "max_num_seqs": 8, "max_num_batched_tokens": 16,
                      "trajectories": True},
               "output": {"dir": self.path(name), "trace": False, "report": False}}
        for section, keys in sections.items():
            run[section] = keys if section == "model" else {**run.get(section, {}), **keys}
        with open(self.path(name + ".yaml"), "w", encoding="utf-8") as f:
            json.dump(run, f)
        return self.path(name + ".yaml")

    def rl(self, name, *words, **options):
        return self.hocket("rl", self.path(name + ".yaml"), *words, **options)

    def long_prompts(self, config, **rl):
        """Returns a configuration, and sections of a run of one update whose prompts fill a page of the cache that a group shares. With
        kv_cache_memory FEW_PAGES samples give way to each other, and are computed again."""
        draw = random.Random(1)
        with open(self.path("long.jsonl"), "w", encoding="utf-8") as f:
            for _ in range(16):
                digits = "".join(draw.choices("0123456789", k=40))
                f.write(json.dumps({"prompt": f"r{digits}=", "ground_truth": digits[::-1]}) + "\n")
        return dict(config, max_position_embeddings=128), {
            "data": only(self.path("long.jsonl")), "train": {"steps": 1, "seq_len": 128}, "rl": {"max_new_tokens": 40, **rl}}

    def metrics(self, name):
        """Lines of updates, then of evaluations."""
        with open(self.path(name, "metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        return [line for line in lines if "train/loss" in line], [line for line in lines if "train/loss" not in line]

    def samples(self, name):
        """Tokens, log-probabilities and advantages of all samples that were trained on."""
        found = []
        for path in sorted(glob.glob(self.path(name, "trajectories", "step-*.jsonl"))):
            with open(path, encoding="utf-8") as f:
                for line in f:
                    row = json.loads(line)
                    found.append((row["group_index"], row["index"], row["tokens"], row["rollout_log_probs"],
                                  row["advantages"], row["reward"]))
        return found

    def remove(self, name):
        shutil.rmtree(self.path(name))
