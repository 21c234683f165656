# SPDX-License-Identifier: Apache-2.0
"""Simulated PyTorch profiles whose truth is known.

A host with two threads (the main one, and that of the backward pass) launches kernels, graphs, copies and collectives on
streams of its device. Kernels wait for their launch, their stream and the events that the host made the stream wait for.
Collectives end when the transfer after their last member's start ends. The profile is written as Kineto writes it. Times
are microseconds."""
import random
from dataclasses import dataclass, field, replace

COMPUTE, COMMUNICATION, COPY, SIDE = 7, 20, 24, 28
QUEUE = 1024  # launches that a stream takes before a call blocks
MAIN, BACKWARD = 4001, 4077  # thread ids


@dataclass
class Job:
    """A job: its sizes, and its faults."""
    seed: int = 0
    ranks: int = 1
    steps: int = 6
    before: int = 3  # steps before the profile begins
    layers: int = 8
    kernels: int = 3  # of a layer's forward pass; its backward pass has twice as many
    kernel_us: float = 150.0
    host_us: float = 12.0  # between launches
    noise: float = 0.01  # relative deviation of a kernel
    host_noise: float = 0.15
    load_us: float = 100.0  # of the host, before a step's first launch
    bucket: int = 4  # layers whose gradients are summed together; 0: none
    transfer_us: float = 200.0
    side: bool = False  # a branch of every other layer runs on a stream of its own
    copies: bool = True
    graph: str = ""  # "passes": forward and backward pass are one graph each; "step": with the optimizer
    wait: str = ""  # "item": the host reads the loss in every step; "device": it waits at the end of a step
    cold: bool = False  # the device has nothing left to do when the profile begins
    marks_on_device: bool = True
    pauses: dict = field(default_factory=dict)  # step -> (rank, share of the step's launches, microseconds)
    device_pauses: dict = field(default_factory=dict)  # likewise: between two kernels, of the device
    slow: dict = field(default_factory=dict)  # rank -> (factor of kernels, factor of the host)
    clocks_us: float = 3000.0  # ranks' clocks differ by up to this

    def mended(self):
        return replace(self, pauses={}, device_pauses={}, slow={})


class Collective:
    def __init__(self, members, transfer):
        self.members, self.transfer, self.starts, self.waiting = members, transfer, [], []
        self.end = None

    def join(self, start):
        self.starts.append(start)
        if len(self.starts) == self.members:
            self.end = max(self.starts) + self.transfer


