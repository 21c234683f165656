#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600
"""Golden texts: what commands print, held byte for byte.

    golden_test.py [--update] [CASE...]     CASE: part of a case's path, e.g. moe/pp2; default: all

A case is a .txt file below this folder: comments (`# ...`), commands (`$ ...`), and after each
command what it prints, standard error included. The commands of a case run in one shell, in a
folder that holds the files of inputs/ and the repository's configs/, with `hocket` on the PATH; a
command that fails makes the case a bad one. --update writes what they print into the case; `git
diff` then shows what a change did to every program and prediction.

The run's configuration, a line of a program's text, is left out: the command says what it sets, and
a new key would change every case.

The binary is that of HOCKET_BINARY_DIR; without it that of build/, or else of build-sim/."""
import argparse
import concurrent.futures
import difflib
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BINARY_DIRS = [os.path.join(ROOT, name) for name in ("build", "build-sim")]
TIMEOUT_S = 240
SHOWN_LINES, SHOWN_COLUMNS, SHOWN_CASES = 40, 2000, 5
# Ends a command's output in the shell's; no text of ours holds this byte.
MARK = "\x01"


def find_hocket():
    folders = [os.environ["HOCKET_BINARY_DIR"]] if "HOCKET_BINARY_DIR" in os.environ else BINARY_DIRS
    for folder in folders:
        path = os.path.abspath(os.path.join(folder, "hocket"))
        if os.path.exists(path):
            return path
    sys.exit(f"no hocket in {' or '.join(folders)}; build it, or name its folder in HOCKET_BINARY_DIR")


class BadCase(Exception):
    """A case that is no case, or a command whose output can't be held."""


def all_cases():
    """Paths of the cases below this folder, sorted."""
    cases = []
    for where, _, files in os.walk(HERE):
        folder = os.path.relpath(where, HERE)
        if folder.split(os.sep)[0] not in ("inputs", "__pycache__"):
            cases += [os.path.normpath(os.path.join(folder, f)) for f in files if f.endswith(".txt")]
    return sorted(cases)


def read_script(text):
    """What a person wrote of a case: its comments and commands, in order, without the outputs."""
    script = [line for line in text.split("\n") if line.startswith(("# ", "$ "))]
    if not any(line.startswith("$ ") for line in script):
        raise BadCase("has no command; expected lines that begin with '$ '")
    return script


def run_commands(hocket, commands):
    """What each command prints, as lists of lines, from one shell in a folder of its own."""
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
            if line.startswith(("# ", "$ ")):
                raise BadCase(f"prints a line that would be read as a comment or command: {line}")
        outputs.append(lines)
    return outputs


def rendered(hocket, script):
    """The text of a case as it should be: its script with what the commands print."""
    outputs = iter(run_commands(hocket, [line[2:] for line in script if line.startswith("$ ")]))
    lines = []
    for line in script:
        lines.append(line)
        if line.startswith("$ "):
            lines += next(outputs)
    return "\n".join(lines) + "\n"


def explain(case, expected, actual):
    """A unified diff, cut to what one wants to see on a screen."""
    name = f"tests/golden/{case}"
    lines = list(difflib.unified_diff(expected.splitlines(), actual.splitlines(), name, "now", n=1, lineterm=""))
    shown = [line if len(line) <= SHOWN_COLUMNS else line[:SHOWN_COLUMNS] + "…" for line in lines[:SHOWN_LINES]]
    if len(lines) > SHOWN_LINES:
        shown.append(f"… and {len(lines) - SHOWN_LINES} more lines")
    return "\n".join(shown)


def run_case(hocket, case, update):
    """(outcome, text): outcome is same, updated, differs or bad; text says more of the last two."""
    path = os.path.join(HERE, case)
    with open(path, encoding="utf-8", newline="") as f:
        expected = f.read()
    try:
        actual = rendered(hocket, read_script(expected))
    except BadCase as e:
        return "bad", f"tests/golden/{case}: {e}"
    except subprocess.TimeoutExpired:
        return "bad", f"tests/golden/{case}: takes more than {TIMEOUT_S} s"
    if actual == expected:
        return "same", ""
    if not update:
        return "differs", explain(case, expected, actual)
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(actual)
    return "updated", ""


def main():
    parser = argparse.ArgumentParser(description="Runs the golden texts of tests/golden.")
    parser.add_argument("--update", action="store_true", help="write what the commands print into the cases")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="part of a case's path; default: all")
    args = parser.parse_args()
    hocket = find_hocket()
    cases = [c for c in all_cases() if not args.cases or any(part in c for part in args.cases)]
    if not cases:
        sys.exit("no such case; the cases are:\n" + "\n".join(all_cases()))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda case: run_case(hocket, case, args.update), cases))
    failed = [(c, text) for c, (outcome, text) in zip(cases, results) if outcome in ("differs", "bad")]
    for _, text in failed[:SHOWN_CASES]:
        print(text + "\n")
    for case, _ in failed[SHOWN_CASES:]:
        print(f"tests/golden/{case} differs too")
    counts = {o: sum(1 for outcome, _ in results if outcome == o) for o in ("same", "updated", "differs", "bad")}
    print(f"{len(cases)} cases: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n))
    if counts["differs"]:
        print("if this is meant: python3 tests/golden/golden_test.py --update, and read `git diff tests/golden`")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
