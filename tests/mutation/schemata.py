# SPDX-License-Identifier: Apache-2.0
"""Puts all mutants of a file into its text at once, each behind its MUT(k)."""
import os

from mutants import MUTANTS

OPEN, CLOSE = "«", "»"
HEADER = '#include "base/mut.h"\n'


class BadRow(Exception):
    """Error for a row of mutants.py that does not fit the source."""


def squeeze(text):
    """Returns the text without white space, and each of its characters' places in `text`."""
    places = [i for i, c in enumerate(text) if not c.isspace()]
    return "".join(text[i] for i in places), places


def span(mutant, text):
    """Returns (begin, end) of the part of `text` that the mutant changes. White space is ignored, so a row survives a
    new line break."""
    if mutant.at.count(OPEN) != 1 or mutant.at.count(CLOSE) != 1:
        raise BadRow(f"mutant {mutant.number}: mark the changed part with one {OPEN} and one {CLOSE}")
    head, rest = mutant.at.split(OPEN)
    old, tail = (squeeze(part)[0] for part in rest.split(CLOSE))
    head = squeeze(head)[0]
    if not old:
        raise BadRow(f"mutant {mutant.number}: changes nothing")
    dense, places = squeeze(text)
    count = dense.count(head + old + tail)
    if count != 1:
        raise BadRow(f"mutant {mutant.number}: its text occurs {count} times in {mutant.file}; "
                     f"expected once: {mutant.at}")
    begin = dense.index(head + old + tail) + len(head)
    return places[begin], places[begin + len(old) - 1] + 1


def schema(mutants, old):
    """Returns C++ for `old` with its mutants."""
    if old.endswith((";", "}")):
        for m in mutants:
            old = f"if (MUT({m.number})) {{ {m.new} }} else {{ {old} }}"
        return old
    for m in mutants:
        old = f"(MUT({m.number}) ? ({m.new}) : ({old}))"
    return old


def mutated(text, mutants):
    """Returns the text of a file with all its mutants."""
    by_span = {}
    for m in mutants:
        by_span.setdefault(span(m, text), []).append(m)
    end_before, at, out = 0, 0, []
    for (begin, end), list_ in sorted(by_span.items()):
        if begin < end_before:
            raise BadRow(f"mutant {list_[0].number}: overlaps another one in part")
        out += [text[at:begin], schema(list_, text[begin:end])]
        at = end_before = end
    text = "".join(out) + text[at:]
    first_line = text.index("\n") + 1
    return text[:first_line] + HEADER + text[first_line:]


def mutated_files(root, mutants=MUTANTS):
    """Returns path -> text of every file that has mutants."""
    files = {}
    for path in sorted({m.file for m in mutants}):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            files[path] = mutated(f.read(), [m for m in mutants if m.file == path])
    return files
