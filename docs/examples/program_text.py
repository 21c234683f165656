# SPDX-License-Identifier: Apache-2.0
"""The text of a program (docs/program.md) as lists: kinds, and per class buffers and tasks. Line numbers follow from
the place in a list; a task refers to others as objects."""
import re


class Task:
    def __init__(self, rest):
        self.words = rest.split(" ")[:4]  # op, lane, phase, kind
        self.fields = dict(re.findall(r'(\w+)=("[^"]*"|\S+)', rest))
        self.deps = []

    def copy(self, kind, **fields):
        task = Task(" ".join(self.words[:3] + [f"k{kind}"]))
        task.fields = dict(self.fields, **fields)
        task.deps = list(self.deps)
        return task

    @property
    def op(self):
        return self.words[0]

    @property
    def kind(self):
        return int(self.words[3][1:])

    def buffers(self, name):
        return [int(b) for b in self.fields.get(name, "").split(",") if b]


class Class:
    def __init__(self, line):
        self.line, self.buffers, self.tasks = line, [], []

    def add_buffer(self, text):
        self.buffers.append(text)
        return len(self.buffers) - 1


class Program:
    def __init__(self, text):
        self.before, self.kinds, self.groups, self.classes = [], [], [], []
        for line in text.splitlines():
            word, _, rest = line.partition(" ")
            if word == "kind":
                self.kinds.append(rest.partition(" ")[2])
            elif word == "group":
                self.groups.append(rest.partition(" ")[2])
            elif word == "class":
                self.classes.append(Class(line))
            elif word == "buffer":
                self.classes[-1].buffers.append(rest.partition(" ")[2])
            elif word == "task":
                self.classes[-1].tasks.append(Task(rest.partition(" ")[2]))
            elif word != "end":
                self.before.append(line)
        for cls in self.classes:
            for task in cls.tasks:
                task.deps = [cls.tasks[int(d)] for d in task.fields.pop("deps", "").split(",") if d]

    def types(self, kind, name):
        """Returns the types of a kind's inputs (`in`) or outputs (`out`)."""
        return re.search(rf' {name}="([^"]*)"', self.kinds[kind]).group(1).split()

    def add_kind(self, op, inputs, attrs=""):
        """Adds a kind without output types and costs, which can be inferred; returns its number."""
        text = f'{op} attrs="{attrs}" in="{" ".join(inputs)}"'
        if text not in self.kinds:
            self.kinds.append(text)
        return self.kinds.index(text)

    def add_group(self, text):
        if text not in self.groups:
            self.groups.append(text)
        return self.groups.index(text)

    def add_table(self, axis, values):
        """Adds a table of role 0, a number per coordinate of an axis; returns its number."""
        number = sum(line.startswith("table ") for line in self.before)
        self.before.append(f"table {number} axes={axis} values={','.join(map(str, values))}")
        return number

    def text(self):
        lines = list(self.before)
        lines += [f"kind k{i} {kind}" for i, kind in enumerate(self.kinds)]
        lines += [f"group {i} {group}" for i, group in enumerate(self.groups)]
        for cls in self.classes:
            lines.append(cls.line)
            lines += [f"buffer {i} {buffer}" for i, buffer in enumerate(cls.buffers)]
            place = {id(task): i for i, task in enumerate(cls.tasks)}
            for i, task in enumerate(cls.tasks):
                fields = dict(task.fields)
                if task.deps:
                    fields["deps"] = ",".join(str(d) for d in sorted(place[id(t)] for t in task.deps))
                named = " ".join(f"{key}={value}" for key, value in fields.items())
                lines.append(f"task {i} {' '.join(task.words)} {named}")
        return "\n".join(lines + ["end", ""])


class Symbol(str):
    """A dim that changes from step to step, `s0:64`: it cannot be split into equal parts."""

    def __mod__(self, parts):
        return 1


def dims(type_text):
    """Returns the dims of a type: numbers, or symbols as they stand."""
    listed = re.search(r"\[([^\]]*)\]", type_text).group(1)
    return [int(d) if d.isdigit() else Symbol(d) for d in listed.split(",")]


def with_dims(type_text, new):
    return re.sub(r"\[[^\]]*\]", "[" + ",".join(str(d) for d in new) + "]", type_text, count=1)
