#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares published training steps with the prediction of `hocket simulate` for the same model, plan and cluster.

    bench/published_steps.py [--only megatron|megascale|qwen3|llama ...] [--tiles 4] [--json FILE] [--fit]
                             [--shares 0.7 0.1] [--window 512] [--hocket build/hocket]

Every row is a run.yaml (written to a temporary folder), a cluster file of configs/clusters and a published figure:

megatron   Megatron-LM on A100, Korthikanti et al., arXiv 2205.05198, table 5: seconds per step. The shares of the peaks in
           selene-a100.yaml are fitted to the two rows of the 22B model (--fit prints them); those of the 175B, 530B and
           1T models are predicted (--shares: with other shares, of products and of attention)
megascale  Jiang et al., arXiv 2402.15627, table 2: MFU of MegaScale over MFU of Megatron-LM, at eight scales. Both are
           predicted. They differ by MegaScale's changes: the overlaps (plan keys of MEGASCALE; without that of pp the
           host awaits every message), the parallel transformer block (model_type parallel_llama), sliding-window
           attention (--window: the paper does not publish its width; 0: none), and FlashAttention-2 in place of
           FlashAttention, shares of the peak from its paper (--attention, of Megatron-LM and of MegaScale; 0: that of
           the cluster file). MFU counts the FLOPs of attention without a window in all rows: a window saves time, not
           counted FLOPs. --steps adds the changes one after the other, as the paper's table 3 does. Error: predicted
           ratio minus published ratio
qwen3      Qwen3-235B-A22B on 256 H100, Megatron-MoE-ModelZoo, best_practice/qwen3/readme.md: seconds per step
llama      Llama 3.1 405B on 512 H100, torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 5: tokens per second
           and GPU

Constants of the H100 files are the same for all rows and fitted to none of them.

