#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/data/chat/python_text_tables.inc: case mappings and unprintable characters beyond ASCII, as this
Python's str knows them. tools/python_text_tables.py > src/data/chat/python_text_tables.inc"""
import sys
import unicodedata

BEYOND_ASCII = [chr(c) for c in range(0x80, sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]


def runs(mapping):
    """[first, last, stride, difference] of the characters that `mapping` turns into one other."""
    out = []
    for c in BEYOND_ASCII:
        new = mapping(c)
        if new == c or len(new) > 1:
            continue
        code, delta = ord(c), ord(new) - ord(c)
        last = out[-1] if out else None
        if last and last[3] == delta and (code - last[1] == last[2] or last[0] == last[1] and code - last[1] == 2):
            last[2], last[1] = code - last[1], code
        else:
            out.append([code, code, 1, delta])
    return out


def several(mapping, besides=None):
    """[character, up to three others] where `mapping` gives several, or others than `besides`."""
    return [[ord(c), *map(ord, mapping(c).ljust(3, "\0"))] for c in BEYOND_ASCII
            if (len(mapping(c)) > 1 if besides is None else mapping(c) != besides(c))]


def unprintable():
    out = []
    for c in BEYOND_ASCII:
        if c.isprintable():
            continue
        if out and (out[-1][1] == ord(c) - 1 or (out[-1][1], ord(c)) == (0xD7FF, 0xE000)):
            out[-1][1] = ord(c)
        else:
            out.append([ord(c), ord(c)])
    return out


def table(comment, declaration, rows):
    lines, line = [], " "
    for row in rows:
        text = " {" + ", ".join(str(v) if v < 0 or v < 10 else f"0x{v:X}" for v in row) + "},"
        if len(line + text) > 100:
            lines.append(line)
            line = " "
        line += text
    return f"// {comment}\nconstexpr {declaration}[] = {{\n" + "\n".join([*lines, line]) + "\n};\n"


def text():
    return "\n".join([
        "// SPDX-License-Identifier: Apache-2.0\n"
        "// Case and printability of characters beyond ASCII as Python's str has them, Unicode version\n"
        f"// {unicodedata.unidata_version}; written by tools/python_text_tables.py. Included by python_text.cc only.\n",
        table("{first, last, stride, difference}", "CaseRun kUpperRuns", runs(str.upper)),
        table("{first, last, stride, difference}", "CaseRun kLowerRuns", runs(str.lower)),
        table("{character, its upper case}", "CaseText kUpperTexts", several(str.upper)),
        table("{character, its lower case}", "CaseText kLowerTexts", several(str.lower)),
        table("{character, its title case}, where that is not its upper case", "CaseText kTitleTexts",
              several(str.title, str.upper)),
        table("{first, last}", "CodeRange kUnprintable", unprintable())])


if __name__ == "__main__":
    sys.stdout.write(text())
