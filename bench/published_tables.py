# SPDX-License-Identifier: Apache-2.0
"""Published training rates as rows, for bench/published_rows.py. Every list names its source.

A row is what a run needs (model, plan, batch) and its figure. `machine` names the machine it ran on; a file of that
machine may be fitted to some of its rows (FITTED), and the others are held out."""
import math
from dataclasses import dataclass, field

import published_steps


@dataclass
class Published:
    machine: str  # of MACHINES in published_rows.py
    what: str
    figure: float
    unit: str  # "tokens/s/GPU", "s", "TFLOP/s" (per GPU, by `flops`), "MFU, %"
    model: dict
    seq_len: int
    batch: int
    plan: dict
    float8: bool = False
    dropout: float = 0.0
    flops: float = 0.0  # of a step by the source's own formula, for TFLOP/s
    memory_gib: float = 0.0  # published peak of a GPU; 0: none
    fitted: bool = False
    grad_dtype: str = "f32"  # train.grad_dtype
    device: dict = field(default_factory=dict)
    shares: dict = field(default_factory=dict)

    def ranks(self):
        return math.prod(self.plan.get(key, 1) for key in ("pp", "dp", "tp", "cp"))


FSDP = {"shard": {"params": "all", "grads": "all", "optimizer": "all"}}
ZERO1 = {"shard": {"optimizer": "all"}}
ZERO1_OVERLAPPED = {**ZERO1, "overlap_grad_reduce": True, "overlap_param_gather": True}


def llama(layers, width, heads, kv_heads, inner, vocab, tied=False, positions=8192):
    return {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": tied, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width // heads, "vocab_size": vocab,
            "max_position_embeddings": positions}


