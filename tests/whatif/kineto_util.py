# SPDX-License-Identifier: Apache-2.0
"""Synthetic PyTorch profiles (Kineto)."""

SLOWEST = 300


def event(category, name, tid, start, duration, pid=1, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration,
            "args": args}


def document(events, rank=None, world_size=4):
    facts = {"schemaVersion": 1, "deviceProperties": []}
    if rank is not None:
        facts["distributedInfo"] = {"rank": rank, "world_size": world_size}
    return {**facts, "traceEvents": events}


def round_end(begin, transfer):
    return begin + 10 + SLOWEST + transfer


def step_time(rounds):
    """Returns the microseconds of a step: 10 before the first round, 20 between rounds."""
    return 10 + sum(10 + SLOWEST + transfer for _, transfer in rounds) + 20 * (len(rounds) - 1)


def profile(rank, clock, kernel_us, rounds=(("AllReduce", 100),) * 2, steps=(5,)):
    """Returns the profile of one of four ranks, whose clock is `clock` microseconds fast.

    Each round launches a kernel and a collective (name, microseconds) that waits for it. The collectives of all ranks end
    together: their duration after the end of the slowest rank's kernel (SLOWEST)."""
    events, correlation = [], 0
    for number, step in enumerate(steps):
        origin = 1000 + clock + number * step_time(rounds)
        events.append(event("user_annotation", f"ProfilerStep#{step}", 1, origin, step_time(rounds)))
        begin = origin + 10
        for name, transfer in rounds:
            end = round_end(begin, transfer)
            correlation += 4
            events += [
                event("cuda_runtime", "cudaLaunchKernel", 1, begin, 10, correlation=correlation),
                event("kernel", "void gemm<float>(int)", 7, begin + 10, kernel_us, rank, stream=7,
                      correlation=correlation),
                event("cuda_runtime", "cudaStreamWaitEvent", 1, begin + 10, 1, correlation=correlation + 1),
                event("cuda_runtime", "cudaLaunchKernel", 1, begin + 12, 5, correlation=correlation + 2),
                event("kernel", f"ncclKernel_{name}_RING(x)", 20, begin + 10 + kernel_us, end - begin - 10 - kernel_us,
                      rank, stream=20, correlation=correlation + 2),
                event("cuda_runtime", "cudaDeviceSynchronize", 1, begin + 20, end - begin - 20,
                      correlation=correlation + 3)]
            begin = end + 20
    return document(events, rank)


def running_ahead(steps=5, kernels=10, kernel_us=100, launch_us=10, gap_us=0, synchronise=False, rank=None, clock=0,
                  busy_us=0):
    """Returns the profile of a rank whose host runs ahead of its device.

    The host takes `launch_us` per launch and `gap_us` between steps. With `synchronise` it waits for the device at the end
    of each step. With a rank, one of two, the last kernel of a step is a collective. For `busy_us` the device runs a kernel
    that was launched before the profile began."""
    events, correlation, host, device = [], 0, 1000.0, 1000.0 + busy_us
    if busy_us:
        events.append(event("kernel", "before", 7, 990, busy_us + 10, 0, stream=7, correlation=999999))
    for step in range(steps):
        mark = host
        host += gap_us
        for k in range(kernels):
            correlation += 1
            name = "ncclDevKernel_AllReduce_Sum(x)" if rank is not None and k == kernels - 1 else "void gemm<float>(int)"
            events.append(event("cuda_runtime", "cudaLaunchKernel", 1, host, launch_us, correlation=correlation))
            host += launch_us
            start = max(host, device)
            device = start + kernel_us
            events.append(event("kernel", name, 7, start, kernel_us, 0, stream=7, correlation=correlation))
        if synchronise:
            correlation += 1
            end = max(host, device) + 1
            events.append(event("cuda_runtime", "cudaDeviceSynchronize", 1, host, end - host, correlation=correlation))
            host = end
        events.append(event("user_annotation", f"ProfilerStep#{step}", 1, mark, host - mark))
    for e in events:
        e["ts"] += clock
    return document(events, rank, 2 if rank is not None else 1)


def without_collective(profile_, k):
    """Removes the record of a profile's k-th collective."""
    collectives = [e for e in profile_["traceEvents"] if e["name"].startswith("ncclKernel")]
    return {**profile_, "traceEvents": [e for e in profile_["traceEvents"] if e is not collectives[k]]}
