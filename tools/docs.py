#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the pages that follow from the program: docs/cli.md (every --help), docs/config.md (every key of a
run.yaml) and docs/serving-fields.md (every field of a request to a server). docs.py [HOCKET] writes them; docs.py --check [HOCKET] only names the outdated ones, as
tests/cli/docs_test.py does."""
import os
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))


def output(hocket, *words):
    return subprocess.run([hocket, *words], stdout=subprocess.PIPE, check=True, text=True).stdout


def names(text, after):
    """Returns the first words of the rows of a help text's section."""
    rows = []
    for line in text.split("\n" + after + "\n", 1)[1].split("\n"):
        if not line.startswith("  "):
            break
        if not line.startswith("   "):
            rows.append(line.split()[0])
    return rows


def verbs(hocket):
    """Returns the verbs that --help lists."""
    lines = output(hocket, "--help").split("\n")
    return [line.split()[0] for line in lines if line.startswith("  ") and line[2] not in " $"]


def commands(hocket):
    """Returns the words of every command that has a help text."""
    found = []
    for verb in verbs(hocket):
        found.append([verb])
        text = output(hocket, verb, "--help")
        if "\ncommands\n" in text:
            found += [[verb, sub] for sub in names(text, "commands")]
    return found


def cli_page(hocket):
    page = ["# Command line", "",
            "Written by `tools/docs.py` from the program's own help; a test compares, and runs every example.", "",
            "```", output(hocket, "--help").rstrip("\n"), "```", ""]
    for words in commands(hocket):
        page += [f"## hocket {' '.join(words)}" if len(words) == 1 else f"### hocket {' '.join(words)}", "",
                 "```", output(hocket, *words, "--help").rstrip("\n"), "```", ""]
    return "\n".join(page)


def config_page(hocket):
    with open(os.path.join(ROOT, "docs", "config.md.in"), encoding="utf-8") as f:
        return f.read().replace("@KEYS@\n", output(hocket, "train", "--print-keys"))


def pages(hocket):
    return {"docs/cli.md": cli_page(hocket), "docs/config.md": config_page(hocket),
            "docs/serving-fields.md": output(hocket, "serve", "--print-fields")}


def stale(hocket):
    """Returns the names of the pages that differ from the program's output."""
    result = []
    for name, text in pages(hocket).items():
        path = os.path.join(ROOT, name)
        old = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                old = f.read()
        if old != text:
            result.append(name)
    return result


def main():
    words = [w for w in sys.argv[1:] if w != "--check"]
    hocket = words[0] if words else os.path.join(ROOT, "build", "hocket")
    if "--check" in sys.argv:
        found = stale(hocket)
        for name in found:
            print(f"{name} is out of date; run tools/docs.py")
        return 1 if found else 0
    for name, text in pages(hocket).items():
        with open(os.path.join(ROOT, name), "w", encoding="utf-8") as f:
            f.write(text)
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