class Rank:
    """One rank: a generator that stops where it needs the end of a collective that others have not joined."""

    def __init__(self, job, rank, collectives):
        self.job, self.rank, self.collectives = job, rank, collectives
        self.random = random.Random(f"{job.seed}/{rank}")
        self.host, self.thread = 0.0, MAIN
        self.last, self.waits, self.recorded = {}, {}, {}
        self.starts, self.events, self.marks, self.ends = [], [], {}, {}
        self.correlation, self.numbers = 1000 * rank, {}
        self.kernel_factor, self.host_factor = job.slow.get(rank, (1.0, 1.0))
        self.launched, self.step, self.pause, self.device_pause = 0, 0, None, None

    # ---- the host ----
    def work(self, us):
        self.host += max(0.3, us * self.host_factor * self.random.lognormvariate(0, self.job.host_noise))

    def call(self, name, us, category="cuda_runtime", **arguments):
        """Adds a call. Returns its correlation id."""
        self.correlation += 1
        us = max(0.5, us * self.random.lognormvariate(0, self.job.host_noise))
        self.events.append(("X", category, name, self.thread, self.host, us,
                            {"cbid": 211, "correlation": self.correlation, **arguments}))
        self.host += us
        return self.correlation

    def before_launch(self):
        self.launched += 1
        if self.pause and self.launched >= self.pause[0]:
            self.host += self.pause[1]
            self.pause = None
        self.work(self.job.host_us)

    def launch(self, name, stream, us, call="cudaLaunchKernel", category="kernel", arguments=None):
        self.before_launch()
        begin = self.host
        correlation = self.call(call, 4.5)
        if len(self.starts) >= QUEUE and self.starts[-QUEUE] > self.host:
            self.host = self.starts[-QUEUE]
            kind, cat, label, thread, start, _, more = self.events[-1]
            self.events[-1] = (kind, cat, label, thread, start, self.host - begin, more)
        yield from self.run(name, stream, us, category, correlation, arguments)

    def run(self, name, stream, us, category, correlation, arguments=None, latency=True):
        """Adds an activity of the device, launched by the last call."""
        ready = self.host + self.random.uniform(2.5, 5) if latency else self.host
        start = max(ready, (yield from self.end_of(stream)))
        for waited in self.waits.pop(stream, []):
            start = max(start, (yield from self.value(waited)))
        if self.device_pause and self.launched >= self.device_pause[0] and category == "kernel":
            start += self.device_pause[1]
            self.device_pause = None
        if category == "kernel":
            us *= self.kernel_factor
        end = start + max(0.8, us * self.random.gauss(1, self.job.noise))
        self.add(name, stream, start, end, category, correlation, arguments)

    def add(self, name, stream, start, end, category, correlation, arguments=None):
        self.starts.append(start)
        self.last[stream] = end
        self.events.append(["X", category, name, stream, start, end,
                            {"device": self.rank % 8, "context": 1, "stream": stream, "correlation": correlation,
                             **(arguments or {})}, self.step])

    def end_of(self, stream):
        return (yield from self.value(self.last.get(stream, 0.0)))

    @staticmethod
    def value(end):
        while isinstance(end, Collective) and end.end is None:
            yield
        return end.end if isinstance(end, Collective) else end

    def record(self, stream):
        """Records an event behind a stream's work."""
        self.call("cudaEventRecord", 1.2)
        return self.last.get(stream, 0.0)

    def wait(self, stream, event):
        self.call("cudaStreamWaitEvent", 1.0)
        self.waits.setdefault(stream, []).append(event)

    def synchronise(self, name, streams):
        begin = self.host
        correlation = self.call(name, 2)
        for stream in streams:
            self.host = max(self.host, (yield from self.end_of(stream)) + self.random.uniform(1.5, 4))
        kind, cat, label, thread, _, _, more = self.events[-1]
        self.events[-1] = (kind, cat, label, thread, begin, self.host - begin, {**more, "correlation": correlation})

    def collective(self, name, transfer, elements):
        event = self.record(COMPUTE)
        self.wait(COMMUNICATION, event)
        mark = self.host
        self.before_launch()
        correlation = self.call("cudaLaunchKernelExC", 6)
        start = max(self.host + self.random.uniform(2.5, 5), (yield from self.end_of(COMMUNICATION)))
        for waited in self.waits.pop(COMMUNICATION, []):
            start = max(start, (yield from self.value(waited)))
        number = self.numbers[name] = self.numbers.get(name, -1) + 1
        key = (name, number)
        if key not in self.collectives:
            noise = random.Random(f"{self.job.seed}/{key}").gauss(1, self.job.noise)
            self.collectives[key] = Collective(self.job.ranks, transfer * noise)
        one = self.collectives[key]
        one.join(start)
        self.events.append(("X", "user_annotation", "nccl:all_reduce", self.thread, mark, self.host - mark,
                            {"Input Dims": [[elements]], "Input type": ["float"]}))
        self.add(f"ncclDevKernel_{name}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", COMMUNICATION, start, one,
                 "kernel", correlation,
                 {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
                  "Group size": self.job.ranks, "dtype": "Float", "Process Group Name": "0"})

    # ---- the program ----
    def layer(self, way, layer):
        job = self.job
        for k in range(job.kernels * (2 if way == "backward" else 1)):
            share = [1.6, 0.5, 0.9, 0.2, 1.8][(k + layer) % 5]
            name = ["ampere_bf16_s16816gemm_bf16_128x256", "void at::native::vectorized_elementwise_kernel<4>(int)",
                    "flash_fwd_kernel", "void at::native::layer_norm<float>(int)", "sm90_xmma_gemm_bf16"][(k + layer) % 5]
            yield from self.launch(name, COMPUTE, job.kernel_us * share)
        if job.side and layer % 2 == 0:
            self.wait(SIDE, self.record(COMPUTE))
            yield from self.launch("void side_gemm<2>(float*)", SIDE, job.kernel_us * 1.4)
            yield from self.launch("void router<8>(float*)", COMPUTE, job.kernel_us * 0.8)
            self.wait(COMPUTE, self.record(SIDE))

    def captured(self, parts):
        """Launches a graph: one call, many kernels of its correlation id."""
        self.before_launch()
        correlation = self.call("cudaGraphLaunch", 9)
        self.host += 0.0
        node = 0
        for way, layer in parts:
            for k in range(self.job.kernels * (2 if way == "backward" else 1)):
                share = [1.6, 0.5, 0.9, 0.2, 1.8][(k + layer) % 5]
                node += 1
                yield from self.run(["gemm_graph<1>", "void elementwise<4>(int)", "flash_fwd"][(k + layer) % 3], COMPUTE,
                                    self.job.kernel_us * share, "kernel", correlation,
                                    {"graph id": 7, "graph node id": node})
            if self.job.side and layer % 2 == 0:
                self.waits.setdefault(SIDE, []).append(self.last[COMPUTE])
                yield from self.run("branch_gemm<2>", SIDE, self.job.kernel_us, "kernel", correlation,
                                    {"graph id": 7, "graph node id": 1000 + node})
                yield from self.run("branch_router<2>", COMPUTE, self.job.kernel_us * 0.7, "kernel", correlation,
                                    {"graph id": 7, "graph node id": 2000 + node})
                self.waits.setdefault(COMPUTE, []).append(self.last[SIDE])

    def passes(self):
        job = self.job
        forward = [("forward", layer) for layer in range(job.layers)]
        backward = [("backward", layer) for layer in reversed(range(job.layers))]
        if job.graph == "step":
            return (yield from self.captured(forward + backward))
        if job.graph:
            yield from self.captured(forward)
        else:
            for way, layer in forward:
                yield from self.layer(way, layer)
        if job.wait == "item":
            yield from self.launch("Memcpy DtoH (Device -> Pinned)", COMPUTE, 1.5, "cudaMemcpyAsync", "gpu_memcpy",
                                   {"bytes": 4})
            yield from self.synchronise("cudaStreamSynchronize", [COMPUTE])
        self.work(15)
        self.thread = BACKWARD
        self.work(15)
        if job.graph:
            yield from self.captured(backward)
        for way, layer in backward:
            if not job.graph:
                yield from self.layer(way, layer)
            if job.ranks > 1 and job.bucket and layer % job.bucket == 0:
                yield from self.collective("AllReduce", job.transfer_us, 1 << 20)
        self.work(15)
        self.thread = MAIN

    def run_step(self, number):
        job = self.job
        self.step, self.launched = number, 0
        count = 3 * job.layers * job.kernels if not job.graph else 4
        for which, name in (("pauses", "pause"), ("device_pauses", "device_pause")):
            rank, share, us = getattr(job, which).get(number, (-1, 0, 0))
            setattr(self, name, (max(1, int(share * count)), us) if rank == self.rank else None)
        self.work(3)
        mark = self.host
        self.work(job.load_us)
        if job.copies:
            yield from self.launch("Memcpy HtoD (Pinned -> Device)", COPY, 40, "cudaMemcpyAsync", "gpu_memcpy",
                                   {"bytes": 1 << 20, "memory bandwidth (GB/s)": 25.0})
            self.wait(COMPUTE, self.record(COPY))
        yield from self.passes()
        if job.ranks > 1:
            if job.graph == "step" or not job.bucket:
                yield from self.collective("AllReduce", job.transfer_us * 2, 1 << 22)
            self.wait(COMPUTE, self.record(COMMUNICATION))
        for k in range(4):
            yield from self.launch("void multi_tensor_apply_kernel<adam>(float)", COMPUTE, job.kernel_us * 0.7)
        if job.wait == "device":
            yield from self.synchronise("cudaDeviceSynchronize", sorted(self.last))
        self.marks[number] = (mark, self.host)

    def go(self):
        job = self.job
        for number in range(-job.before, job.steps):
            if number == 0 and job.cold:
                yield from self.synchronise("cudaDeviceSynchronize", sorted(self.last))
            yield from self.run_step(number)
        self.work(20)
        yield from self.synchronise("cudaDeviceSynchronize", sorted(self.last))


