#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures `hocket serve` with a long prompt beside short streams, at several settings: --max-num-batched-tokens,
and behind slashes --decode-steps-between-chunks and --long-prefill-token-threshold.

For every setting a server is started, and gives: the median time between the tokens of the short streams without the
long prompt; the time to the first token of the long prompt alone; both while the long prompt is read beside the
streams, with the mean and the 99th percentile; and their ratios. A stream is one text of 32 + 160 tokens behind the other. The time
to the first token counts from the sending of the prompt; for the short texts beside the long prompt it is printed, too.

    long_prompt.py [--hocket PATH] [--budgets 40,40/3/24] [--prompt 8000] [--streams 8] [--rounds N]"""
import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time

import serve_compare


SHORT = 160  # tokens of a short text


def measure(server, rng, prompt, streams):
    """Returns the four times of a round, in seconds."""
    gaps, firsts, stop = [], [], threading.Event()
    begun = threading.Semaphore(0)

    def short(first):
        last = [None]

        def piece():
            now = time.perf_counter()
            if last[0] is not None:
                gaps.append((now, now - last[0]))
            last[0] = now
            if stop.is_set():
                raise Stopped

        # One short text behind the other: a long one would have more keys than the long prompt by its end.
        with contextlib.suppress(Stopped):
            server.stream(serve_compare.ids(rng, 32), first, on_piece=piece)
            begun.release()
            while True:
                last[0], sent = None, time.perf_counter()
                times, _ = server.stream(serve_compare.ids(rng, 32), SHORT, on_piece=piece)
                firsts.append((sent, times[0]))

    _, alone = server.stream(serve_compare.ids(rng, prompt), 1)
    # Begun at unlike times, so that they do not all end in one step.
    threads = [threading.Thread(target=short, args=(SHORT * (i + 1) // streams,)) for i in range(streams)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begun.acquire()
    calm = time.perf_counter()
    time.sleep(10)
    begin = time.perf_counter()
    _, waited = server.stream(serve_compare.ids(rng, prompt), 1)
    end = time.perf_counter()
    stop.set()
    for thread in threads:
        thread.join()
    quiet = statistics.median(gap for at, gap in gaps if calm < at < begin)
    beside = [gap for at, gap in gaps if begin < at < end]
    return {"gap alone": quiet, "gap beside": statistics.median(beside), "mean gap beside": statistics.mean(beside),
            "p99 gap beside": statistics.quantiles(beside, n=100)[-1], "first token alone": alone,
            "first token beside": waited,
            "first token of short texts": statistics.median([took for at, took in firsts if begin < at < end] or [float("nan")]),
            "short texts": sum(begin < at < end for at, _ in firsts)}


class Stopped(Exception):
    pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hocket", default=os.path.join(serve_compare.ROOT, "build", "hocket"))
    parser.add_argument("--budgets", default="40,512")
    parser.add_argument("--prompt", type=int, default=8000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    model = serve_compare.smollm2.fetch()
    if model is None:
        return 2
    rng = random.Random(args.seed)
    every = {}
    print("| tokens a step / steps between / most of a prompt | ms between tokens alone | beside: median, mean, p99 | ratio of the median, of the mean"
          " | s to the first token alone | beside | ratio | of short texts, their number |")
    print("|" + "---|" * 8, flush=True)
    for setting in args.budgets.split(","):
        budget, between, threshold = (setting.split("/") + ["0", "0"])[:3]
        with tempfile.TemporaryFile("w") as log:
            server = serve_compare.start_ours(args.hocket, model, log, "--max-model-len", "8192", "--max-num-seqs",
                                              str(args.streams + 1), "--max-num-batched-tokens", budget,
                                              "--decode-steps-between-chunks", between,
                                              "--long-prefill-token-threshold", threshold,
                                              "--no-enable-prefix-caching")
            try:
                server.stream(serve_compare.ids(rng, 64), 8)
                rounds = [measure(server, rng, args.prompt, args.streams) for _ in range(args.rounds)]
            finally:
                server.stop()
        every[setting] = rounds

        def median(value):
            return statistics.median(map(value, rounds))

        print(f"| {setting} | {1e3 * median(lambda r: r['gap alone']):.1f} | {1e3 * median(lambda r: r['gap beside']):.1f},"
              f" {1e3 * median(lambda r: r['mean gap beside']):.1f}, {1e3 * median(lambda r: r['p99 gap beside']):.0f}"
              f" | {median(lambda r: r['gap beside'] / r['gap alone']):.2f},"
              f" {median(lambda r: r['mean gap beside'] / r['gap alone']):.2f}"
              f" | {median(lambda r: r['first token alone']):.1f} | {median(lambda r: r['first token beside']):.1f}"
              f" | {median(lambda r: r['first token beside'] / r['first token alone']):.2f}"
              f" | {median(lambda r: r['first token of short texts']):.1f}, {median(lambda r: r['short texts']):.0f} |", flush=True)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(every, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
