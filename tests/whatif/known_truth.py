# SPDX-License-Identifier: Apache-2.0
"""Profiles with known truth: 50 of six kinds, and 20 healthy ones, of a seed."""
import random
from dataclasses import dataclass

from profile_sim import Job, step_seconds

LEAST_GAIN = 1.2  # of curing an injected fault


@dataclass
class Case:
    kind: str
    job: Job
    cause: str = ""  # "": none
    where: str = ""
    seconds: float = 0.0  # of a step
    mended: float = 0.0  # of a step without the fault


def shape(choose, **fixed):
    """Returns a job of random size."""
    more = dict(
        seed=choose.randrange(1 << 30), ranks=choose.choice([1, 1, 2, 4, 8]), steps=choose.randint(4, 10),
        layers=choose.randint(4, 10), kernels=choose.randint(2, 4), kernel_us=choose.uniform(60, 400),
        host_us=choose.uniform(4, 9), load_us=choose.uniform(20, 400), bucket=choose.choice([2, 3, 4]),
        transfer_us=choose.uniform(50, 400), copies=choose.random() < 0.7, noise=choose.uniform(0.002, 0.02),
        host_noise=choose.uniform(0.05, 0.3), cold=choose.random() < 0.4, marks_on_device=choose.random() < 0.7)
    return Job(**{**more, **fixed})


def waits(choose):
    return choose.choice(["item", "device"])


def paused(choose, job):
    """Adds pauses of a rank's host or device, in some steps, in every other one, or in one."""
    rank = choose.randrange(job.ranks)
    which = choose.choice(["some", "other", "one"])
    steps = list(range(1, job.steps))
    if which == "other":
        steps = steps[::2]
    else:
        steps = sorted(choose.sample(steps, 1 if which == "one" else max(1, len(steps) // 3)))
    on_device = choose.random() < 0.3
    share = choose.uniform(0.1, 0.9)
    whole = step_seconds(job) * 1e6
    for grow in (0.5, 1, 2, 4, 8, 16, 32, 64):
        pauses = {step: (rank, share, grow * whole) for step in steps}
        job.pauses, job.device_pauses = ({}, pauses) if on_device else (pauses, {})
        if step_seconds(job) >= LEAST_GAIN * step_seconds(job.mended()):
            return


def slowed(choose, job):
    """Makes a rank's device or host slow. Returns its number."""
    rank = choose.randrange(job.ranks)
    on_host = choose.random() < 0.3
    for factor in (1.35, 1.7, 2.2, 3, 5, 8, 16, 32, 64):
        job.slow = {rank: (1, factor * 4) if on_host else (factor, 1)}
        if step_seconds(job) >= LEAST_GAIN * step_seconds(job.mended()):
            return rank
    raise AssertionError("no factor is slow enough")


def of_kind(kind, choose):
    if kind == "host ahead":
        return Case(kind, shape(choose))
    if kind == "host behind":
        job = shape(choose, kernel_us=choose.uniform(5, 25), host_us=choose.uniform(40, 90),
                    wait=choose.choice(["", "item", "device"]))
        return Case(kind, job)
    if kind == "several streams":
        return Case(kind, shape(choose, side=True, copies=True, wait=choose.choice(["", "", "item"])))
    if kind == "CUDA graphs":
        return Case(kind, shape(choose, graph=choose.choice(["passes", "step"]), side=choose.random() < 0.4,
                                wait=choose.choice(["", "", "device"])))
    if kind == "pauses":
        job = shape(choose, steps=choose.randint(6, 12), wait=choose.choice(["", waits(choose)]),
                    side=choose.random() < 0.3, graph=choose.choice(["", "", "passes"]))
        paused(choose, job)
        return Case(kind, job, "pauses")
    if kind == "slow rank":
        job = shape(choose, ranks=choose.choice([2, 4, 8]), wait=choose.choice(["", waits(choose)]),
                    side=choose.random() < 0.3, graph=choose.choice(["", "", "passes"]))
        rank = slowed(choose, job)
        return Case(kind, job, "slow worker", f"rank {rank}")
    job = shape(choose, side=choose.random() < 0.4, graph=choose.choice(["", "", "passes", "step"]),
                wait=choose.choice(["", "item", "device"]), steps=choose.choice([1, 2, 3, 5, 10]))
    if job.ranks > 1:  # ranks are never quite alike
        job.slow = {rank: (choose.uniform(1, 1.03), choose.uniform(1, 1.2)) for rank in range(job.ranks)}
    return Case(kind, job)


KINDS = {"host ahead": 9, "host behind": 8, "several streams": 8, "CUDA graphs": 8, "pauses": 9, "slow rank": 8,
         "healthy": 20}


def cases(seed, most=1000):
    """Yields the cases of a seed, of each kind the first ones, with their truth."""
    for kind, count in KINDS.items():
        for number in range(min(count, most)):
            case = of_kind(kind, random.Random(f"{seed}/{kind}/{number}"))
            if case.job.steps == 1:
                case.job.cold = False
            case.seconds = step_seconds(case.job)
            case.mended = step_seconds(case.job.mended()) if case.cause else case.seconds
            yield case
