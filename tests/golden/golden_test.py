#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Golden texts: outputs of commands, held byte for byte.

    golden_test.py [--update] [CASE...]     CASE: part of a case's path, e.g. moe/pp2; default: all

A case is a .txt file below this folder: comments (`# ...`), commands (`$ ...` or `% ...`), and after each
command its output, standard error included. After a `%` command stands a summary of the output: the number of lines
that begin with each word, the number of tasks of each op per lane, and a hash of everything. The commands of a case run
in one shell, in a folder that holds the files of inputs/ and the repository's configs/, with `hocket` on the PATH; a
command that fails makes the case a bad one. --update writes the outputs into the case, and shows the changes.

Full texts of cases that passed are kept in .cache/golden. A case that differs is compared with the one there, so
that differences behind a summary are shown line by line, too. If there is none, run the case once with the program
from before the change: HOCKET_BINARY_DIR=BUILD golden_test.py CASE.

The run's configuration, a line of a program's text, is left out: the command gives its settings, and
a new key would change every case.

The binary is that of HOCKET_BINARY_DIR; without it that of build/, or else of build-sim/."""
import argparse
import collections
import concurrent.futures
import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BINARY_DIRS = [os.path.join(ROOT, name) for name in ("build", "build-sim")]
TIMEOUT_S = 240
SHOWN_LINES, SHOWN_COLUMNS, SHOWN_CASES = 40, 2000, 5
FULL_TEXTS = os.path.join(ROOT, ".cache", "golden")
COMMANDS = ("$ ", "% ")  # followed by the output, or by a summary of it
# A task of a program or of a template: its op and its lane; also after the sign of a diff.
TASK = re.compile(r"[-+ ]*task \d+ (\w+) (\w+)")
# Marks the end of a command's output; no text of ours holds this byte.
MARK = "\x01"


def find_hocket():
    folders = [os.environ["HOCKET_BINARY_DIR"]] if "HOCKET_BINARY_DIR" in os.environ else BINARY_DIRS
    for folder in folders:
        path = os.path.abspath(os.path.join(folder, "hocket"))
        if os.path.exists(path):
            return path
    sys.exit(f"no hocket in {' or '.join(folders)}; build it, or name its folder in HOCKET_BINARY_DIR")


class BadCase(Exception):
    """Error for a case without a valid form, or with an output that cannot be held."""


def all_cases():
    """Returns the paths of the cases below this folder, sorted."""
    cases = []
    for where, _, files in os.walk(HERE):
        folder = os.path.relpath(where, HERE)
        if folder.split(os.sep)[0] not in ("inputs", "__pycache__"):
            cases += [os.path.normpath(os.path.join(folder, f)) for f in files if f.endswith(".txt")]
    return sorted(cases)


def read_script(text):
    """Returns the script of a case: its comments and commands in order, without outputs."""
    script = [line for line in text.split("\n") if line.startswith(("# ", *COMMANDS))]
    if not any(line.startswith(COMMANDS) for line in script):
        raise BadCase("has no command; expected lines that begin with '$ ' or '% '")
    return script


def run_commands(hocket, commands):
    """Returns each command's output as a list of lines, from one shell in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        work = os.path.join(folder, "work")
        shutil.copytree(os.path.join(HERE, "inputs"), work)
        os.symlink(os.path.join(ROOT, "configs"), os.path.join(work, "configs"))
        os.mkdir(os.path.join(folder, "bin"))
        os.symlink(hocket, os.path.join(folder, "bin", "hocket"))
        env = {k: v for k, v in os.environ.items() if not k.startswith("HOCKET_")}
        env.update(PATH=os.path.join(folder, "bin") + os.pathsep + env.get("PATH", ""), LC_ALL="C")
        shell = "set -f; exec 2>&1\n" + "".join(f"{c}\nprintf '\\001%d\\n' $?\n" for c in commands)
        done = subprocess.run(["sh", "-c", shell], cwd=work, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
        text = done.stdout.decode("utf-8", errors="backslashreplace")
        for place in (folder, ROOT):
            if place in text:
                raise BadCase(f"prints a path of this machine: {place}")
    return split_outputs(text, commands)


def split_outputs(text, commands):
    """Cuts the shell's output at the marks, and checks that a case can hold the pieces."""
    outputs = []
    for command in commands:
        output, mark, text = text.partition(MARK)
        if not mark:
            raise BadCase(f"the shell ended in: {command}\n{output}")
        code, _, text = text.partition("\n")
        if code != "0":
            raise BadCase(f"exit code {code} of: {command}\n{output}")
        lines = [line for line in output.split("\n") if not line.startswith("config {")]
        if lines[-1] == "":
            lines.pop()
        for line in lines:
            if line.startswith(("# ", *COMMANDS)):
                raise BadCase(f"prints a line that would be read as a comment or command: {line}")
        outputs.append(lines)
    return outputs


def summary(lines):
    """Returns the summary that a case holds of a `%` command's output. Its first line has the number of lines by first
    word, and the hash; then each lane has a line with its number of tasks by op."""
    words = collections.Counter(line.split()[0] for line in lines if line.split())
    lanes = collections.defaultdict(collections.Counter)
    for line in lines:
        task = TASK.match(line)
        if task:
            lanes[task.group(2)][task.group(1)] += 1
    # Words that begin only a line or two, as names do, add nothing to the hash.
    many = [f"{word} {n}" for word, n in sorted(words.items()) if n > 2]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return [f"{len(lines)} lines, {digest}: {', '.join(many)}"] + [
        f"  {lane}: " + ", ".join(f"{op} {n}" for op, n in sorted(ops.items())) for lane, ops in sorted(lanes.items())]


def text_of(script, outputs, summarised):
    """Returns the text of a case: its script with the outputs or, if `summarised`, with their summaries."""
    outputs = iter(outputs)
    lines = []
    for line in script:
        lines.append(line)
        if line.startswith(COMMANDS):
            output = next(outputs)
            lines += summary(output) if summarised and line.startswith("% ") else output
    return "\n".join(lines) + "\n"


def difference(case, expected, actual):
    """Returns the lines of a unified diff."""
    return list(difflib.unified_diff(expected.splitlines(), actual.splitlines(), f"tests/golden/{case}", "now", n=1,
                                     lineterm=""))


def cut(lines):
    """Shortens a diff for the screen."""
    shown = [line if len(line) <= SHOWN_COLUMNS else line[:SHOWN_COLUMNS] + "…" for line in lines[:SHOWN_LINES]]
    if len(lines) > SHOWN_LINES:
        shown.append(f"… and {len(lines) - SHOWN_LINES} more lines")
    return shown


def kept_full_text(case, expected):
    """Returns the full text of the case's last passing run if it matches the held one, else None."""
    path = os.path.join(FULL_TEXTS, case)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8", newline="") as f:
        held, _, full = f.read().partition(MARK)
    return full if held == expected else None


def keep_full_text(case, held, full):
    path = os.path.join(FULL_TEXTS, case)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(held + MARK + full)


def run_case(hocket, case, update):
    """Returns (outcome, text): outcome is same, updated, differs or bad; text explains the last three."""
    path = os.path.join(HERE, case)
    with open(path, encoding="utf-8", newline="") as f:
        expected = f.read()
    try:
        script = read_script(expected)
        outputs = run_commands(hocket, [line[2:] for line in script if line.startswith(COMMANDS)])
    except BadCase as e:
        return "bad", f"tests/golden/{case}: {e}"
    except subprocess.TimeoutExpired:
        return "bad", f"tests/golden/{case}: takes more than {TIMEOUT_S} s"
    actual, full = text_of(script, outputs, True), text_of(script, outputs, False)
    if actual == expected:
        if full != actual:
            keep_full_text(case, actual, full)
        return "same", ""
    before = kept_full_text(case, expected)
    lines = difference(case, expected, actual) if before is None else difference(case, before, full)
    if before is None and full != actual:
        lines.append(f"no full text of before is known here; for one: HOCKET_BINARY_DIR=<an earlier build> golden_test.py {case}")
    if not update:
        return "differs", "\n".join(cut(lines))
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(actual)
    if full != actual:
        keep_full_text(case, actual, full)
    return "updated", "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Runs the golden texts of tests/golden.")
    parser.add_argument("--update", action="store_true", help="write what the commands print into the cases, and show all that changed")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="part of a case's path; default: all")
    args = parser.parse_args()
    hocket = find_hocket()
    cases = [c for c in all_cases() if not args.cases or any(part in c for part in args.cases)]
    if not cases:
        sys.exit("no such case; the cases are:\n" + "\n".join(all_cases()))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda case: run_case(hocket, case, args.update), cases))
    for outcome, text in results:
        if outcome == "updated":
            print(text + "\n")
    failed = [(c, text) for c, (outcome, text) in zip(cases, results) if outcome in ("differs", "bad")]
    for _, text in failed[:SHOWN_CASES]:
        print(text + "\n")
    for case, _ in failed[SHOWN_CASES:]:
        print(f"tests/golden/{case} differs too")
    counts = {o: sum(1 for outcome, _ in results if outcome == o) for o in ("same", "updated", "differs", "bad")}
    print(f"{len(cases)} cases: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n))
    if counts["differs"]:
        print("if this is meant: python3 tests/golden/golden_test.py --update, and read what it shows")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
