# SPDX-License-Identifier: Apache-2.0
"""Synthetic traces in the schema of the straggler data (StragglerAnalysis), and their expected analysis by brute force:
one dictionary entry per op, step and rank, recursion over dependencies. The dependencies here follow from the schedule
that made the job; the product has to find them in the trace."""
import json
import math
import random
import statistics
import sys

COMPUTE = {"forward-compute", "backward-compute", "optimizer", "gc"}
KINDS = ["compute", "pp-comm", "tp-comm", "dp-comm", "misc"]
sys.setrecursionlimit(100000)


def schedule(pp, stage, micro_batches, chunks):
    """Returns [(direction, chunk, micro-batch)] of a pipeline rank: 1F1B, or interleaved 1F1B with several chunks."""
    total = micro_batches * chunks
    if chunks == 1:
        warm_up = min(pp - stage - 1, total)
    else:
        warm_up = min((pp - stage - 1) * 2 + (chunks - 1) * pp, total)

    def place(k, backward):
        chunk = k % (pp * chunks) // pp
        return chunks - 1 - chunk if backward else chunk, k // (pp * chunks) * pp + k % pp

    def forward(k):
        return ("forward", *(place(k, False) if chunks > 1 else (0, k)))

    def backward(k):
        return ("backward", *(place(k, True) if chunks > 1 else (0, k)))
    order = [forward(k) for k in range(warm_up)]
    for k in range(total - warm_up):
        order += [forward(warm_up + k), backward(k)]
    return order + [backward(k) for k in range(total - warm_up, total)]