def simulate(job):
    """Returns the ranks of a job after its run, and the ends of its steps: all work of all ranks."""
    collectives = {}
    ranks = [Rank(job, rank, collectives) for rank in range(job.ranks)]
    running = {rank: rank.go() for rank in ranks}
    while running:
        for rank, generator in list(running.items()):
            try:
                next(generator)
            except StopIteration:
                del running[rank]
    ends = {}
    for rank in ranks:
        for event in rank.events:
            if isinstance(event, list) and isinstance(event[5], Collective):
                event[5] = event[5].end
            if isinstance(event, list):
                ends[event[7]] = max(ends.get(event[7], 0), event[5])
        for number, (_, end) in rank.marks.items():
            ends[number] = max(ends.get(number, 0), end)
    last = 0
    for number in sorted(ends):
        ends[number] = last = max(last, ends[number])
    return ranks, ends


def step_seconds(job):
    """Returns the true mean of the steps of a profile, from the end of one to the end of the next. A cold first step counts
    from its mark where hosts wait for their device in every step, and else not: its begin is unlike the others'."""
    ranks, ends = simulate(job)
    if job.cold and job.wait == "device":
        ends[-1] = max(rank.marks[0][0] for rank in ranks)
    first = 1 if job.cold and job.wait != "device" and job.steps > 1 else 0
    return 1e-6 * (ends[job.steps - 1] - ends[first - 1]) / (job.steps - first)


