#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Splits every rms_norm over tokens: a second task normalises the second half of the tokens, on views."""
import sys

from program_text import Program, dims, with_dims


def half(cls, buffer, type_text, part):
    """Returns a view of one half of a buffer's tokens."""
    size = dims(type_text)
    size[0] //= 2
    return cls.add_buffer(f"view {with_dims(type_text, size)} base={buffer} dim=0 begin={part * size[0]}")


program = Program(sys.stdin.read())
for cls in program.classes:
    tasks = []
    for task in cls.tasks:
        if task.op != "rms_norm" or dims(program.types(task.kind, "in")[0])[0] % 2:
            tasks.append(task)
            continue
        x, weight = program.types(task.kind, "in")
        size = dims(x)
        kind = program.add_kind("rms_norm", [with_dims(x, [size[0] // 2] + size[1:]), weight],
                                program.kinds[task.kind].split('attrs="')[1].split('"')[0])
        outs = list(zip(task.buffers("out"), program.types(task.kind, "out")))
        for part in (0, 1):
            inputs = [half(cls, task.buffers("in")[0], x, part), task.buffers("in")[1]]
            outputs = [half(cls, buffer, type_text, part) for buffer, type_text in outs]
            tasks.append(task.copy(kind, **{"in": ",".join(map(str, inputs)), "out": ",".join(map(str, outputs))}))
        # Tasks that depended on this task depend on its second half, which comes last in the lane.
        for other in cls.tasks:
            other.deps = [tasks[-1] if d is task else d for d in other.deps]
    cls.tasks = tasks
sys.stdout.write(program.text())