class Job:
    """A synthetic job. `slow(step, dp, stage, type, micro_batch)` gives a factor of an op's time."""

    def __init__(self, dp=2, pp=4, micro_batches=4, chunks=1, steps=3, overlap=False, gc=True, seed=1,
                 slow=lambda *where: 1.0, first_step=20):
        self.dp, self.pp, self.micro_batches, self.chunks, self.overlap = dp, pp, micro_batches, chunks, overlap
        self.random = random.Random(seed)
        self.steps = [first_step + 3 * i for i in range(steps)]
        self.slow = slow
        self.waits = {}     # (stage, type, number): dependencies within a replica
        self.info = {}      # (stage, type, number): (chunk, micro-batch)
        self.groups = []    # (members, over all replicas)
        for stage in range(pp):
            self.passes(stage)
            self.step_end(stage, gc)
        self.meet()
        self.group_of = {op: i for i, (ops, _) in enumerate(self.groups) for op in ops}
        self.duration = {}
        for op in self.waits:
            for step in self.steps:
                for rank in range(dp):
                    self.duration[step, rank, op] = self.time(step, rank, op)

    def add(self, stage, kind, number, waits, chunk=-1, micro_batch=-1):
        op = (stage, kind, number)
        self.waits[op] = [w for w in waits if w is not None]
        self.info[op] = (chunk, micro_batch)
        return op

    def passes(self, stage):
        """Adds gathers of parameters, then passes with their messages."""
        gathers = []
        for chunk in range(self.chunks):
            gathers.append(self.add(stage, "params-all-gather", chunk, gathers[-1:], chunk))
        number = {"forward": 0, "backward": 0}
        last, order, self.last_of_chunk = None, [], {}
        first_backward = True
        for direction, chunk, micro_batch in schedule(self.pp, stage, self.micro_batches, self.chunks):
            k = number[direction]
            number[direction] += 1
            kind = direction + "-compute"
            op = (stage, kind, k)
            of_model = chunk * self.pp + stage
            ends = of_model == 0, of_model == self.pp * self.chunks - 1
            if direction == "backward":
                ends = ends[::-1]
            no_receive, no_send = ends
            waits = [last]
            noted = self.chunks > 1
            launch = order[-2] if direction == "backward" and first_backward and len(order) >= 2 else None
            if not no_receive or noted:
                waits.append(self.add(stage, direction + "-recv", k,
                                      [(stage, direction + "-recv", k - 1) if (stage, direction + "-recv", k - 1)
                                       in self.waits else None,
                                       (stage, kind, k - 1) if k > 0 else None, launch]))
            if direction == "forward" and all(self.info[o][0] != chunk or o[1] != "forward-compute" for o in order):
                waits.append(gathers[chunk])
            self.add(stage, kind, k, waits, chunk, micro_batch)
            if not no_send or noted:
                before = (stage, direction + "-send", k - 1)
                self.add(stage, direction + "-send", k, [op, before if before in self.waits else None, launch])
            if direction == "backward":
                first_backward = False
                self.last_of_chunk[chunk] = op
            last = op
            order.append(op)
        self.last_pass = last
        self.last_gather = gathers[-1]

    def step_end(self, stage, gc):
        tail = self.last_pass
        if gc:
            tail = self.add(stage, "gc", 0, [tail], micro_batch=0)
        chain = ["layernorm-grads-all-reduce"]
        if stage in (0, self.pp - 1):
            chain.append("embedding-grads-all-reduce")
        scatter = self.last_gather
        if self.overlap:
            ends = {}
            for number, chunk in enumerate(reversed(range(self.chunks))):
                scatter = self.add(stage, "grads-reduce-scatter", number, [scatter, self.last_of_chunk[chunk]], chunk)
                ends[number] = scatter
            first = [tail, scatter]
            chain.append("separate-grads-all-reduce")
        else:
            first = [tail]
        for kind in chain:
            tail = self.add(stage, kind, 0, first if kind == chain[0] else [tail])
        for number in range(0 if self.overlap else self.chunks):
            tail = scatter = self.add(stage, "grads-reduce-scatter", number, [tail, scatter], number)
        tail = self.add(stage, "optimizer-clip-main-grad", 0, [tail])
        self.add(stage, "optimizer", 0, [tail])

    def meet(self):
        """Matches the k-th message of a chunk and micro-batch with that of the neighbour."""
        place = {}  # (direction, model chunk, micro-batch) of a pass
        for op, (chunk, micro_batch) in self.info.items():
            stage, kind, number = op
            if kind in ("forward-compute", "backward-compute"):
                place[kind.split("-")[0], chunk * self.pp + stage, micro_batch] = op
        met = set()
        for (direction, of_model, micro_batch), op in place.items():
            peer = place.get((direction, of_model + (1 if direction == "forward" else -1), micro_batch))
            if peer is not None:
                pair = [(op[0], direction + "-send", op[2]), (peer[0], direction + "-recv", peer[2])]
                self.groups.append((pair, False))
                met.update(pair)
        for op in self.waits:
            kind = op[1]
            if kind in ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"):
                self.groups.append(([op], True))
            elif kind.endswith(("-send", "-recv")) and op not in met:
                self.groups.append(([op], False))
        self.groups.append(([o for o in self.waits if o[1] == "embedding-grads-all-reduce"], False))
        self.groups.append(([o for o in self.waits if o[1] == "optimizer-clip-main-grad"], True))

    def time(self, step, rank, op):
        stage, kind, _ = op
        base = {"forward-compute": 60e-3, "backward-compute": 120e-3, "optimizer": 40e-3, "gc": 0,
                "params-all-gather": 20e-3, "grads-reduce-scatter": 50e-3, "separate-grads-all-reduce": 3e-3,
                "layernorm-grads-all-reduce": 4e-5, "embedding-grads-all-reduce": 6e-3,
                "optimizer-clip-main-grad": 2e-3}.get(kind, 4e-4)
        if kind.endswith(("-send", "-recv")) and op not in {o for g, _ in self.groups if len(g) > 1 for o in g}:
            base = 1e-6
        return base * self.random.uniform(0.9, 1.1) * self.slow(step, rank, stage, kind, self.info[op][1])

    def replay(self, duration, delay=lambda *where: 0.0):
        """Returns {step: seconds} and {(step, dp, op): (start, end)}."""
        seconds, times = {}, {}
        for step in self.steps:
            start, end = {}, {}

            def start_of(rank, op):
                if (rank, op) not in start:
                    begin = max([end_of(rank, w) for w in self.waits[op]], default=0.0)
                    start[rank, op] = begin + delay(step, rank, op)
                return start[rank, op]

            def end_of(rank, op):
                if (rank, op) not in end:
                    begin = start_of(rank, op)
                    if op in self.group_of:
                        ops, across = self.groups[self.group_of[op]]
                        begin = max(start_of(r, o) for o in ops for r in (range(self.dp) if across else [rank]))
                    end[rank, op] = begin + duration[step, rank, op]
                return end[rank, op]

            for op in self.waits:
                for rank in range(self.dp):
                    end_of(rank, op)
                    times[step, rank, op] = (start[rank, op], end[rank, op])
            seconds[step] = max(end.values())
        return seconds, times

    def expected(self, steps=None):
        """Returns the expected analysis of these steps."""
        keep, self.steps = self.steps, steps or self.steps
        by_kind = {}
        cells = [(s, r, o) for s in self.steps for r in range(self.dp) for o in self.waits]
        for cell in cells:
            by_kind.setdefault(cell[2][1], []).append(self.duration[cell])
        ideal_of = {kind: statistics.fmean(values) if kind in COMPUTE else statistics.median(values)
                    for kind, values in by_kind.items()}
        ideal = {cell: ideal_of[cell[2][1]] for cell in cells}

        def mean(duration):
            return statistics.fmean(self.replay(duration)[0].values())

        def mixed(some, others, chosen):
            return {cell: some[cell] if chosen(cell[1], cell[2][0]) else others[cell] for cell in cells}
        T, T_ideal = mean(self.duration), mean(ideal)
        S_stage = [mean(mixed(self.duration, ideal, lambda r, s, k=k: s == k)) / T_ideal for k in range(self.pp)]
        S_dp = [mean(mixed(self.duration, ideal, lambda r, s, k=k: r == k)) / T_ideal for k in range(self.dp)]
        workers = sorted(((r, s) for r in range(self.dp) for s in range(self.pp)),
                         key=lambda w: (-min(S_dp[w[0]], S_stage[w[1]]), w[1] * self.dp + w[0]))
        slowest = set(workers[:math.ceil(len(workers) * 3 / 100)])
        fixed_stage = mean(mixed(ideal, self.duration, lambda r, s: s == self.pp - 1))
        fixed_workers = mean(mixed(ideal, self.duration, lambda r, s: (r, s) in slowest))
        steps_T, steps_ideal = self.replay(self.duration)[0], self.replay(ideal)[0]
        result = {"T": T, "T_ideal": T_ideal, "S": T / T_ideal, "S_stage": S_stage, "S_dp": S_dp,
                  "S_step": {str(s): steps_T[s] / steps_ideal[s] for s in self.steps},
                  "M_S": (T - fixed_stage) / (T - T_ideal), "M_W": (T - fixed_workers) / (T - T_ideal)}
        self.steps = keep
        return result

    def trace(self, waiting=False, tensor=1, named=True):
        """Returns the events of the job's trace.

        With `waiting`, communication lasts from its launch, not for its transfer alone. `tensor` is the number of
        tensor-parallel ranks, of which the trace has the first. Without `named`, threads have no names."""
        delays = random.Random(7)
        times = self.replay(self.duration, lambda step, rank, op: delays.uniform(0, 2e-5))[1]
        events, origin, offset = [], {}, 0.0
        for step in self.steps:
            origin[step] = offset
            offset += 1.1 * max(end for (s, _, _), (_, end) in times.items() if s == step)
        for (step, dp, op), (start, end) in times.items():
            stage, kind, number = op
            if op in self.group_of and not waiting:
                start = end - self.duration[step, dp, op]
            chunk, micro_batch = self.info[op]
            rank = (stage * self.dp + dp) * tensor
            lane = 0 if kind in COMPUTE else 1 if kind.endswith(("-send", "-recv")) else 3
            events.append({"name": kind, "cat": kind, "pid": dp, "tid": rank * 5 + lane,
                           "ts": (origin[step] + start) * 1e6, "dur": (end - start) * 1e6, "ph": "X",
                           "args": {"step": step, "model_chunk": chunk, "mb_id": micro_batch, "seq_id": number}})
        for stage in range(self.pp if named else 0):
            for dp in range(self.dp):
                for i, kind in enumerate(KINDS):
                    rank = (stage * self.dp + dp) * tensor
                    events.append({"name": "thread_name", "pid": dp, "tid": rank * 5 + i, "ph": "M",
                                   "args": {"name": f"PP rank {stage}, TP rank 0, {kind}"}})
        return events


def write(path, events):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(events, f)
    return path
