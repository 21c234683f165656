#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: serial
# ctest: slow, without sanitizers
# ctest: timeout=900
"""Bytes on the links of a cluster in a box agree with a program's own count (`bytes_sent` of `hocket simulate --json`:
docs/collectives.md has the formulas) within 2 %, along every axis.

The difference of two runs of different lengths cancels all traffic besides the steps. At the end of a training with
split parameters, each rank receives them once for the sample, whatever the length of the text."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR") or pathlib.Path(__file__).resolve().parents[2])
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))
HOCKET, TOOL = BUILD / "hocket", ROOT / "tools" / "cluster"
sys.path.insert(0, str(ROOT / "tools"))
import netbox  # noqa: E402

MODEL = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 2048, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "hidden_act": "silu",
}
HOSTS, TOLERANCE = 4, 0.02
SHORT, LONG, TOKENS = 2, 10, 8

PLANS = [
    ["dp=4"],
    ["dp=4", "ep=4"],
    ["dp=4", "all_reduce=ring"],
    ["dp=4", "all_reduce=halving_doubling"],
    ["dp=4", "shard.optimizer=all"],
    ["dp=4", "shard.params=all", "shard.grads=all"],
    ["dp=4", "shard.group=2", "shard.params=group", "shard.grads=group", "shard.optimizer=all"],
    ["tp=4"],
    ["tp=4", "sequence_parallel=true"],
    ["dp=2", "tp=2", "sequence_parallel=true", "etp=2"],
    ["cp=4"],
    ["cp=4", "cp_comm_type=p2p"],
    ["cp=4", "cp_comm_type=a2a"],
    ["pp=4"],
    ["pp=2", "pp_chunks=2", "pp_schedule=zb-v", "dp=2"],
]


# Run every time: all-reduces and all-to-alls, parts in groups, a ring.
FEW = [1, 6, 11]
EVERY_PLAN = os.environ.get("HOCKET_LONG", "0") not in ("", "0")


class Bytes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        why_not = netbox.why_not()
        if why_not or not (BUILD / "libhocket_torch.so").exists():
            raise unittest.SkipTest(why_not or "this build has no libhocket_torch.so (tools/setup.sh --torch)")

    def settings(self, plan):
        dp = next((int(key[3:]) for key in plan if key.startswith("dp=")), 1)
        batch = 8 if any(key.startswith("pp=") for key in plan) else 4
        return [w for key in (f"train.global_batch={max(batch, dp)}", "train.seq_len=256", "plan.micro_batch=1",
                              "plan.threads_per_rank=1", "plan.ranks_per_node=1", *(f"plan.{k}" for k in plan))
                for w in ("--set", key)]

    def predicted(self, folder, plan):
        """Returns the bytes of a step, of all ranks together."""
        out = subprocess.run([HOCKET, "simulate", folder / "run.yaml", "--json", *self.settings(plan)], check=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
        return sum(row["stands_for"] * sum(row["bytes_sent"].values()) for row in json.loads(out)["breakdown"])

    def measured(self, folder, plan, block):
        """Returns the payload that left all hosts in a run with blocks of `steps` steps."""
        result = folder / "links.json"
        subprocess.run([TOOL, "--hosts", str(HOSTS), "--quiet", "--json", result, "--", HOCKET, "bench", "step",
                        "--config", folder, "--steps", "1", "--warmup", "1", "--block", str(block),
                        *self.settings(plan)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return sum(link["out"]["payload"] for link in json.loads(result.read_text())["links"])

    def test_links_carry_what_programs_send(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "config.json").write_text(json.dumps(MODEL))
            (folder / "run.yaml").write_text(f"model: {{path: {folder}}}\n")
            if not EVERY_PLAN:
                print(f"{len(FEW)} of {len(PLANS)} plans; HOCKET_LONG=1 runs all", file=sys.stderr, flush=True)
            for plan in PLANS if EVERY_PLAN else [PLANS[number] for number in FEW]:
                with self.subTest(plan=plan):
                    want = self.predicted(folder, plan)
                    steps = LONG - SHORT
                    got = (self.measured(folder, plan, LONG) - self.measured(folder, plan, SHORT)) / steps
                    print(f"{' '.join(plan):80} {want / 1e6:9.3f} MB said {got / 1e6:9.3f} MB sent"
                          f" {(got / want - 1) * 100:+6.2f} %", file=sys.stderr, flush=True)
                    self.assertLess(abs(got / want - 1), TOLERANCE)

    def test_a_sample_gathers_parameters_once(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "config.json").write_text(json.dumps(MODEL))
            for i in range(3):
                (folder / f"{i}.txt").write_text(f"text {i} of words and more words, one after the other. " * 200)
            (folder / "run.yaml").write_text(
                f"model: {{path: {folder}}}\n"
                f"data: {{dir: {folder}/data, files: ['{folder}/*.txt'], tokenizer: {folder}/tokenizer, vocab_size: 400}}\n"
                "train: {steps: 1, seq_len: 64, global_batch: 4, warmup_steps: 0}\n"
                "plan: {dp: 4, micro_batch: 1, shard: {params: all}}\n"
                "output: {report: false, trace: false, baselines: none}\n")
            for verb in "train-tokenizer", "prepare":
                subprocess.run([HOCKET, "data", verb, folder / "run.yaml"], check=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
            # Only the sample counts. Before it, the training measures its links for a varying time, and evaluates after
            # its step.
            subprocess.run([TOOL, "--hosts", str(HOSTS), "--quiet", "--json", folder / "links.json", "--count-from",
                            "held-out loss", "--", HOCKET, "train", folder / "run.yaml", "--set", f"output.dir={folder}/run",
                            "--set", f"output.sample_tokens={TOKENS}"], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE)
            got = sum(link["out"]["payload"] for link in json.loads((folder / "links.json").read_text())["links"])
            [index] = (folder / "run").glob("checkpoints/*/model.safetensors")
            with index.open("rb") as f:
                header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            params = sum(e["data_offsets"][1] - e["data_offsets"][0] for n, e in header.items() if n != "__metadata__")
            # Every rank lacks three quarters of the parameters; rank 0 sends the logits of each token to the others.
            want = HOSTS * params * (HOSTS - 1) / HOSTS + TOKENS * (HOSTS - 1) * 4 * MODEL["vocab_size"]
            print(f"a sample: {want / 1e6:.3f} MB expected, {got / 1e6:.3f} MB sent", file=sys.stderr, flush=True)
            self.assertLess(abs(got / want - 1), 2 * TOLERANCE)


if __name__ == "__main__":
    unittest.main(verbosity=1)
