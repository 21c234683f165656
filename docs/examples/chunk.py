#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`chunk.py N`: splits the tokens of a micro-batch into N pieces for the experts of every layer, forward and backward.
While the experts compute one piece, the next one is on its way. The idea is Tutel's (arXiv 2206.03382);
docs/new-pass.md develops this pass step by step."""
import math
import sys

from program_text import Program, dims, with_dims

# The dim of the tokens in every input and output: `hocket graph --list-ops` calls it t, and for rows it is the second
# letter. None: the operand has no token dim.
TOKENS = {
    "route_plan": ([0], [None, 0]),
    "dispatch": ([0, 0], [1]),
    "size_exchange": ([None], [None, None]),
    "all_to_all": ([1, None], [1]),
    "grouped_linear": ([1, None, None], [1]),
    "swiglu": ([1, None], [1]),
    "combine": ([1, 0, 0], [0]),
    "combine_bwd": ([0, 1, 0, 0], [1, 0]),
    "combine_dys": ([0, 0, 0], [1]),
    "combine_dw": ([0, 1, 0], [0]),
    "grouped_linear_dx": ([1, None, None], [1]),
    "grouped_linear_dw": ([1, 1, None], [None]),
    "swiglu_bwd": ([1, 1, None], [1]),
    "dispatch_bwd": ([1, 0], [0]),
}
# Ops that decide the destination of rows. They are repeated for every piece, since row numbers are those of the piece.
ROUTING = ("route_plan", "size_exchange")


def routed(type_text):
    """Returns whether a type is of routed rows. Example: f32[8,512,64]@2 has experts, tokens, features, and up to 2
    experts' rows per token."""
    return "@" in type_text


class Chunker:
    """Rewrites the tasks of one class of ranks."""

    def __init__(self, program, cls, pieces):
        self.program, self.cls, self.pieces = program, cls, pieces
        self.own = {}    # buffer -> the buffers that replace it, one per piece
        self.views = {}  # buffer -> its tokens, a view per piece
        self.waiting = []  # tasks to be split into pieces

    def run(self):
        """Defers tasks on rows until another task reads or changes their buffers, and then writes them in pieces."""
        tasks = []
        for task in self.cls.tasks:
            types = self.program.types(task.kind, "in") + self.program.types(task.kind, "out")
            if task.op in ROUTING or any(map(routed, types)):
                self.waiting.append(task)
                # The whole counts are still needed: the balance loss is over all tokens.
                tasks += [task] if task.op == "route_plan" else []
                continue
            touched = set(task.buffers("in") + task.buffers("out"))
            if any(touched & set(other.buffers("in") + other.buffers("out")) for other in self.waiting):
                tasks += self.in_pieces()
            tasks.append(task)
        self.cls.tasks = tasks + self.in_pieces()
        there = set(map(id, self.cls.tasks))
        for task in self.cls.tasks:
            # Other dependencies follow from the buffers that tasks read and write.
            task.deps = [other for other in task.deps if id(other) in there]

    def in_pieces(self):
        """Returns the pieces of the deferred tasks, in rounds. A round ends with an exchange, and all pieces pass
        through it in turn."""
        round_of, rounds = {}, []
        for task in self.waiting:
            number = max([0] + [round_of.get(buffer, 0) for buffer in task.buffers("in")])
            ends = task.op == "all_to_all"
            round_of.update({buffer: number + ends for buffer in task.buffers("out")})
            rounds.append(number)
        made = [self.piece_of(task, piece) for number in sorted(set(rounds)) for piece in range(self.pieces)
                for task, its in zip(self.waiting, rounds) if its == number]
        self.waiting = []
        return made

    def piece_of(self, task, piece):
        """Returns the task on one piece of its tokens."""
        if task.op not in TOKENS:
            sys.exit(f"chunk.py: {task.op} takes rows, and TOKENS does not say where their tokens lie")
        along_in, along_out = TOKENS[task.op]
        types_in, types_out = (self.program.types(task.kind, name) for name in ("in", "out"))
        inputs = [self.read(*operand, piece) for operand in zip(task.buffers("in"), types_in, along_in)]
        outputs = [self.write(task, *operand, piece)
                   for operand in zip(task.buffers("out"), types_out, along_out)]
        attrs = self.program.kinds[task.kind].split('attrs="')[1].split('"')[0]
        parts = [self.type_of(*operand) for operand in zip(types_in, along_in)]
        made = task.copy(self.program.add_kind(task.op, parts, attrs))
        made.fields.update({"in": ",".join(map(str, inputs)), "out": ",".join(map(str, outputs))})
        if along_out == [None] and task.op not in ROUTING and piece > 0:
            made.fields["acc"] = "1"  # a sum over tokens: later pieces add to it
        return made

    def type_of(self, type_text, dim):
        size = dims(type_text)
        if dim is None:
            return type_text
        if size[dim] % self.pieces:
            sys.exit(f"chunk.py: {size[dim]} tokens are in no {self.pieces} equal pieces")
        size[dim] //= self.pieces
        return with_dims(type_text, size)

    def read(self, buffer, type_text, dim, piece):
        if buffer in self.own:
            return self.own[buffer][piece]
        return buffer if dim is None else self.view(buffer, type_text, dim, piece)

    def write(self, task, buffer, type_text, dim, piece):
        """Returns the buffer of an output for a piece. Rows and routing have a buffer per piece. A dense output is
        written in parts, so that its readers need not change; a sum over tokens has one buffer."""
        if not routed(type_text) and task.op not in ROUTING:
            return buffer if dim is None else self.view(buffer, type_text, dim, piece)
        if buffer not in self.own:
            new = f"step {self.type_of(type_text, dim)}" + self.expected(buffer, type_text)
            self.own[buffer] = [self.cls.add_buffer(new) for _ in range(self.pieces)]
        return self.own[buffer][piece]

    def view(self, buffer, type_text, dim, piece):
        if buffer not in self.views:
            part = self.type_of(type_text, dim)
            self.views[buffer] = [
                self.cls.add_buffer(f"view {part} base={buffer} dim={dim} begin={i * dims(part)[dim]}")
                for i in range(self.pieces)]
        return self.views[buffer][piece]

    def expected(self, buffer, type_text):
        """Returns a piece's share of the expected rows, rounded up to whole rows."""
        for field in self.cls.buffers[buffer].split():
            if field.startswith("expected="):
                row = math.prod(dims(type_text)[2:]) * (8 if type_text.startswith("f64") else 4)
                rows = int(field.partition("=")[2]) // row
                return f" expected={-(-rows // self.pieces) * row}"
        return ""


program = Program(sys.stdin.read())
for cls in program.classes:
    Chunker(program, cls, int(sys.argv[1])).run()
sys.stdout.write(program.text())
