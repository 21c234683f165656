# SPDX-License-Identifier: Apache-2.0
"""Further published training rates as rows, for bench/published_rows.py. Every list names its source. All were written
down before the first prediction of one, and no constant of a cluster file is fitted to them, but for one of Selene's."""
from published_tables import (FSDP, LLAMA2_7B, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, MPT, NEMO_MODELS, ZERO1, ZERO1_OVERLAPPED, Published,
                              gpt, llama, nemo_plan)


def split(table):
    return [line.split() for line in table.replace("\n", "|").split("|") if line.split()]


# NVIDIA/dgxc-benchmarking at commits 143b90d and 0b71cfd: nemotron/README_15b.md, README_340b.md, llama3.1/README_8b.md, 70b, 405b,
# nemo_megatron/README_175b.md: NeMo 24.09 to 24.12 on DGX H100. Model, GPUs, batch, micro-batch, tokens, tp, pp, cp, chunks, seconds of a
# step in bf16 and in float8. The 405B takes GPT-2's vocabulary ("uses the GPT2BPETokenizer as a proxy").
DGXC_MODELS = {"Nemotron-15B": gpt(32, 6144, 48, 256000, False), "Nemotron-340B": gpt(96, 18432, 96, 256000, False),
               "LLAMA3.1-8B": LLAMA3_8B, "LLAMA3.1-70B": LLAMA3_70B,
               "LLAMA3.1-405B": {**LLAMA3_405B, "vocab_size": 50304}, "GPT3-175B": NEMO_MODELS["GPT3-175B"]}
DGXC_MODELS["Nemotron-15B"]["num_key_value_heads"] = DGXC_MODELS["Nemotron-340B"]["num_key_value_heads"] = 8
DGXC = """
Nemotron-15B 16 64 4 4096 4 1 1 1 2.812 2.039 | Nemotron-15B 128 512 4 4096 4 1 1 1 2.859 2.059
Nemotron-15B 1024 4096 4 4096 4 1 1 1 2.895 2.094 | Nemotron-340B 128 32 1 4096 8 8 1 12 4.61 3.16
Nemotron-340B 1024 256 1 4096 8 8 1 12 4.73 3.34 | LLAMA3.1-8B 8 128 1 8192 1 1 2 1 12.91 9.67
LLAMA3.1-8B 128 2048 1 8192 1 1 2 1 13.10 9.82 | LLAMA3.1-70B 64 128 1 8192 4 4 2 5 14.72 11.01
LLAMA3.1-70B 512 1024 1 8192 4 4 2 5 14.89 11.18 | LLAMA3.1-405B 576 252 1 8192 8 9 2 7 17.20 11.24
GPT3-175B 128 256 1 2048 4 8 1 12 8.309 5.626 | GPT3-175B 1024 2048 1 2048 4 8 1 12 8.453 5.82
"""


def dgxc():
    rows = []
    for words in split(DGXC):
        gpus, batch, micro, seq, tp, pp, cp, chunks = map(int, words[1:9])
        plan = nemo_plan(gpus, micro, tp, pp, cp, chunks)
        for figure, float8 in ((words[9], False), (words[10], True)):
            rows.append(Published("dgxc-h100", f"DGXC {words[0]}, {gpus} GPUs{', float8' if float8 else ''}", float(figure), "s",
                                  DGXC_MODELS[words[0]], seq, batch, plan, float8=float8,
                                  grad_dtype="f32" if words[0].startswith("Nemotron") else "model"))
    return rows


# Nemotron-4 340B's report (arXiv 2406.11704), table 2: seconds of an iteration of the pretraining itself in bf16, tp 8, pp 12 of 8 chunks
# of a layer, 4,096 tokens, data-parallel size, batch.
def nemotron_paper():
    return [Published("dgxc-h100", f"Nemotron-4 340B, {96 * dp} GPUs", figure, "s", DGXC_MODELS["Nemotron-340B"], 4096, batch,
                      {"tp": 8, "pp": 12, "dp": dp, "micro_batch": 1, "pp_chunks": 8, "pp_schedule": "interleaved",
                       "sequence_parallel": True, **ZERO1_OVERLAPPED})
            for dp, batch, figure in ((16, 768, 10.3), (32, 1536, 10.3), (64, 2304, 8.0))]


# NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md (commit 00b7660), container 25.11, DGX H100, float8 with current scaling.
def bridge():
    def row(name, model, gpus, figure, batch, **plan):
        return Published("dgxc-h100", f"Megatron-Bridge {name}, {gpus} GPUs, float8", figure, "tokens/s/GPU", model, 8192, batch,
                         {"micro_batch": 1, **plan}, float8=True, grad_dtype="model")

    tp = {"sequence_parallel": True, "pp_schedule": "interleaved", **ZERO1_OVERLAPPED}
    return [row("LLAMA3-8B", LLAMA3_8B, 8, 14451, 128, dp=8, **FSDP),
            row("LLAMA3-70B", LLAMA3_70B, 64, 1602, 128, tp=4, pp=8, dp=2, pp_chunks=5, comm_tiles=4, **tp),
            row("LLAMA3.1-405B", LLAMA3_405B, 1024, 292, 512, tp=8, pp=8, cp=2, dp=8, pp_chunks=8, comm_tiles=8,
                pp_layers=[1] + 62 * [2] + [1], **tp)]


# The same page, DGX B200, float8 with current scaling.
def bridge_b200():
    return [Published("b200", "Megatron-Bridge LLAMA3-8B, 8 B200, float8", 30624, "tokens/s/GPU", LLAMA3_8B, 8192, 128,
                      {"dp": 8, "micro_batch": 2, **ZERO1_OVERLAPPED}, float8=True, grad_dtype="model"),
            Published("b200", "Megatron-Bridge LLAMA3.1-405B, 128 B200, float8", 661, "tokens/s/GPU", LLAMA3_405B, 8192, 64,
                      {"micro_batch": 1, "tp": 4, "pp": 8, "cp": 2, "dp": 2, "pp_chunks": 8, "comm_tiles": 4,
                       "pp_schedule": "interleaved", "pp_layers": [1] + 62 * [2] + [1], "sequence_parallel": True,
                       **ZERO1_OVERLAPPED}, float8=True, grad_dtype="model")]


# The Llama 3 Herd of Models (arXiv 2407.21783), table 4: TFLOP/s of a GPU in bf16. GPUs, cp, dp, tokens, sequences of a data-parallel rank.
# 80 GB at 700 W, RoCE of 400 Gbit/s. Section 3.3.2: tp 8, pp 16, the first and the last stage with a layer fewer, nothing recomputed,
# optimizer and gradients sharded (parameters stay gathered).
def llama3_405b():
    rows = []
    for gpus, cp, dp, seq, batch, figure in ((8192, 1, 64, 8192, 32, 43), (16384, 1, 128, 8192, 16, 41)):
        plan = {"tp": 8, "pp": 16, "dp": dp, "micro_batch": 1, "pp_chunks": 8, "pp_schedule": "interleaved",
                "pp_layers": [0] + 126 * [1] + [0], "sequence_parallel": True, **ZERO1_OVERLAPPED, **({"cp": cp} if cp > 1 else {})}
        rows.append(Published("llama3-h100", f"Llama 3 405B, {gpus} GPUs", figure, "MFU, %", LLAMA3_405B, seq, batch * dp, plan))
    return rows


# MosaicML, the same README as in published_tables.py. H100s, 128 and more GPUs: model, GPUs, sequences of a micro-batch, tokens/s/GPU. The
# 3b and 1b keep parameters gathered (SHARD_GRAD_OP). A100s of 40 GB, all in bf16 ("PURE"): model, tokens, GPUs, sequences of a micro-batch,
# accumulated micro-batches, tokens/s/GPU, activation checkpointing.
MOSAIC_LARGE = """
70b 512 8 1007 ac | 70b 128 8 1058 ac | 30b 512 8 2115 ac | 30b 128 8 2199 ac | 13b 512 16 4952 ac | 13b 128 16 5080 ac
7b 512 6 9670 | 7b 128 6 10475 | 3b 512 8 21664 keep | 3b 128 8 23422 keep | 1b 512 12 39837 keep | 1b 128 12 44123 keep
"""
MOSAIC_A100_40 = """
70b 2048 128 4 1 376 ac | 70b 2048 64 2 1 276 ac | 30b 2048 128 6 1 865 ac | 30b 2048 32 4 1 857 ac | 13b 8192 8 1 16 1407 ac
13b 2048 128 16 1 1972 ac | 13b 2048 16 10 1 1993 ac | 13b 512 8 16 16 1763 ac | 7b 16384 8 1 4 2249 ac | 7b 2048 128 18 1 3623 ac
7b 2048 8 12 4 3679 ac | 3b 8192 8 1 8 7149 | 3b 2048 128 6 1 9538 | 3b 1024 8 10 8 10731 | 1b 16384 8 1 8 9715
1b 2048 128 10 1 18647 | 1b 512 8 32 8 21782 | 760m 4096 8 6 4 25863 | 350m 2048 64 18 1 52689 | 125m 1024 8 52 3 148289
"""


