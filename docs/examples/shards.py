#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shards optimizer states: parameters with the same update lie one behind the other in a bucket.

Every data-parallel rank has a block of the bucket's states, updates its block of the parameters, and gathers the
others' blocks."""
import math
import re
import sys

from program_text import Program, dims, with_dims

program = Program(sys.stdin.read())
# Every mesh has the data-parallel axis second (docs/config.md).
AXIS = 1
# Largest number of elements of a bucket, unless one tensor has more: buckets take turns in memory.
MOST = 1 << 24
mesh = re.search(r'^role 0 .*mesh="([^"]*)"', "\n".join(program.before), re.M).group(1).split()
name, _, ranks = mesh[AXIS].partition(":")
ranks = int(ranks)


def layout(buffer):
    found = re.search(r'layout="([^"]*)"', buffer)
    return found.group(1) if found else "B"


def attributes(task):
    return re.search(r'attrs="([^"]*)"', program.kinds[task.kind]).group(1)


def size(task):
    return math.prod(dims(program.types(task.kind, "in")[0]))


def shard(cls, number, tasks):
    """Returns the tasks that replace these updates."""
    types = [program.types(task.kind, "in")[0] for task in tasks]
    begins = [0]
    for type_text in types:
        begins.append(begins[-1] + math.prod(dims(type_text)))
    block = -(-begins[-1] // ranks)
    bucket_type, block_type = (with_dims(types[0], [n]) for n in (block * ranks, block))
    made = []

    def add(op, inputs, outputs, in_types, attrs="", **fields):
        task = tasks[0].copy(program.add_kind(op, in_types, attrs), out=",".join(map(str, outputs)), **fields)
        task.words[0] = op
        task.fields["in"] = ",".join(map(str, inputs))
        if not inputs:
            del task.fields["in"]
        made.append(task)

    def bucket():
        """Adds a bucket; returns it and the views of its tensors."""
        base = cls.add_buffer(f"step {bucket_type}")
        views = [cls.add_buffer(f"view {t} base={base} begin={at}") for t, at in zip(types, begins)]
        return base, views

    def fill(views, base, input_number):
        for task, view, type_text in zip(tasks, views, types):
            add("copy", [task.buffers("in")[input_number]], [view], [type_text])
        if begins[-1] < block * ranks:
            rest = with_dims(types[0], [block * ranks - begins[-1]])
            view = cls.add_buffer(f"view {rest} base={base} begin={begins[-1]}")
            add("zero", [], [view], [], f"{{type='{rest}'}}")

    def states(input_number, prefix):
        """Makes the first parameter's state hold the shard of all; the other states are removed."""
        buffers = [task.buffers("in")[input_number] for task in tasks]
        names = [re.search(r'name="([^"]*)"', cls.buffers[b]).group(1) for b in buffers]
        slots = ";".join(f"{at}:{tensor}:{layout(cls.buffers[b])}" for at, tensor, b in zip(begins, names, buffers))
        cls.buffers[buffers[0]] = (f'persistent {block_type} layout="{name}:S0" name="{prefix}.{number}" '
                                   f'slots="{slots}"')
        for b in buffers[1:]:
            cls.buffers[b] = "step f32[1]"
        return buffers[0]

    mine = program.add_table(AXIS, [rank * block for rank in range(ranks)])
    params, parts_of_params = bucket()
    grads, parts_of_grads = bucket()
    updated, new_params = bucket()
    fill(parts_of_params, params, 0)
    fill(parts_of_grads, grads, 1)
    own, grad = (cls.add_buffer(f"view {block_type} base={base} by={mine}") for base in (params, grads))
    mean, square = states(2, "means"), states(3, "squares")
    coef, hyper = tasks[0].buffers("in")[4:]
    add("adamw", [own, grad, mean, square, coef, hyper], [own, mean, square],
        [block_type] * 4 + program.types(tasks[0].kind, "in")[4:], attributes(tasks[0]))
    sent = cls.add_buffer(f"step {block_type}")
    add("copy", [own], [sent], [block_type])
    add("all_gather", [sent], [updated], [block_type], "{dim=0}", group=str(program.add_group(f"axes={AXIS}")))
    for task, view, type_text in zip(tasks, new_params, types):
        add("copy", [view], [task.buffers("in")[0]], [type_text])
    return made


def buckets(tasks):
    """Returns lists of identical updates, each for one bucket."""
    alike = {}
    for task in tasks:
        first = program.types(task.kind, "in")[0]
        lists = alike.setdefault((attributes(task), first.split("[")[0]), [[]])
        if lists[-1] and sum(size(other) for other in lists[-1]) + size(task) > MOST:
            lists.append([])
        lists[-1].append(task)
    return sum(alike.values(), [])


for cls in program.classes if ranks > 1 else []:
    # Only parameters that these ranks replicate are sharded.
    updates = [task for task in cls.tasks
               if task.op == "adamw" and f"{name}:" not in layout(cls.buffers[task.buffers("in")[0]])]
    for number, tasks in enumerate(buckets(updates)):
        cls.tasks = [task for task in cls.tasks if task not in tasks] + shard(cls, number, tasks)
sys.stdout.write(program.text())