error      predicted over published, minus one; in seconds per step: negative if the prediction is too fast"""
import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLUSTERS = os.path.join(ROOT, "configs", "clusters")


def llama_config(**sizes):
    """Returns the keys of a config.json that all dense models here share."""
    return {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": False, **sizes}


def gpt(layers, width, heads, vocab):
    """Returns a GPT as Megatron-LM trains it, in the form of the models here: rotary positions, RMSNorm, and a gated
    MLP. The MLP has two thirds of the width, which gives the parameters and products of an ungated one of 4 widths."""
    inner = (8 * width // 3 + 1023) // 1024 * 1024
    return llama_config(hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
                        num_key_value_heads=heads, head_dim=width // heads, vocab_size=vocab,
                        max_position_embeddings=2048)


GPT_22B = gpt(48, 6144, 64, 51200)
GPT_175B = gpt(96, 12288, 96, 51200)
GPT_530B = gpt(105, 20480, 128, 51200)
GPT_1T = gpt(128, 25600, 160, 51200)
MEGASCALE_175B = gpt(96, 12288, 128, 64000)
MEGASCALE_175B_PARALLEL = {**MEGASCALE_175B, "model_type": "parallel_llama"}
MEGASCALE_WINDOW = 512  # tokens of 2,048; not published
LLAMA_405B = llama_config(hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128,
                          num_key_value_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=131072)
QWEN3_235B = {"model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
              "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
              "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "norm_topk_prob": True,
              "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001, "vocab_size": 151936,
              "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False}

# Megatron-LM hides nothing there (MegaScale's section 3.2); without overlap it reduces all gradients in one transfer.
MEGATRON = {"sequence_parallel": True, "overlap_grad_reduce": False, "overlap_param_gather": False, "comm_tiles": 1,
            "overlap_p2p_comm": False, "bucket_mib": 100000}
# MegaScale's overlaps as plan keys, with plan.comm_tiles (--tiles): section 3.2 of its paper. Parameters are gathered
# when a step begins, in the order in which they are needed, not when one ends.
MEGASCALE_DP = {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_mib": 100,
                "shard": {"params": "all", "reshard_after_forward": False, "reshard_after_backward": False}}
MEGASCALE = {"sequence_parallel": True, "overlap_p2p_comm": True, **MEGASCALE_DP}
# FlashAttention-2, which MegaScale uses (section 3.3), reaches 50 to 73 % of an A100's peak, and FlashAttention 25 to
# 40 % (Dao, arXiv 2307.08691, abstract). The lower end of each range is taken, since sequences of 2,048 tokens are
# short. MegaScale's Megatron-LM has FlashAttention: its commit 285068c8 is of January 2023, when Megatron-LM's pull
# request 267 brought it. Table 3 agrees: scores that are written out take a quarter of a step. The sliding window (+1.0
# points of MFU) and the efficient operators (+1.7) could then not have gained so little.
FLASH_ATTENTION, FLASH_ATTENTION_2 = 0.25, 0.5
# Megatron-LM, p2p_communication.py: unless messages are overlapped, they go in a batch, followed by
# torch.cuda.synchronize(). Kernels after it are launched late: a module takes 74 us of the host
# (NVIDIA/TransformerEngine pull request 1191: ColumnParallelLinear without Transformer Engine). Blocks of one module
# are launched together, which the host model lacks: rows with comm_tiles are without it.
AWAITS_MESSAGES = {"host_launch": "{value: 74us, source: bench/published_steps.py}",
                   "host_reads": "{ops: [send, recv], source: bench/published_steps.py}"}
QWEN3 = {"sequence_parallel": True, "shard": {"optimizer": "all"}}
LLAMA = {"tp": 8, "pp": 8, "dp": 8, "micro_batch": 4, "sequence_parallel": True, "comm_tiles": 8, "recompute": "full",
         "shard": {"optimizer": "all"}}


class Row:
    """A published run: its name `what`, its `figure` with `unit`, and the run.yaml that predicts it."""

    def __init__(self, system, what, figure, unit, cluster, model, seq_len, batch, plan, float8=False, dropout=0.0, shares=None,
                 device=None):
        self.system, self.what, self.figure, self.unit, self.cluster = system, what, figure, unit, cluster
        self.shares = shares or {}  # of the peaks, where they differ from the cluster file's
        self.device = device or {}  # keys of the device that the cluster file lacks
        schedule = {"pp_schedule": "interleaved"} if plan.get("pp_chunks", 1) > 1 else {}
        self.run = {"model": {"config": model, "dtype": "bf16", "float8": float8},
                    "train": {"global_batch": batch, "seq_len": seq_len, "dropout": dropout},
                    "plan": {"ranks_per_node": 8, **schedule, **plan}}
        plan = self.run["plan"]
        self.ranks = plan.get("pp", 1) * plan.get("dp", 1) * plan.get("tp", 1)

    def tokens_per_gpu(self):
        return self.run["train"]["global_batch"] * self.run["train"]["seq_len"] / self.ranks


# Table 3 of the paper: model, GPUs, batch and the rest of the plan. Table 5: seconds with full recomputation, and with
# sequence parallelism and selective recomputation. The latter repeats the scores of attention, as this project's kernel
# always does.
MEGATRON_TABLE = {"22B": (GPT_22B, 8, 4, {"micro_batch": 4}, 1.42, 1.10),
                  "175B": (GPT_175B, 64, 64, {"pp": 8, "pp_chunks": 3, "micro_batch": 1}, 18.13, 13.75),
                  "530B": (GPT_530B, 280, 280, {"pp": 35, "pp_chunks": 3, "micro_batch": 1}, 49.05, 37.83),
                  "1T": (GPT_1T, 512, 512, {"pp": 64, "micro_batch": 1}, 94.42, 71.49)}


def megatron_rows(shares=None):
    rows = []
    for name, (model, gpus, batch, plan, full, selective) in MEGATRON_TABLE.items():
        for what, figure, keys in (("full recompute", full, {"recompute": "full"}),
                                   ("sequence parallel, selective", selective, {"sequence_parallel": True})):
            rows.append(Row("Megatron-LM", f"{name}, {gpus} GPUs, {what}", figure, "s", "selene-a100", model, 2048, batch,
                            {"tp": 8, **plan, **keys}, dropout=0.1, shares=shares))
    return rows


# GPUs -> (batch, MFU of Megatron-LM and of MegaScale in percent)
MEGASCALE_TABLE = {256: (768, 53.0, 65.3), 512: (768, 49.9, 63.5), 768: (768, 46.7, 61.3), 1024: (768, 44.7, 59.0),
                   3072: (6144, 48.7, 59.1), 6144: (6144, 47.8, 57.3), 8192: (6144, 43.3, 54.9), 12288: (6144, 41.2, 55.2)}


# Table 3 of the paper: MFU in percent on 256 GPUs with a batch of 256, as one change comes after the other. Left out:
# fused norms (in 61.2), misc (62.3), LAMB with three times the batch (65.3).
MEGASCALE_STEPS = {"Megatron-LM": 47.7, "parallel block": 52.3, "sliding window": 53.3, "tp overlap": 55.5, "pp overlap": 58.0,
                   "dp overlap": 59.5, "FlashAttention-2": 61.2}


def windowed(model, window):
    return {**model, "sliding_window": window} if window else model


def megascale_row(gpus, batch, name, figure, model, keys, attention):
    plan = {"tp": 8, "pp": 8, "pp_chunks": 6, "dp": gpus // 64, "micro_batch": 1, "shard": {"optimizer": "all"}, **keys}
    return Row("MegaScale", f"175B, {gpus} GPUs, {name}", figure, "MFU, %", "megascale-a100", model, 2048, batch, plan,
               shares={"attention": attention} if attention else {},
               device={} if keys["overlap_p2p_comm"] or keys["comm_tiles"] > 1 else AWAITS_MESSAGES)


def megascale_rows(gpus, tiles, attention, window):
    batch, megatron, megascale = MEGASCALE_TABLE[gpus]
    overlapped = {**MEGASCALE, "comm_tiles": tiles}
    return (megascale_row(gpus, batch, "Megatron-LM", megatron, MEGASCALE_175B, MEGATRON, attention[0]),
            megascale_row(gpus, batch, "MegaScale", megascale, windowed(MEGASCALE_175B_PARALLEL, window), overlapped,
                          attention[1]))


def megascale_step_rows(tiles, attention, window):
    keys, model, share = dict(MEGATRON), MEGASCALE_175B, attention[0]
    for name, figure in MEGASCALE_STEPS.items():
        model = {"parallel block": MEGASCALE_175B_PARALLEL,
                 "sliding window": windowed(MEGASCALE_175B_PARALLEL, window)}.get(name, model)
        keys.update({"tp overlap": {"comm_tiles": tiles}, "pp overlap": {"overlap_p2p_comm": True},
                     "dp overlap": MEGASCALE_DP}.get(name, {}))
        share = attention[1] if name == "FlashAttention-2" else share
        yield megascale_row(256, 256, name, figure, model, keys, share)


def qwen3_rows():
    def row(what, figure, layers, **plan):
        return Row("Qwen3-235B", what, figure, "s", "modelzoo-h100", QWEN3_235B, 4096, 2048,
                   {**QWEN3, "pp_layers": layers, **plan})

    # --recompute-modules layernorm moe_act
    recompute = {"recompute": "selective", "recompute_ops": ["rms_norm", "swiglu"]}
    eight = {"pp": 8, "pp_chunks": 4}
    even = [2] + 30 * [3] + [2]  # embedding and head count as a layer each
    return [row("tp 2, ep 32, pp 8 x 4", 19.7, even, tp=2, dp=16, ep=32, **recompute, **eight),
            row("tp 2, ep 32, pp 8 x 4, 1F1B overlap", 17.6, even, tp=2, dp=16, ep=32, pp_schedule="interleaved-overlap",
                **recompute, **eight),
            row("tp 2, ep 8, pp 32 x 3", 24.2, [0] + 94 * [1] + [0], tp=2, dp=4, ep=8, pp=32, pp_chunks=3, **recompute),
            row("tp 4, ep 8, pp 8 x 4", 29.0, even, tp=4, dp=8, ep=8, **eight)]


def llama_rows():
    def row(what, figure, **plan):
        return Row("Llama 405B", what, figure, "tokens/s/GPU", "grand-teton-h100", LLAMA_405B, 8192, 256,
                   {**LLAMA, **plan}, float8=True)

    return [row("1F1B", 100), row("interleaved 1F1B", 128, pp_chunks=2)]


def simulate(args, row, folder, cluster=""):
    """Returns the prediction of a row, parsed from `hocket simulate --json`."""
    run_file = os.path.join(folder, "run.yaml")
    with open(run_file, "w", encoding="utf-8") as f:
        json.dump(row.run, f)  # YAML too
    if not cluster:
        cluster = with_changes(row.cluster, row.shares, row.device, folder)
    words = [args.hocket, "simulate", run_file, "--cluster", cluster, "--json"]
    ran = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"published_steps.py: {row.what}: {shlex.join(words)} ended with {ran.returncode}:\n{ran.stderr[-2000:]}")
    return json.loads(ran.stdout)


def result(row, predicted, step_s, memory_bytes):
    """Returns a line of the table. Rates are compared as times: their ratio is inverted."""
    rate = row.unit != "s"
    ratio = row.figure / predicted if rate else predicted / row.figure
    return {"system": row.system, "row": row.what, "unit": row.unit, "published": row.figure, "predicted": predicted,
            "error": ratio - 1, "ratio": ratio, "step_s": step_s, "memory_gib": memory_bytes / 2**30}


def predict(args, row, folder, flops=0.0):
    """Returns a line of the table. `flops` is the step's FLOPs for the MFU, if they differ from the model's own."""
    found = simulate(args, row, folder)
    step = found["step_s"]
    mfu = found["mfu"] * (flops or found["model_flops"]) / found["model_flops"]
    predicted = {"s": step, "MFU, %": 100 * mfu, "tokens/s/GPU": row.tokens_per_gpu() / step}[row.unit]
    line = result(row, predicted, step, max(rank["planned"] for rank in found["memory"]))
    return {**line, "model_flops": flops or found["model_flops"]}


def show(line):
    print(f"{line['system']:<12} {line['row']:<46} {line['published']:>8.4g} {line['predicted']:>9.4g} "
          f"{100 * line['error']:>+7.1f} % {line['ratio']:>6.3f}  {line['step_s']:>7.3f} s {line['memory_gib']:>6.1f} GiB  "
          f"{line['unit']}", flush=True)


def megascale(args, folder):
    lines = []
    for row in megascale_step_rows(args.tiles, args.attention, args.window) if args.steps else []:
        lines.append(predict(args, row, folder, lines[0]["model_flops"] if lines else 0.0))
        show(lines[-1])
    for gpus in args.gpus or MEGASCALE_TABLE:
        plain, changed = megascale_rows(gpus, args.tiles, args.attention, args.window)
        megatron = predict(args, plain, folder)
        overlapped = predict(args, changed, folder, megatron["model_flops"])
        published = overlapped["published"] / megatron["published"]
        predicted = megatron["step_s"] / overlapped["step_s"]
        ratio = {"system": "MegaScale", "row": f"175B, {gpus} GPUs, ratio", "unit": "ratio, difference", "gpus": gpus,
                 "published": published, "predicted": predicted, "difference": predicted - published}
        for line in (megatron, overlapped):
            show(line)
        print(f"{'':<12} {ratio['row']:<46} {published:>8.3f} {predicted:>9.3f} {predicted - published:>+7.3f}", flush=True)
        lines += [megatron, overlapped, ratio]
    return lines


def with_changes(cluster, shares, device, folder):
    """Returns a cluster file with other shares of the peaks and more device keys, or the file itself if there are
    none."""
    given = os.path.join(CLUSTERS, cluster + ".yaml")
    if not shares and not device:
        return given
    with open(given, encoding="utf-8") as f:
        lines = f.read().split("\n")
    begin = lines.index("  efficiency:")
    left = set(shares)
    for i in range(begin + 1, len(lines)):
        if not lines[i].startswith("    "):
            break
        key = lines[i].strip().split(":")[0]
        if key in shares:
            lines[i] = f"    {key}: {{value: {shares[key]:.6f}, source: bench/published_steps.py}}"
            left.discard(key)
    if left:
        sys.exit(f"{given} has no efficiency of {', '.join(sorted(left))}; expected a line of each")
    lines[begin:begin] = [f"  {key}: {value}" for key, value in device.items()]
    path = os.path.join(folder, "cluster.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    return path


def fit(args, folder):
    """Fits two shares, of matrix products and of attention, to two rows. The method is Newton's on logarithms, with
    differences of three predictions per iteration."""
    rows = megatron_rows()[:2]
    names = ("matmul", "attention")

    def errors(logs):
        cluster = with_changes("selene-a100", {name: math.exp(x) for name, x in zip(names, logs)}, {}, folder)
        return [math.log(simulate(args, row, folder, cluster)["step_s"] / row.figure) for row in rows]

    logs = [math.log(0.7), math.log(0.3)]
    for _ in range(6):
        at = errors(logs)
        print(f"fit: {', '.join(f'{n} {math.exp(x):.3f}' for n, x in zip(names, logs))}: errors "
              f"{', '.join(f'{100 * math.expm1(e):+.2f} %' for e in at)}", flush=True)
        step = 0.02
        slopes = [[(moved - still) / step for moved, still in zip(errors([x + step * (i == j) for j, x in enumerate(logs)]), at)]
                  for i in range(2)]
        (a, c), (b, d) = slopes  # of the two rows, by the first and by the second constant
        determinant = a * d - b * c
        logs = [logs[0] - (d * at[0] - b * at[1]) / determinant, logs[1] - (a * at[1] - c * at[0]) / determinant]
        logs = [min(0.0, max(math.log(0.02), x)) for x in logs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    parser.add_argument("--only", action="append", choices=("megatron", "megascale", "qwen3", "llama"))
    parser.add_argument("--tiles", type=int, default=2, help="plan.comm_tiles of MegaScale's rows (default: %(default)s)")
    parser.add_argument("--gpus", type=int, action="append", choices=MEGASCALE_TABLE, help="only these scales of MegaScale")
    parser.add_argument("--attention", nargs=2, type=float, default=(FLASH_ATTENTION, FLASH_ATTENTION_2),
                        metavar=("MEGATRON", "MEGASCALE"),
                        help="shares of the peak in attention in MegaScale's rows; 0: the cluster file's (default: 0.25 0.5)")
    parser.add_argument("--window", type=int, default=MEGASCALE_WINDOW,
                        help="tokens that a query sees in MegaScale's rows; 0: all before it (default: %(default)s)")
    parser.add_argument("--steps", action="store_true", help="MegaScale's changes one after the other, too")
    parser.add_argument("--shares", nargs=2, type=float, metavar=("MATMUL", "ATTENTION"),
                        help="of the peaks, in place of those of selene-a100.yaml, in the rows of Megatron-LM")
    parser.add_argument("--json", help="write the table here")
    parser.add_argument("--fit", action="store_true", help="fit the shares of the A100 file to the 22B rows, and end")
    args = parser.parse_args()
    systems = args.only or ["megatron", "megascale", "qwen3", "llama"]
    shares = dict(zip(("matmul", "attention"), args.shares)) if args.shares else None
    plain = {"megatron": lambda: megatron_rows(shares), "qwen3": qwen3_rows, "llama": llama_rows}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        if args.fit:
            fit(args, folder)
            return
        print(f"{'system':<12} {'row':<46} {'published':>8} {'predicted':>9} {'error':>9} {'ratio':>6}  {'step':>9}")
        for system in systems:
            if system == "megascale":
                lines += megascale(args, folder)
                continue
            found = []
            for row in plain[system]():
                found.append(predict(args, row, folder))
                show(found[-1])
            mean = sum(abs(line["error"]) for line in found) / len(found)
            print(f"{'':<12} {'mean of absolute errors':<46} {'':>8} {'':>9} {100 * mean:>7.1f} %", flush=True)
            lines += found
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(lines, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
