# SPDX-License-Identifier: Apache-2.0
"""Writes logs in the format of nccl-tests, with times from a formula."""
import math

HEAD = "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 2(factor) warmup iters: 5\n#\n# Using devices\n"


def sum_us(ranks, size):
    """Returns the time of a ring or a tree, whichever is faster: 30 us, 1 us a step, 200 GB/s."""
    ring = 2 * (ranks - 1) * 1.0 + 2 * (ranks - 1) / ranks * size / 200e3
    tree = 2 * math.log2(ranks) * 1.0 + 2 * size / 200e3
    return 30 + min(ring, tree)


def log(ranks, nodes=1, time=sum_us, prefix=""):
    lines = HEAD.splitlines()
    for rank in range(ranks):
        host = rank * nodes // ranks
        lines.append(f"#   Rank {rank:2} Pid  {100 + rank} on node-{host} device  {rank} [0x00] A100-SXM4-40GB")
    lines.append("#       size         count      type   redop" + "     time   algbw   busbw  error" * 2)
    for power in range(10, 31):
        size = 2 ** power
        us = time(ranks, size)
        algbw = size / us / 1e3
        row = f"{us:10.2f} {algbw:7.2f} {2 * (ranks - 1) / ranks * algbw:7.2f}  0e+00 "
        lines.append(f"{size:12} {size // 4:12}     float     sum {row} {row}")
    return "".join(f"{prefix}{line}\n" for line in lines)