def document(rank, job, origin=4_815_162_342.0):
    """Returns the profile of a rank as Kineto writes it."""
    clock = origin + random.Random(f"clock {job.seed}/{rank.rank}").uniform(-1, 1) * job.clocks_us * (rank.rank > 0)
    begin, end = rank.marks[0][0] - 1, rank.marks[job.steps - 1][1]
    out = [{"ph": "M", "name": "process_name", "pid": 4001, "tid": 0, "ts": 0, "args": {"name": "python"}},
           {"ph": "M", "name": "process_labels", "pid": rank.rank % 8, "tid": 0, "ts": 0,
            "args": {"labels": f"GPU {rank.rank % 8}"}}]

    def add(category, name, pid, tid, start, us, arguments):
        out.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(start + clock, 3),
                    "dur": round(us, 3), "args": arguments})
    spans = {}
    for event in rank.events:
        if isinstance(event, list):
            _, category, name, stream, start, stop, arguments, step = event
            if stop < begin:
                continue
            add(category, name, rank.rank % 8, stream, start, stop - start, arguments)
            low, high = spans.get((step, stream), (start, stop))
            spans[step, stream] = (min(low, start), max(high, stop))
        elif event[4] >= begin:
            _, category, name, thread, start, us, arguments = event
            add(category, name, 4001, thread, start, us, arguments)
            if name == "cudaLaunchKernel":
                add("cpu_op", "aten::op", 4001, thread, start - 2, us + 3, {"External id": arguments["correlation"]})
                out.append({"ph": "s", "id": arguments["correlation"], "pid": 4001, "tid": thread,
                            "ts": round(start + clock, 3), "cat": "ac2g", "name": "ac2g"})
    for number in range(job.steps):
        start, stop = rank.marks[number]
        add("user_annotation", f"ProfilerStep#{number}", 4001, MAIN, start, stop - start, {"External id": number})
        if not job.marks_on_device:
            continue
        for (step, stream), (low, high) in spans.items():
            if step == number:
                add("gpu_user_annotation", f"ProfilerStep#{number}", rank.rank % 8, stream, low, high - low, {})
    add("Trace", "PyTorch Profiler (0)", "Spans", "PyTorch Profiler", begin, end - begin, {"Op count": 1})
    out.append({"ph": "i", "cat": "", "s": "t", "name": "Record Window End", "pid": "", "tid": "",
                "ts": round(end + clock, 3)})
    facts = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
             "displayTimeUnit": "ms", "baseTimeNanoseconds": 1_700_000_000_000_000_000,
             "distributedInfo": {"backend": "nccl", "rank": rank.rank, "world_size": job.ranks, "nccl_version": "2.21.5"}}
    return {**facts, "traceEvents": out}


def profiles(job):
    ranks, _ = simulate(job)
    return [document(rank, job) for rank in ranks]
