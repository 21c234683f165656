#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/data/tokenizer/nfc_tables.inc to standard output: the data of the Unicode Character Database that NFC
normalisation needs, from Python's unicodedata (its version is in the head of the file).

    python3 tools/nfc_tables.py > src/data/tokenizer/nfc_tables.inc
"""
import sys
import unicodedata

WIDTH = 100
HANGUL = range(0xAC00, 0xAC00 + 11172)  # composed by arithmetic


def decomposition(c):
    """Returns the canonical parts of a code point, one or two; none if it has none or only a compatible one."""
    text = unicodedata.decomposition(chr(c))
    return [] if not text or text.startswith("<") else [int(part, 16) for part in text.split()]


def combining_runs():
    """Returns [first, last, class] of neighbours with the same combining class."""
    runs = []
    for c in range(0x110000):
        combining = unicodedata.combining(chr(c))
        if combining == 0:
            continue
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == combining:
            runs[-1][1] = c
        else:
            runs.append([c, c, combining])
    return [f"{{0x{first:X}, 0x{last:X}, {combining}}}" for first, last, combining in runs]


def singleton_runs():
    """Returns [first, first target, count] of neighbours that decompose to neighbours, one to one."""
    runs = []
    for c in range(0x110000):
        parts = decomposition(c)
        if len(parts) != 1:
            continue
        if runs and runs[-1][0] + runs[-1][2] == c and runs[-1][1] + runs[-1][2] == parts[0]:
            runs[-1][2] += 1
        else:
            runs.append([c, parts[0], 1])
    return [f"{{0x{first:X}, 0x{target:X}, {count}}}" for first, target, count in runs]


def pairs(composes):
    """Returns the code points that decompose into two parts that do, or do not, compose again."""
    rows = []
    for c in range(0x110000):
        parts = decomposition(c)
        if len(parts) != 2 or c in HANGUL:
            continue
        if (unicodedata.normalize("NFC", chr(c)) == chr(c)) == composes:
            rows.append(f"{{0x{c:X}, 0x{parts[0]:X}, 0x{parts[1]:X}}}")
    return rows


def table(comment, declaration, rows):
    lines, line = [], " "
    for row in rows:
        if len(line) + len(row) + 2 > WIDTH:
            lines.append(line)
            line = " "
        line += f" {row},"
    return "\n".join([f"// {comment}", f"constexpr {declaration}[] = {{", *lines, line, "};", ""])


def text():
    head = (f"// SPDX-License-Identifier: Apache-2.0\n"
            f"// Facts of the Unicode Character Database, version {unicodedata.unidata_version}, that normalisation to "
            f"NFC needs;\n// written by tools/nfc_tables.py. Included by nfc.cc only.\n")
    return "\n".join([
        head,
        table("{first, last, canonical combining class}", "CombiningRun kCombining", combining_runs()),
        table("{first code point, first of its decomposition, length of the run}", "SingletonRun kSingletons",
              singleton_runs()),
        table("{code point, its two parts}; these parts compose.", "Pair kComposites", pairs(True)),
        table("Likewise, but excluded from composition.", "Pair kExcluded", pairs(False))])


if __name__ == "__main__":
    sys.stdout.write(text())