def gpt(layers, width, heads, vocab, tied=True, positions=8192):
    """Returns a GPT with the parameters and products of an MLP of four widths, in the form of the models here."""
    inner = (8 * width // 3 + 127) // 128 * 128
    return llama(layers, width, heads, heads, inner, vocab, tied, positions)


# MosaicML, llm-foundry, scripts/train/benchmarking/README.md (commit 061f2c7): MPT on 8 GPUs a node. Model, tokens of a
# sequence, GPUs, sequences of a micro-batch, accumulated micro-batches, tokens/s/GPU, activation checkpointing. FSDP,
# FULL_SHARD, mixed precision bf16. The yamls of the models give layers, width and heads.
MPT = {"125m": gpt(12, 768, 12, 50368, positions=65536), "350m": gpt(24, 1024, 16, 50368, positions=65536),
       "760m": gpt(24, 1536, 12, 50368, positions=65536), "1b": gpt(24, 2048, 16, 50368, positions=65536),
       "3b": gpt(32, 2560, 20, 50368, positions=65536), "7b": gpt(32, 4096, 32, 50368, positions=65536),
       "13b": gpt(40, 5120, 40, 50368, positions=65536), "30b": gpt(48, 7168, 56, 50368, positions=65536),
       "70b": gpt(80, 8192, 64, 50368, positions=65536)}
MOSAIC_H100 = """
70b 2048 64 8 4 1039 ac | 70b 2048 32 2 16 882 ac | 30b 8192 8 1 21 1384 ac | 30b 4096 8 1 21 1802 ac
30b 2048 32 14 3 2308 ac | 30b 2048 16 10 3 2263 ac | 30b 2048 8 3 21 2002 ac | 30b 1024 8 6 21 2084 ac
13b 32768 8 1 3 1976 ac | 13b 16384 8 3 3 2985 ac | 13b 4096 8 10 3 4717 ac | 13b 2048 64 2 1 4800
13b 2048 32 2 1 4811 | 13b 2048 16 2 1 4767 | 13b 2048 8 2 1 4792 | 13b 1024 8 40 3 5502 ac
7b 65536 8 1 2 1956 ac | 7b 32768 8 2 2 3318 ac | 7b 8192 8 8 2 6935 ac | 7b 4096 8 16 2 8611 ac
7b 2048 8 6 1 10643 | 7b 1024 8 64 2 10203 ac | 3b 65536 8 1 2 3262 ac | 3b 32768 8 3 6 5873 ac
3b 16384 8 1 6 11152 | 3b 8192 8 3 6 16578 | 3b 4096 8 5 6 20964 | 3b 2048 64 6 3 22525 | 3b 2048 32 6 3 23021
3b 2048 16 10 3 24142 | 3b 1024 8 20 6 27046 | 3b 512 8 40 6 27965 | 1b 65536 8 1 2 5506 ac | 1b 32768 8 1 4 12025
1b 16384 8 2 4 19649 | 1b 8192 8 3 4 29157 | 1b 4096 8 7 4 38535 | 1b 2048 64 20 1 44402 | 1b 2048 32 20 1 45130
1b 2048 16 20 1 46037 | 1b 2048 8 14 1 45455 | 1b 1024 8 18 4 48910 | 1b 512 8 56 4 52275
760m 32768 8 1 2 16291 | 760m 16384 8 3 2 27815 | 760m 8192 8 6 2 41825 | 760m 4096 8 12 2 55459
760m 2048 32 24 1 67971 | 760m 2048 16 24 1 68551 | 760m 2048 8 24 2 63147 | 760m 1024 8 48 2 78581
760m 512 8 96 2 83749
"""
MOSAIC_H100_F8 = """
3b 8192 8 3 6 19146 | 3b 2048 8 10 6 30586 | 3b 512 8 40 6 36527 | 1b 32768 8 1 4 12580 | 1b 8192 8 2 4 32010
1b 512 8 56 4 70315 | 350m 16384 8 2 4 42929 | 350m 512 8 56 4 154420
"""
MOSAIC_A100 = """
70b 2048 64 8 4 410 ac | 70b 2048 32 2 16 373 ac | 30b 8192 8 1 21 574 ac | 30b 4096 8 1 21 814 ac
30b 2048 8 3 21 916 ac | 30b 1024 8 6 21 946 ac | 30b 512 8 12 21 967 ac | 13b 32768 8 1 3 1016 ac
13b 16384 8 3 3 1431 ac | 13b 8192 8 5 3 1795 ac | 13b 4096 8 10 3 2060 ac | 13b 2048 8 2 3 2262
13b 1024 8 40 3 2330 ac | 7b 65536 8 1 2 1013 ac | 7b 32768 8 2 2 1672 ac | 7b 16384 8 4 2 2453 ac
7b 8192 8 8 2 3206 ac | 7b 4096 8 16 2 3684 ac | 7b 2048 8 6 2 4641 | 7b 1024 8 64 2 4357 ac
3b 65536 8 1 2 1767 ac | 3b 32768 8 3 6 3029 ac | 3b 16384 8 1 6 5529 | 3b 8192 8 3 6 7695 | 3b 4096 8 5 6 9457
3b 2048 8 10 2 10811 | 3b 1024 8 20 6 11580 | 3b 512 8 40 6 12127 | 1b 65536 8 1 2 3044 ac | 1b 32768 8 1 4 6275
1b 16384 8 2 4 9956 | 1b 8192 8 3 4 13814 | 1b 4096 8 7 4 17807 | 1b 2048 8 14 4 20513 | 1b 1024 8 18 4 22112
1b 512 8 56 4 23148 | 760m 65536 8 1 2 4143 ac | 760m 32768 8 1 2 8802 | 760m 16384 8 3 2 14274
760m 8192 8 6 2 20933 | 760m 4096 8 12 2 27351 | 760m 2048 8 24 2 32434 | 760m 1024 8 48 2 29765
760m 512 8 96 2 29446 | 350m 65536 8 1 2 7524 | 350m 16384 8 4 2 23559 | 350m 4096 8 16 2 49555
350m 2048 8 32 2 58782 | 350m 512 8 128 2 69330 | 125m 65536 8 1 2 20368 | 125m 16384 8 4 2 60040
125m 4096 8 16 2 118396 | 125m 2048 8 32 2 141737 | 125m 512 8 128 2 165681
"""


def mosaic(machine, table, float8=False):
    rows = []
    for line in table.replace("\n", "|").split("|"):
        words = line.split()
        if not words:
            continue
        name, (seq, gpus, micro, accumulated, rate) = words[0], map(int, words[1:6])
        plan = {"dp": gpus, "micro_batch": micro, "recompute": "full" if words[6:] == ["ac"] else "none", **FSDP}
        rows.append(Published(machine, f"MPT {name}, {seq} tokens, {gpus} GPUs{', float8' if float8 else ''}", rate,
                              "tokens/s/GPU", MPT[name], seq, micro * accumulated * gpus, plan, float8=float8))
    return rows


# torchtitan: benchmarks/llama3_h100_202412_torchtitan.md (Grand Teton), docs/performance.md (64 A100; commit 0413364),
# benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md (8 H200 a node). Llama 3 has sequences of 8,192 tokens, Llama 2 of
# 4,096, unless a length is given. Selective: of single ops.
LLAMA3_8B = llama(32, 4096, 32, 8, 14336, 128256, positions=524288)
LLAMA3_70B = llama(80, 8192, 64, 8, 28672, 128256, positions=524288)
LLAMA3_405B = llama(126, 16384, 128, 8, 53248, 128256, positions=524288)
LLAMA2_7B = llama(32, 4096, 32, 32, 11008, 32000)
# Selective recomputation by single ops: all products but every second one of a layer are kept (torchtitan, activation_checkpoint.py).
SELECTIVE = {"recompute": "selective", "recompute_products": 2}
LLAMA2_13B = llama(40, 5120, 40, 40, 13824, 32000)
LLAMA2_70B = llama(80, 8192, 64, 8, 28672, 32000)


def titan(machine, what, figure, model, seq, batch, plan, **more):
    return Published(machine, what, figure, "tokens/s/GPU", model, seq, batch, {**FSDP, **plan}, **more)


def torchtitan_h100():
    rows = []
    for gpus, plain, compiled, float8, memory in ((8, 5762, 6667, 8532, (82.4, 77.0, 76.8)),
                                                  (128, 5605, 6514, 8380, (67.0, 62.0, 61.8))):
        plan = {"dp": gpus, "micro_batch": 2, **SELECTIVE}
        for name, figure, is_float8, peak in ((", eager", plain, False, memory[0]), (", compile", compiled, False, memory[1]),
                                              (", compile, float8", float8, True, memory[2])):
            device = {"unfused_ops": EAGER} if name == ", eager" else {}
            rows.append(titan("torchtitan-h100", f"Llama 3.1 8B, {gpus} GPUs{name}", figure, LLAMA3_8B, 8192, 2 * gpus, plan,
                              float8=is_float8, memory_gib=peak, device=device))
    for dp, cp, seq, figure, memory in ((8, 1, 32768, 3890, 83.9), (4, 2, 65536, 2540, 84.2), (2, 4, 131072, 1071, 84.0),
                                        (1, 8, 262144, 548, 84.5)):
        plan = {"dp": dp, "micro_batch": 1, "recompute": "full", **({"cp": cp} if cp > 1 else {})}
        rows.append(titan("torchtitan-h100", f"Llama 3.1 8B, 8 GPUs, {seq} tokens, cp {cp}, float8", figure, LLAMA3_8B, seq, dp,
                          plan, float8=True, memory_gib=memory))
    for tiles, figure, memory in ((1, 829, 71.9), (8, 876, 67.6)):
        plan = {"dp": 32, "tp": 8, "micro_batch": 16, "recompute": "full", "sequence_parallel": True,
                **({"comm_tiles": tiles} if tiles > 1 else {})}
        rows.append(titan("torchtitan-h100", f"Llama 3.1 70B, 256 GPUs, tp 8{', async' if tiles > 1 else ''}, float8", figure,
                          LLAMA3_70B, 8192, 512, plan, float8=True, memory_gib=memory))
    for chunks, figure, memory in ((1, 100, 82.5), (2, 128, 72.7)):
        plan = {"dp": 8, "tp": 8, "pp": 8, "micro_batch": 4, "recompute": "full", "sequence_parallel": True, "comm_tiles": 8,
                **({"pp_chunks": chunks, "pp_schedule": "interleaved"} if chunks > 1 else {}), **ZERO1}
        rows.append(titan("torchtitan-h100", f"Llama 3.1 405B, 512 GPUs, {chunks} chunks, float8", figure, LLAMA3_405B, 8192, 256,
                          plan, float8=True, memory_gib=memory))
    return rows


# PyTorch's eager kernels, of h100-pytorch.yaml: bench/results/2026-11-27-h100.md, Kernels that memory bounds.
EAGER = [{"ops": ["rms_norm"], "traffic": 1.5}, {"ops": ["rms_norm_bwd"], "kernels": 2, "traffic": 2.7},
         {"ops": ["swiglu"], "kernels": 2, "traffic": 1.7}, {"ops": ["swiglu_bwd"], "kernels": 3, "traffic": 1.9},
         {"ops": ["rope"], "kernels": 5, "traffic": 9.6}]


def torchtitan_a100():
    rows = []
    for what, model, seq, micro, recompute, figure in (
            ("Llama 3 8B, selective", LLAMA3_8B, 8192, 1, "selective", 2973), ("Llama 3 70B, full", LLAMA3_70B, 8192, 1, "full", 331),
            ("Llama 2 13B, no recompute", LLAMA2_13B, 4096, 2, "none", 2162),
            ("Llama 2 13B, selective", LLAMA2_13B, 4096, 2, "selective", 1904),
            ("Llama 2 70B, selective", LLAMA2_70B, 4096, 1, "selective", 355),
            ("Llama 2 70B, full", LLAMA2_70B, 4096, 2, "full", 353)):
        rows.append(titan("torchtitan-a100", what + ", 64 GPUs", figure, model, seq, 64 * micro,
                          {"dp": 64, "micro_batch": micro, **(SELECTIVE if recompute == "selective" else {"recompute": recompute})}))
    return rows


def torchtitan_h200():
    return [titan("trainy-h200", f"Llama 3.1 8B, {8 * nodes} GPUs, float8", figure, LLAMA3_8B, 8192, 16 * nodes,
                  {"dp": 8 * nodes, "micro_batch": 2, **SELECTIVE}, float8=True, memory_gib=memory)
            for nodes, figure, memory in ((4, 10938, 47.96), (8, 10753, 46.97))]


# Narayanan et al., SC21, arXiv 2104.04473, table 1: heads, width, layers, tp, pp, GPUs, batch, TFLOP/s per GPU by its own
# formula, in which the forward pass counts twice. Sequences of 2,048 tokens, vocabulary of 51,200; activations are
# recomputed; interleaved schedule. Micro-batches are not in the table: 4, and with pipelines 1 (the 1T model's).
SC21 = """
1.7B 24 2304 24 1 1 32 512 137 | 3.6B 32 3072 30 2 1 64 512 138 | 7.5B 32 4096 36 4 1 128 512 142
18.4B 48 6144 40 8 1 256 1024 135 | 39.1B 64 8192 48 8 2 512 1536 138 | 76.1B 80 10240 60 8 4 1024 1792 140
145.6B 96 12288 80 8 8 1536 2304 148 | 310.1B 128 16384 96 8 16 1920 2160 155 | 529.6B 128 20480 105 8 35 2520 2520 163
1008B 160 25600 128 8 64 3072 3072 163
"""


def sc21():
    rows = []
    for line in SC21.replace("\n", "|").split("|"):
        words = line.split()
        if not words:
            continue
        heads, width, layers, tp, pp, gpus, batch, figure = map(int, words[1:])
        flops = 96 * batch * 2048 * layers * width**2 * (1 + 2048 / (6 * width) + 51200 / (16 * layers * width))
        micro = 4 if pp == 1 else 1
        plan = {"tp": tp, "pp": pp, "dp": gpus // (tp * pp), "micro_batch": micro, "recompute": "full",
                "overlap_grad_reduce": False}
        if pp > 1:
            chunks = {2: 4, 4: 5, 8: 5, 16: 3, 35: 3, 64: 2}[pp]
            plan.update({"pp_chunks": chunks, "pp_schedule": "interleaved"})
        inner = (8 * width // 3 + 1023) // 1024 * 1024
        rows.append(Published("selene", f"SC21 {words[0]}, {gpus} GPUs", figure, "TFLOP/s",
                              llama(layers, width, heads, heads, inner, 51200, positions=2048), 2048, batch, plan,
                              dropout=0.1, flops=flops))
    return rows


def steps(machine, rows):
    """Returns rows of bench/published_steps.py, which says where they are from."""
    found = []
    for row in rows:
        run = row.run
        found.append(Published(machine, f"{row.system} {row.what}", row.figure, row.unit, run["model"]["config"],
                               run["train"]["seq_len"], run["train"]["global_batch"],
                               {k: v for k, v in run["plan"].items() if k != "ranks_per_node"}, float8=run["model"]["float8"],
                               dropout=run["train"]["dropout"], device=row.device))
    return found


# NVIDIA NeMo, docs/source/performance/performance_summary.md (commit 070a0bb, container 24.07): pretraining in float8 on
# DGX H100. GPUs, batch, micro-batch, tokens, tp, pp, cp, chunks, tokens/s/GPU. The page's TFLOP/s over its tokens/s agree with the
# models here. NVIDIA/NeMo-Framework-Launcher, examples/training, *_fp8*.sh: grad_sync_dtype=bf16 for GPT3, LLAMA2 and LLAMA3, not for
# Nemotron. NeMo's distributed optimizer accumulates in that type, too (grad_reduce_in_fp32 only for fp32). Its launcher_scripts/conf/training
# have no dropout and no recomputation.
NEMO_MODELS = {"GPT3-5B": gpt(24, 4096, 32, 51200, False), "GPT3-20B": gpt(44, 6144, 48, 51200, False),
               "GPT3-175B": gpt(96, 12288, 96, 51200, False), "LLAMA2-7B": LLAMA2_7B, "LLAMA2-13B": LLAMA2_13B,
               "LLAMA2-70B": LLAMA2_70B, "Nemotron-8B": gpt(32, 4096, 32, 256000, False),
               "Nemotron-22B": gpt(40, 6144, 48, 256000, False), "LLAMA3-8B": LLAMA3_8B, "LLAMA3-70B": LLAMA3_70B}
NEMO = """
GPT3-5B 64 2048 4 2048 1 1 1 1 22521 | GPT3-20B 64 256 2 2048 2 1 1 1 5851 | GPT3-175B 128 256 1 2048 4 8 1 6 726
GPT3-175B 512 2048 2 2048 4 8 1 6 782 | LLAMA2-7B 8 128 1 4096 1 1 1 1 16847 | LLAMA2-13B 16 128 1 4096 1 4 1 10 8646
LLAMA2-70B 64 128 1 4096 4 4 1 20 1707 | Nemotron-8B 64 256 4 4096 2 1 1 1 12701 | Nemotron-22B 64 256 2 4096 2 4 1 10 4256
LLAMA3-8B 8 128 1 8192 1 1 2 1 12036 | LLAMA3-70B 64 128 1 8192 4 4 2 5 1533
"""


def nemo_plan(gpus, micro, tp, pp, cp, chunks):
    """Returns the plan of NeMo's scripts for these degrees: ZeRO-1 overlapped, tiles over tp, an interleaved pipeline."""
    plan = {"tp": tp, "pp": pp, "dp": gpus // (tp * pp * cp), "micro_batch": micro, **ZERO1_OVERLAPPED}
    if cp > 1:
        plan["cp"] = cp
    if tp > 1:
        plan.update({"sequence_parallel": True, "comm_tiles": tp})
    if pp > 1:
        plan.update({"pp_chunks": chunks, "pp_schedule": "interleaved"})
    return plan


def nemo():
    rows = []
    for line in NEMO.replace("\n", "|").split("|"):
        words = line.split()
        if not words:
            continue
        gpus, batch, micro, seq, tp, pp, cp, chunks, figure = map(int, words[1:])
        plan = nemo_plan(gpus, micro, tp, pp, cp, chunks)
        rows.append(Published("nemo-h100", f"NeMo {words[0]}, {gpus} GPUs, float8", figure, "tokens/s/GPU",
                              NEMO_MODELS[words[0]], seq, batch, plan, float8=True,
                              grad_dtype="f32" if words[0].startswith("Nemotron") else "model"))
    return rows


# Megatron-LM V1.0 on one DGX-2H, batch 8 of 1,024 tokens, in half precision: https://nv-adlr.github.io/MegatronLMV1, table 1,
# milliseconds of an iteration. Widths and layers are those of the same numbers of parameters in arXiv 1909.08053, table 1, whose runs
# recompute every layer; 62.4 TFLOP/s, which the page gives for the first, count that. Its models of 2.0B and 8.7B are not in that table.
# A V100 of a DGX-2H has 130 TFLOP/s.
MEGATRON_V1 = [("1.2B", 40, 1536, 16, 1, 1288), ("4.2B", 64, 2304, 24, 4, 1357)]


def megatron_v100():
    rows = []
    for name, layers, width, heads, gpus, ms in MEGATRON_V1:
        model = {"model_type": "gpt2", "vocab_size": 51200, "n_positions": 1024, "n_embd": width, "n_layer": layers,
                 "n_head": heads, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
        rows.append(Published("dgx2-v100", f"GPT {name}, {gpus} GPU{'s' if gpus > 1 else ''} of a DGX-2H", ms / 1000, "s",
                              model, 1024, 8, {"tp": gpus, "micro_batch": 8, "recompute": "full"}))
    return rows


def all_rows():
    return (mosaic("mosaic-h100", MOSAIC_H100) + mosaic("mosaic-h100", MOSAIC_H100_F8, True)
            + mosaic("mosaic-a100", MOSAIC_A100) + torchtitan_h100() + torchtitan_a100() + torchtitan_h200() + sc21()
            + steps("selene", published_steps.megatron_rows()) + steps("modelzoo", published_steps.qwen3_rows()) + nemo()
            + megatron_v100())
