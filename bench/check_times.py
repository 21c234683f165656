#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times `hocket check` for the models and tensor-parallel degrees for which GraphGuard's repository
(nyu-systems/Entangle, arXiv 2508.09505) has reference times: the whole command, medians of several rounds.

    python3 bench/check_times.py build/hocket [ROUNDS]

GraphGuard's graphs are forward passes captured by PyTorch or Neuron. These are whole training steps (forward, backward,
clipping, AdamW) in fp32 of a llama of the same sizes (no biases, no dropout, RMSNorm, rotary positions), with
vocabulary, heads, MLPs and sequences (for GPT, as GraphGuard does) split over tp."""
import re
import statistics
import subprocess
import sys
import tempfile
import time

# Width, heads, kv heads, head width, MLP width, vocabulary, sequence, sequences, sequence_parallel. GPT has the sizes
# of the captured graphs; Llama-3 and Qwen2 those of the 8B and the 7B.
MODELS = {
    "GPT": (768, 24, 24, 32, 3072, 98304, 1536, 8, True),
    "Llama-3": (4096, 32, 8, 128, 14336, 128256, 2048, 1, False),
    "Qwen2": (3584, 28, 4, 128, 18944, 152064, 2048, 1, False),
}
# Seconds of GraphGuard by model, layers and tp, read off its repository's reference figures.
THEIRS = {
    ("GPT", 1): {2: 13.6, 4: 18.9, 6: 27.3, 8: 52.8},
    ("GPT", 8): {2: 69, 4: 95, 6: 123, 8: 174},
    ("Llama-3", 1): {2: 10.0, 4: 13.7, 8: 20.8},
    ("Llama-3", 8): {2: 96, 4: 147, 8: 237},
    ("Qwen2", 1): {2: 6.8},
}


def run_yaml(sizes, layers, tp):
    width, heads, kv_heads, head, mlp, vocabulary, sequence, sequences, sequence_parallel = sizes
    return f"""model:
  config: {{model_type: llama, vocab_size: {vocabulary}, hidden_size: {width}, num_hidden_layers: {layers},
    num_attention_heads: {heads}, num_key_value_heads: {kv_heads}, head_dim: {head}, intermediate_size: {mlp},
    rms_norm_eps: 1.0e-5, rope_theta: 10000.0, max_position_embeddings: {sequence}, hidden_act: silu,
    tie_word_embeddings: false}}
train: {{seq_len: {sequence}, global_batch: {sequences}}}
plan: {{tp: {tp}, sequence_parallel: {str(sequence_parallel).lower()}, micro_batch: {sequences}}}
"""


def check(hocket, path):
    """Returns the seconds of the command, the tasks of a rank, and the milliseconds of the check alone."""
    start = time.perf_counter()
    out = subprocess.run([hocket, "check", path, "--memory-budget", "100TiB"], capture_output=True, text=True,
                         check=True).stdout
    seconds = time.perf_counter() - start
    said = re.search(r"^good: (\d+) tasks.* checked in ([\d.]+) (us|ms|s)$", out, re.M)
    return seconds, int(said[1]), float(said[2]) * {"us": 1e-3, "ms": 1, "s": 1000}[said[3]]


def main():
    hocket = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    print("| model | layers | tp | tasks per rank | GraphGuard, s | `hocket check`, s | of which the check, ms |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        for (model, layers), degrees in THEIRS.items():
            for tp, theirs in degrees.items():
                file.seek(0)
                file.truncate()
                file.write(run_yaml(MODELS[model], layers, tp))
                file.flush()
                times = [check(hocket, file.name) for _ in range(rounds)]
                seconds, checked = (statistics.median(time[i] for time in times) for i in (0, 2))
                print(f"| {model} | {layers} | {tp} | {times[0][1]:,} | {theirs} | {seconds:.3f} | {checked:.2f} |",
                      flush=True)


if __name__ == "__main__":
    main()
