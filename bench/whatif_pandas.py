#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the what-if analysis of the straggler data in pandas with `hocket whatif`: whatif_pandas.py TRACE [HOCKET]
[--rounds N]. Needs pandas (any virtual environment).

Both read the file, find the dependencies, and replay as measured, ideal, per stage, per data-parallel rank, per kind of
op, and without the last stage and the slowest workers. The figures are compared, and the times printed: of hocket's
whole process, of pandas without its import. On a shared machine, processor time is more reliable than wall time.

The method is the published one (2505.05713): a replay is vectorised over steps and replicas, an array per op of one
pipeline in topological order; means, medians and maxima over replicas are grouped frames."""
import argparse
import gzip
import json
import math
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd

P2P = {"forward-send": ("forward", 1, "forward-recv"), "forward-recv": ("forward", -1, "forward-send"),
       "backward-send": ("backward", -1, "backward-recv"), "backward-recv": ("backward", 1, "backward-send")}
DP = ["params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"]
COMM = list(P2P) + DP + ["layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad"]
PASSES = ["forward-compute", "backward-compute"]


def load(path):
    """Returns a row per op: times in seconds, coordinates, and `op`, its name within a pipeline."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as f:
        events = json.load(f)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    rows = [(e["pid"], e["tid"], e["name"], e["ts"] * 1e-6, e["dur"] * 1e-6, e["args"]["step"],
             e["args"]["model_chunk"], e["args"]["seq_id"]) for e in events if e["ph"] == "X"]
    df = pd.DataFrame(rows, columns=["dp", "tid", "kind", "start", "duration", "step", "chunk", "seq"])
    stage = {key: int(name.split("PP rank ")[1].split(",")[0]) for key, name in names.items()}
    df["stage"] = [stage[key] for key in zip(df.dp, df.tid)]
    df["rank"] = df.tid // 5
    df["end"] = df.start + df.duration
    counts = df.groupby("step").size()
    df = df[df.step.isin(counts[counts == counts.mode()[0]].index)].reset_index(drop=True)
    df["op"] = df.kind + "_" + df.seq.astype(str) + "_" + df.stage.astype(str)
    return df


def dependencies(df):
    """Returns waits (op -> ops), groups (ops that meet), and across (ops that meet their counterparts in other
    replicas)."""
    one = df[(df.dp == df.dp.min()) & (df.step == df.step.min())].sort_values(["start", "seq", "kind"])
    pp, chunks = int(one.stage.max()) + 1, int(one.chunk.max()) + 1
    waits = {op: [] for op in one.op}
    groups, across, met, launched = [], set(), set(), {}
    overlaps = (one.kind == "separate-grads-all-reduce").any()
    for stage, of in one.groupby("stage"):
        passes = of[of.kind.isin(PASSES)]
        chain(waits, passes.op)
        for kind, (direction, step, _) in P2P.items():
            ops = of[of.kind == kind]
            chain(waits, ops.op)
            own = passes[passes.kind == direction + "-compute"]
            send = kind.endswith("send")
            real = ops[ops.end >= own.end.min() - 5e-5] if send else ops[ops.start <= own.start.max() + 5e-5]
            number = 1 if not send and len(real) + 1 == len(own) else 0
            for op in real.op:
                compute = f"{direction}-compute_{number}_{stage}"
                if send:
                    waits[op].append(compute)
                else:
                    waits[compute].append(op)
                    if number > 0:
                        waits[op].append(f"{direction}-compute_{number - 1}_{stage}")
                peer = int(own[own.op == compute].chunk.iloc[0]) * pp + stage + step
                if 0 <= peer < pp * chunks:
                    launched.setdefault((kind, stage), []).append(op)
                number += 1
        order = passes.reset_index(drop=True)
        first = int((order.kind == "backward-compute").idxmax())
        for kind in ("backward-recv", "backward-send"):
            if first >= 2 and f"{kind}_0_{stage}" in waits:
                waits[f"{kind}_0_{stage}"].append(order.op[first - 2])
        chain(waits, of[of.kind.isin(DP[:2])].op)
        gathers, scatters = (of[of.kind == kind].sort_values("seq") for kind in DP[:2])
        for chunk, op in gathers.groupby("chunk").op.last().items():
            own = passes[(passes.kind == "forward-compute") & (passes.chunk == chunk)]
            waits[own.loc[own.start.idxmin()].op].append(op)
        if overlaps:
            for chunk, op in scatters.groupby("chunk").op.first().items():
                own = passes[(passes.kind == "backward-compute") & (passes.chunk == chunk)]
                waits[op].append(own.loc[own.end.idxmax()].op)
        tail = [passes.loc[passes.end.idxmax()].op]
        for kind in ["gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce",
                     DP[2] if overlaps else DP[1], "optimizer-clip-main-grad", "optimizer"]:
            tail += list(of[of.kind == kind].sort_values("seq").op)
        chain(waits, tail)
        if overlaps:
            waits[f"layernorm-grads-all-reduce_0_{stage}"].append(scatters.op.iloc[-1])
        for op in of[of.kind.isin(DP)].op:
            groups.append([op])
            across.add(op)
    for (kind, stage), ops in launched.items():
        direction, step, peer_kind = P2P[kind]
        if kind.endswith("send"):
            for pair in zip(ops, launched[peer_kind, (stage + step) % pp]):
                groups.append(list(pair))
                met.update(pair)
    groups += [[op] for op in one[one.kind.isin(P2P)].op if op not in met]
    embedding = list(one[one.kind == "embedding-grads-all-reduce"].op)
    clips = list(one[one.kind == "optimizer-clip-main-grad"].op)
    across.update(clips)
    return waits, groups + [embedding, clips], across


