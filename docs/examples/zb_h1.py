#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes ZB-H1 (Qi et al., arXiv 2401.10241) as a schedule CSV: zb_h1.py RANKS MICRO_BATCHES"""
import sys

ranks, micro_batches = int(sys.argv[1]), int(sys.argv[2])
for rank in range(ranks):
    cells = []
    # The warm-up has one forward pass per later rank, as in 1F1B.
    warmup = min(ranks - 1 - rank, micro_batches)
    for step in range(micro_batches + warmup + rank):
        if step < micro_batches:
            cells.append(f"{rank}F{step}")
        if warmup <= step < micro_batches + warmup:
            cells.append(f"{rank}I{step - warmup}")
        # The weight gradient of a micro-batch is delayed by one micro-batch per earlier rank.
        if step >= warmup + rank:
            cells.append(f"{rank}W{step - warmup - rank}")
    print(",".join(cells))