def mosaic_large():
    rows = []
    for words in split(MOSAIC_LARGE):
        gpus, micro, figure = map(int, words[1:4])
        keep = words[4:] == ["keep"]
        plan = {"dp": gpus, "micro_batch": micro, "recompute": "full" if words[4:] == ["ac"] else "none",
                "shard": {**FSDP["shard"], **({"reshard_after_forward": False} if keep else {})}}
        rows.append(Published("mosaic-h100-large", f"MPT {words[0]}, 2048 tokens, {gpus} GPUs", figure, "tokens/s/GPU",
                              MPT[words[0]], 2048, micro * gpus, plan))
    return rows


def mosaic_a100_40():
    rows = []
    for words in split(MOSAIC_A100_40):
        seq, gpus, micro, accumulated, figure = map(int, words[1:6])
        plan = {"dp": gpus, "micro_batch": micro, "recompute": "full" if words[6:] == ["ac"] else "none", **FSDP}
        rows.append(Published("mosaic-a100-40", f"MPT {words[0]}, {seq} tokens, {gpus} GPUs of 40 GB", figure, "tokens/s/GPU",
                              MPT[words[0]], seq, micro * accumulated * gpus, plan, grad_dtype="model"))
    return rows


def with_scores(layers, width, heads, vocab):
    """Returns a GPT of the size, its MLP rounded to 1,024 as in published_steps.py."""
    inner = (8 * width // 3 + 1023) // 1024 * 1024
    return llama(layers, width, heads, heads, inner, vocab, positions=2048)


def forward_twice(layers, width, vocab, seq, batch):
    """Returns the FLOPs of a step by SC21's formula, in which the forward pass counts twice."""
    return 96 * batch * seq * layers * width**2 * (1 + seq / (6 * width) + vocab / (16 * layers * width))


# Megatron-Turing NLG 530B (arXiv 2201.11990), section 2.4, on Selene: seconds of an iteration with batches of 1,920. tp 8, pp 35, 1F1B.
# Narayanan et al., SC21 (arXiv 2104.04473), table 2: TFLOP/s of a GPU of PTD-P, by its formula: model, model-parallel size, batch, GPUs.
def selene():
    rows = [Published("selene", f"MT-NLG 530B, {280 * dp} GPUs", figure, "s", with_scores(105, 20480, 128, 51200), 2048, 1920,
                      {"tp": 8, "pp": 35, "dp": dp, "micro_batch": 1, "recompute": "full", "overlap_grad_reduce": False}, dropout=0.1)
            for dp, figure in ((8, 60.1), (10, 50.2), (12, 44.4))]
    for name, layers, width, heads, pp, chunks, batch, table in (
            ("174.6B", 96, 12288, 96, 12, 4, 1536, ((384, 153), (768, 149), (1536, 141))),
            ("529.6B", 105, 20480, 128, 35, 3, 2240, ((560, 171), (1120, 167), (2240, 159)))):
        for gpus, figure in table:
            plan = {"tp": 8, "pp": pp, "dp": gpus // (8 * pp), "micro_batch": 1, "recompute": "full", "overlap_grad_reduce": False,
                    "pp_chunks": chunks, "pp_schedule": "interleaved"}
            rows.append(Published("selene", f"SC21 {name}, PTD-P, {gpus} GPUs", figure, "TFLOP/s",
                                  with_scores(layers, width, heads, 51200), 2048, batch, plan, dropout=0.1,
                                  flops=forward_twice(layers, width, 51200, 2048, batch)))
    return rows


# BLOOM (bigscience-workshop/bigscience, train/tr11-176B-ml; arXiv 2211.05100): 105 s an iteration, 4 x 100 Gbit/s a node. OPT-175B (arXiv
# 2205.01068): 147 TFLOP/s of a GPU with the second forward pass, FSDP over tp 8, 992 A100. GPT-NeoX-20B (arXiv 2204.06745): 117 TFLOP/s, 96
# A100 of 40 GB, tp 2, pp 4, micro-batches of 4. FSDP (Zhao et al., arXiv 2304.11277, section 5.4): GPT-175B on 128 A100, 173 and 186
# TFLOP/s with 1 and 2 sequences of 2,048 tokens, activations checkpointed.
NEOX_20B = {"model_type": "gpt_neox", "vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
            "num_attention_heads": 64, "max_position_embeddings": 2048, "rotary_pct": 0.25, "rotary_emb_base": 10000,
            "layer_norm_eps": 1e-5, "hidden_act": "gelu", "use_parallel_residual": True, "tie_word_embeddings": False}


def a100_models():
    bloom = with_scores(70, 14336, 112, 250880)
    opt = with_scores(96, 12288, 96, 50272)
    rows = [Published("jean-zay", "BLOOM 176B, 384 GPUs", 105, "s", {**bloom, "tie_word_embeddings": True}, 2048, 2048,
                      {"tp": 4, "pp": 12, "dp": 8, "micro_batch": 2, "recompute": "full", **ZERO1,
                       "pp_layers": [5] + 10 * [6] + [5], "overlap_grad_reduce": False}),
            Published("a100-80", "OPT 175B, 992 GPUs", 147, "TFLOP/s", opt, 2048, 992,
                      {"tp": 8, "dp": 124, "micro_batch": 8, "recompute": "full", **FSDP},
                      flops=forward_twice(96, 12288, 50272, 2048, 992)),
            Published("a100-40", "GPT-NeoX 20B, 96 GPUs", 117, "TFLOP/s", NEOX_20B, 2048, 1536,
                      {"tp": 2, "pp": 4, "dp": 12, "micro_batch": 4, "recompute": "full", **ZERO1},
                      flops=forward_twice(44, 6144, 50432, 2048, 1536))]
    for micro, figure in ((1, 173), (2, 186)):
        rows.append(Published("a100-80", f"FSDP GPT-175B, 128 GPUs, batch {micro}", figure, "TFLOP/s",
                              with_scores(96, 12288, 96, 50000), 2048, 128 * micro,
                              {"dp": 128, "micro_batch": micro, "recompute": "full", **FSDP},
                              flops=forward_twice(96, 12288, 50000, 2048, 128 * micro)))
    # PyTorch's blog "Maximizing training throughput using PyTorch FSDP" (2024-03): Llama 2 7B on 128 A100, 2 sequences of 4,096 tokens
    rows.append(Published("a100-80", "IBM FSDP Llama 2 7B, 128 GPUs", 3700, "tokens/s/GPU", LLAMA2_7B, 4096, 256,
                          {"dp": 128, "micro_batch": 2, **FSDP}))
    return rows


# FlashAttention-2 (arXiv 2307.08691), table 1: TFLOP/s of a GPU by 6 * tokens * parameters + 12 * layers * width * tokens^2, 8 A100 of 80
# GB. Its training has fused kernels for norms, MLPs and losses.
def flash_attention():
    rows = []
    for name, layers, width, heads, seq, figure in (("1.3B", 24, 2048, 16, 2048, 196), ("1.3B", 24, 2048, 16, 8192, 220),
                                                    ("2.7B", 32, 2560, 32, 2048, 205), ("2.7B", 32, 2560, 32, 8192, 225)):
        model = gpt(layers, width, heads, 50304)
        parameters = 12 * layers * width**2 + 50304 * width
        batch = 256 if seq == 2048 else 64
        flops = batch * (6 * seq * parameters + 12 * layers * width * seq**2)
        rows.append(Published("a100-80", f"FlashAttention-2 GPT3-{name}, {seq} tokens, 8 GPUs", figure, "TFLOP/s", model, seq, batch,
                              {"dp": 8, "micro_batch": 8 if seq == 2048 else 2, **ZERO1_OVERLAPPED}, flops=flops))
    return rows


def all_rows():
    return (dgxc() + nemotron_paper() + bridge() + bridge_b200() + llama3_405b() + mosaic_large() + mosaic_a100_40() + selene()
            + a100_models() + flash_attention())