def chain(waits, ops):
    ops = list(ops)
    for before, after in zip(ops, ops[1:]):
        waits[after].append(before)


class Analysis:
    def __init__(self, df):
        self.df = df.sort_values(["op", "step", "dp"]).reset_index(drop=True)
        waits, self.groups, self.across = dependencies(df)
        self.rows = {op: index.to_numpy() for op, index in self.df.groupby("op").groups.items()}
        self.group_of = {op: i for i, group in enumerate(self.groups) for op in group}
        self.waits, self.order = waits, self.topological(waits)
        first = self.rows[self.order[0][0]]
        self.step = self.df.step.to_numpy()[first]

    def topological(self, waits):
        """Returns groups and single ops in topological order."""
        unit = {op: ("g", self.group_of[op]) if op in self.group_of else ("o", op) for op in waits}
        degree, after = {u: 0 for u in unit.values()}, {}
        for op, before in waits.items():
            for b in before:
                degree[unit[op]] += 1
                after.setdefault(unit[b], []).append(unit[op])
        ready, order = [u for u, n in degree.items() if n == 0], []
        for u in ready:
            order.append(self.groups[u[1]] if u[0] == "g" else [u[1]])
            for v in after.get(u, []):
                degree[v] -= 1
                if degree[v] == 0:
                    ready.append(v)
        assert len(order) == len(degree), "ops wait for each other in a cycle"
        return order

    def replay(self, duration):
        """Returns the seconds of each step."""
        end, zero = {}, np.zeros(len(self.step))
        for ops in self.order:
            begin = np.maximum.reduce([zero] + [end[w] for op in ops for w in self.waits[op]])
            if ops[0] in self.across:
                begin = pd.Series(begin).groupby(self.step).transform("max").to_numpy()
            for op in ops:
                end[op] = begin + duration[self.rows[op]]
        last = np.maximum.reduce(list(end.values()))
        return pd.Series(last).groupby(self.step).max()

    def analyse(self):
        df, measured = self.df, self.df.duration.to_numpy()
        grouped = df.groupby("kind").duration
        ideal = np.where(df.kind.isin(COMM), grouped.transform("median"), grouped.transform("mean"))
        T_step, ideal_step = self.replay(measured), self.replay(ideal)
        T, T_ideal = T_step.mean(), ideal_step.mean()

        def only(column):
            return {value: self.replay(np.where(df[column] == value, measured, ideal)).mean() / T_ideal
                    for value in sorted(df[column].unique())}
        S_stage, S_dp, S_op = only("stage"), only("dp"), only("kind")
        workers = df[["rank", "stage", "dp"]].drop_duplicates()
        score = np.minimum(workers.stage.map(S_stage), workers.dp.map(S_dp))
        slowest = workers.assign(score=score).sort_values(["score", "rank"], ascending=[False, True])["rank"]
        slowest = slowest.head(math.ceil(len(workers) * 3 / 100))

        def without(chosen):
            return (T - self.replay(np.where(chosen, ideal, measured)).mean()) / (T - T_ideal)
        return {"T": T, "T_ideal": T_ideal, "S": T / T_ideal, "S_step": list(T_step / ideal_step),
                "S_stage": list(S_stage.values()), "S_dp": list(S_dp.values()), "S_op": S_op,
                "M_S": without(df.stage == df.stage.max()), "M_W": without(df["rank"].isin(slowest))}


def children():
    """Returns the processor seconds of ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("hocket", nargs="?", default="build/hocket")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ours, theirs = [], []
    for _ in range(args.rounds):  # in turn, so that both see the same load
        began, used = time.perf_counter(), children()
        text = subprocess.run([args.hocket, "whatif", args.trace, "--json"], stdout=subprocess.PIPE, check=True,
                              stderr=subprocess.DEVNULL).stdout
        ours.append((time.perf_counter() - began, children() - used))
        began, used = time.perf_counter(), time.process_time()
        df = load(args.trace)
        loaded = time.perf_counter() - began
        result = Analysis(df).analyse()
        theirs.append((time.perf_counter() - began, time.process_time() - used, loaded))
    found, worst = json.loads(text), 0.0
    for key, value in result.items():
        other = found[key]
        if key == "S_op":
            value, other = list(value.values()), [other[k] for k in value]
        pair = np.atleast_1d(value), np.atleast_1d(list(other.values()) if isinstance(other, dict) else other)
        worst = max(worst, float(np.max(np.abs(pair[0] - pair[1]) / np.maximum(np.abs(pair[0]), 0.1))))
    pandas, pandas_cpu, of_load = (sorted(column)[args.rounds // 2] for column in zip(*theirs))
    hocket, hocket_cpu = (sorted(column)[args.rounds // 2] for column in zip(*ours))
    print(f"{found['ops']} ops, {len(found['S_step'])} steps, dp {found['dp']}, pp {found['pp']}; medians of "
          f"{args.rounds}, in turn")
    print(f"clock: pandas {pandas:.3f} s ({of_load:.3f} s of it to load), hocket {hocket:.4f} s: {pandas / hocket:.1f}x; "
          f"processor: {pandas_cpu:.3f} s, {hocket_cpu:.4f} s: {pandas_cpu / hocket_cpu:.1f}x; "
          f"greatest difference {worst:.1e}")
    return 0 if worst < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
