#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mistakes that GraphGuard (arXiv 2508.09505) found in hand-distributed models, as passes: `bugs.py BUG`
makes one, `bugs.py BUG right` does the same work without it. docs/check.md says how to run them.

scale       a micro-batch weighs its loss by the mean over its own tokens, not over those of the step
accumulate  gradients are all-reduced after every micro-batch, together with the earlier ones that already were
axes        gradients are all-reduced over one data-parallel axis: with plan.cp (or ep) there are two
mlp         the partial outputs of a dense MLP are not all-reduced over tp
experts     the partial outputs of the experts are not all-reduced over etp
norms       gradients of norms are not all-reduced over tp, whose ranks have other tokens
            (plan.sequence_parallel)"""
import math
import re
import sys

from program_text import Program, dims, with_dims


def axes_of(program):
    """Returns the axes of the ranks' mesh in order, as (name, size)."""
    mesh = re.search(r'^role 0 .*mesh="([^"]*)"', "\n".join(program.before), re.M).group(1)
    return [(name, int(size)) for name, size in (axis.split(":") for axis in mesh.split())]


def numbers_of(program, task):
    """Returns the numbers of the axes over which a collective goes."""
    group = program.groups[int(task.fields["group"])] if "group" in task.fields else ""
    over = re.search(r"axes=([\d,]+)", group)
    return [int(number) for number in over.group(1).split(",")] if over else []


def micro_batches(program):
    return int(re.search(r"^micro_batches (\d+)$", "\n".join(program.before), re.M).group(1))


def task_like(program, task, op, lane, inputs, outputs, types, attrs="", **fields):
    """Returns a task in the place of another one: with its micro-batch, layer and phase."""
    made = task.copy(program.add_kind(op, types, attrs))
    made.words[:2] = [op, lane]
    made.fields = {key: task.fields[key] for key in ("mb", "layer") if key in task.fields}
    made.fields["in"] = ",".join(map(str, inputs))
    made.fields["out"] = ",".join(map(str, outputs))
    made.fields.update(fields)
    made.deps = []
    return made


def scale(program, cls, right):
    named = [i for i, b in enumerate(cls.buffers) if 'name="loss_scale"' in b]
    done, tasks = {}, []
    for task in cls.tasks:
        if not set(named) & set(task.buffers("in")):
            tasks.append(task)
            continue
        (given,) = set(named) & set(task.buffers("in"))
        key = task.fields.get("mb")
        if key not in done:
            # The right scale is 1 / tokens of the step. That of the micro-batch alone is this times the number of
            # micro-batches.
            new = done[key] = cls.add_buffer("step f64[1]")
            tasks.append(task_like(program, task, "copy", "compute", [given], [new], ["f64[1]"]))
            for _ in range(0 if right else micro_batches(program) - 1):
                old, new = new, cls.add_buffer("step f64[1]")
                tasks.append(task_like(program, task, "add", "compute", [old, given], [new], ["f64[1]"] * 2))
                done[key] = new
        task.fields["in"] = ",".join(str(done[key] if b == given else b) for b in task.buffers("in"))
        tasks.append(task)
    cls.tasks = tasks


def accumulate(program, cls, right):
    sums = {task.buffers("in")[0]: task for task in cls.tasks
            if task.op == "all_reduce" and task.words[2] == "grad"}
    tasks, late = [], []
    for task in cls.tasks:
        gradient = (task.buffers("out") + [None])[0]
        if task.op == "linear_dw" and task.fields.get("acc") == "1" and gradient in sums:
            sum_of, types = sums[gradient], program.types(task.kind, "out")
            over = {"group": sum_of.fields["group"]}
            tasks.append(task_like(program, task, "all_reduce", "intra", [gradient], [gradient], types,
                                   **over))
            if right:
                # Each contribution is all-reduced alone, then accumulated.
                fresh = cls.add_buffer(f"step {types[0]}")
                del task.fields["acc"]
                task.fields["out"] = str(fresh)
                tasks.append(task)
                tasks.append(task_like(program, task, "all_reduce", "intra", [fresh], [fresh], types, **over))
                tasks.append(task_like(program, task, "add", "compute", [gradient, fresh], [gradient],
                                       types * 2))
                late.append(sum_of)
                continue
        tasks.append(task)
    cls.tasks = [task for task in tasks if task not in late]


def sum_by_axis(program, cls, right, wanted):
    """Splits all-reduces over several axes into one per axis, or keeps the first axis alone."""
    tasks = []
    for task in cls.tasks:
        numbers = numbers_of(program, task)
        names = [axes_of(program)[number][0] for number in numbers]
        if task.op != "all_reduce" or task.words[2] != "grad" or len(names) < 2 or not wanted(task, names):
            tasks.append(task)
            continue
        for number in numbers if right else numbers[:1]:
            part = task.copy(task.kind, group=str(program.add_group(f"axes={number}")))
            if number != numbers[0]:
                part.fields["in"] = part.fields["out"]
            tasks.append(part)
        for other in cls.tasks:
            other.deps = [d for d in other.deps if d is not task]
    cls.tasks = tasks


def sum_of_rows(program, cls, right, maker):
    """Replaces forward all-reduces of the outputs of `maker` by a copy, or by a reduce_scatter and an all_gather."""
    made_by, tasks = {}, []
    for task in cls.tasks:
        source = made_by.get((task.buffers("in") + [None])[0])
        made_by.update({buffer: task for buffer in task.buffers("out")})
        if task.op != "all_reduce" or task.words[2] != "forward" or not source or not maker(source, made_by):
            tasks.append(task)
            continue
        (whole,), (summed,), over = task.buffers("in"), task.buffers("out"), {"group": task.fields["group"]}
        types = program.types(task.kind, "in")
        size = dims(types[0])
        if right:
            ranks = math.prod(axes_of(program)[number][1] for number in numbers_of(program, task))
            block_type = with_dims(types[0], [size[0] // ranks] + size[1:])
            block = cls.add_buffer(f"step {block_type}")
            tasks.append(task_like(program, task, "reduce_scatter", "intra", [whole], [block], types,
                                   "{dim=0}", **over))
            tasks.append(task_like(program, task, "all_gather", "intra", [block], [summed], [block_type],
                                   "{dim=0}", **over))
        else:
            tasks.append(task_like(program, task, "copy", "compute", [whole], [summed], types))
        for other in cls.tasks:
            other.deps = [d for d in other.deps if d is not task]
    cls.tasks = tasks


def of_mlp(task, made_by):
    return task.op == "linear" and made_by[task.buffers("in")[0]].op == "swiglu"


def of_experts(task, made_by):
    return task.op == "combine"


def main():
    bug, right = sys.argv[1], sys.argv[2:] == ["right"]
    program = Program(sys.stdin.read())
    for cls in program.classes:
        if bug == "scale":
            scale(program, cls, right)
        elif bug == "accumulate":
            accumulate(program, cls, right)
        elif bug == "axes":
            sum_by_axis(program, cls, right, lambda task, names: "tp" not in names)
        elif bug == "norms":
            sum_by_axis(program, cls, right, lambda task, names: "tp" in names)
        elif bug in ("mlp", "experts"):
            sum_of_rows(program, cls, right, of_mlp if bug == "mlp" else of_experts)
        else:
            sys.exit(f"bugs.py: no bug {bug!r}:\n{__doc__}")
    sys.stdout.write(program.text())


main()
