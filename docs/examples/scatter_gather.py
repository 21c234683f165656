#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replaces every all-reduce of one gradient by a reduce_scatter and an all_gather."""
import re
import sys

from program_text import Program, dims, with_dims

program = Program(sys.stdin.read())
# Sizes of the axes of each role's mesh.
meshes = [[int(axis.split(":")[1]) for axis in re.search(r'mesh="([^"]*)"', line).group(1).split()]
          for line in program.before if line.startswith("role ")]


def ranks_of(group):
    """Returns the number of ranks in a group; 0 if only some coordinates of an axis take part."""
    if "members=" in group:
        return 0
    role = re.search(r"\brole=(\d+)", group)
    mesh = meshes[int(role.group(1)) if role else 0]
    ranks = 1
    for axis in re.search(r"axes=([\d,]+)", group).group(1).split(","):
        ranks *= mesh[int(axis)]
    return ranks


for cls in program.classes:
    tasks = []
    for task in cls.tasks:
        inputs = program.types(task.kind, "in") if task.op == "all_reduce" else []
        ranks = ranks_of(program.groups[int(task.fields["group"])]) if inputs else 0
        if len(inputs) != 1 or task.words[2] != "grad" or ranks < 2 or dims(inputs[0])[0] % ranks:
            tasks.append(task)
            continue
        size = dims(inputs[0])
        block_type = with_dims(inputs[0], [size[0] // ranks] + size[1:])
        block = cls.add_buffer(f"step {block_type}")
        scatter = task.copy(program.add_kind("reduce_scatter", inputs, "{dim=0}"), out=str(block))
        scatter.words[0] = "reduce_scatter"
        gather = task.copy(program.add_kind("all_gather", [block_type], "{dim=0}"), **{"in": str(block)})
        gather.words[0] = "all_gather"
        tasks += [scatter, gather]
        for other in cls.tasks:
            other.deps = [gather if d is task else d for d in other.deps]
    cls.tasks = tasks
sys.stdout.write(program.text())
