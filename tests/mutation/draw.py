#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws mutants of the product at random, and counts how many the tests kill.

    tests/mutation/draw.py --seed S [--count N] [--numbers A-B] [--build FOLDER] [--json FILE]
    tests/mutation/draw.py --seed S --list        prints the mutants, builds nothing

A mutant is one changed operator, constant or condition, or one dropped statement, in a folder of FOLDERS. Sites are drawn
uniformly, so a long file gets more of them. Mutants that do not compile are replaced by the next ones of the same seed. One
build (-O1, in build-drawn) has all of them, each behind its number, as in run.py. One run without a mutant takes the times of
the tests and the mutants that each evaluates; then those tests run for a mutant, the quickest first, until one fails.
Prints a line for each; survivors come with their change. Exit code 1 only if the build or a test without mutants fails: a
survivor is for a person to judge, by a new test or as equivalent."""
import argparse
import concurrent.futures
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from run import ROOT, put, sources
from schemata import HEADER

FOLDERS = ("check", "program", "parallel", "comm", "passes", "engine", "checkpoint")
# Slow tests that run whole programs; with those of FOLDERS and the fast ones they are the tests that may kill.
GENERAL = ("golden/golden_test", "plans/equality_test", "plans/rewrites_test", "plans/bit_identity_test", "programs/buckets_test",
           "checkpoint/checkpoint_test", "cli/cli_test")
TIMEOUT_S = 400
FLIPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/"}


class Site(NamedTuple):
    file: str
    line: int
    kind: str   # operator, condition, constant, statement
    begin: int  # offsets of the replaced text
    end: int
    old: str
    new: str    # with MUT(0) for the number


def masked(text):
    """The text with comments, strings and preprocessor lines blanked, offsets unchanged."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:\\\n|[^\n])*'
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", "~", m.group(0)), text, flags=re.S | re.M)


def closing(code, open_at):
    """Offset of the parenthesis that closes the one at open_at, or -1."""
    depth = 0
    for i in range(open_at, len(code)):
        depth += (code[i] == "(") - (code[i] == ")")
        if depth == 0:
            return i
    return -1


def conditions(code):
    """(begin, end) of every plain condition of an if or a while."""
    for m in re.finditer(r"\b(?:if|while) (\()", code):
        begin, end = m.start(1) + 1, closing(code, m.start(1))
        inside = code[begin:end]
        is_declaration = re.search(r";|(?<![=!<>+\-*/|&])=(?!=)", inside)
        if end > 0 and not is_declaration:
            yield begin, end


def sites_of(path, text):
    code = masked(text)
    found = []

    def line_of(offset):
        return text.count("\n", 0, offset) + 1

    def add(kind, begin, end, new):
        if "~" not in code[begin:end] or kind != "statement":
            found.append(Site(path, line_of(begin), kind, begin, end, text[begin:end], new))

    for begin, end in conditions(code):
        old = text[begin:end]
        add("condition", begin, end, f"MUT(0) ? !({old}) : ({old})")
        for m in re.finditer(r"(?<= )(<|<=|>|>=|==|!=|&&|\|\|)(?=\s)", code[begin:end]):
            changed = old[:m.start()] + FLIPS[m.group(1)] + old[m.end():]
            add("operator", begin, end, f"MUT(0) ? ({changed}) : ({old})")
    # A right-hand side or a returned value on one line.
    for m in re.finditer(r"^ +(?:[\w.\[\]()>*-]+ (?:[+\-*]?=)|return) ([^;{}\n~]+);$", code, re.M):
        begin, end = m.span(1)
        old = text[begin:end]
        for op in re.finditer(r"(?<= )([+\-*/%]|<|<=|>|>=|==|!=|&&|\|\|)(?= )", code[begin:end]):
            changed = old[:op.start()] + {**FLIPS, **ARITHMETIC}[op.group(1)] + old[op.end():]
            add("operator", begin, end, f"MUT(0) ? ({changed}) : ({old})")
    for line in re.finditer(r"^  +(?!case |static |constexpr |template|enum |using |struct |class )(.*)$", code, re.M):
        if re.search(r"constexpr|static_assert|std::get<|std::array|<\d", line.group(0)):
            continue
        for m in re.finditer(r"(?<![\w.'\]])(\d{1,9})(?![\w.'])", line.group(0)):
            begin = line.start() + m.start(1)
            add("constant", begin, begin + len(m.group(1)),
                f"(MUT(0) ? {int(m.group(1)) + 1} : {m.group(1)})")
        whole = re.fullmatch(r" +((?:[\w:]+(?:\.|->))*[\w:]+\([^;{}]*\);|[\w.\[\]()>*-]+ [+\-*|&]?= [^;{}]*;|\+\+[\w.]+;)", line.group(0))
        previous = code[:line.start()].rstrip()[-1:]
        words = whole and whole.group(1)
        if words and previous in ";{}" and not re.match(r"(return|break|continue|fail|bad|refuse|throw|HOCKET_CHECK|check)\b", words):
            begin, end = line.start() + whole.start(1), line.start() + whole.end(1)
            found.append(Site(path, line_of(begin), "statement", begin, end, text[begin:end], f"if (!MUT(0)) {{ {text[begin:end]} }}"))
    return found


def mutable_texts(tree):
    """The files of FOLDERS by their paths, as they are in the tree before it has mutants."""
    texts = {}
    for path in sorted(sources()):
        parts = path.split("/")
        if parts[0] == "src" and parts[1] in FOLDERS and path.endswith(".cc"):
            with open(os.path.join(tree, path), encoding="utf-8") as f:
                texts[path] = f.read()
    return texts


def with_sites(text, numbered):
    """The text with the (number, site) of one file, which do not overlap."""
    for number, site in sorted(numbered, key=lambda row: -row[1].begin):
        text = text[:site.begin] + site.new.replace("MUT(0)", f"MUT({number})") + text[site.end:]
    first_line = text.index("\n") + 1
    return text[:first_line] + HEADER + text[first_line:]


def compiles(tree, text):
    command = ["g++", "-std=c++20", "-Isrc", "-I/usr/include", "-DFMT_SHARED", "-w", "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, cwd=tree, input=text, text=True, capture_output=True, check=False).returncode == 0


def make_tree(tree):
    for path in sources():
        with open(os.path.join(ROOT, path), "rb") as f:
            put(os.path.join(tree, path), f.read())
        os.chmod(os.path.join(tree, path), os.stat(os.path.join(ROOT, path)).st_mode)
    with open(os.path.join(ROOT, "tests/mutation/mut.h"), "rb") as f:
        put(os.path.join(tree, "src/base/mut.h"), f.read())
    venv = os.path.join(tree, ".venv")
    if not os.path.lexists(venv) and os.path.exists(os.path.join(ROOT, ".venv")):
        os.symlink(os.path.realpath(os.path.join(ROOT, ".venv")), venv)


def draw(texts, seed, count, accepts, workers=1):
    """`count` numbered sites that do not overlap and that `accepts` takes; the same for the same seed and texts."""
    order = [site for path, text in texts.items() for site in sites_of(path, text)]
    random.Random(seed).shuffle(order)
    chosen = []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        while order and len(chosen) < count:
            batch = []
            while order and len(batch) < count - len(chosen):
                site = order.pop(0)
                others = batch + [taken for _, taken in chosen]
                if all(s.file != site.file or site.end <= s.begin or s.end <= site.begin for s in others):
                    batch.append(site)
            for site, good in zip(batch, pool.map(accepts, batch)):
                if good:
                    chosen.append((len(chosen) + 1, site))
    return chosen


def entries(build):
    """Names of the tests that may kill: the fast ones, those of the mutated folders, GENERAL."""
    found = set()
    for words in (["-L", "unit"], ["-R", f"^({'|'.join(GENERAL)}|({'|'.join(FOLDERS)})/.*)$"]):
        listed = subprocess.run(["ctest", "--test-dir", build, "-N", *words], capture_output=True, text=True, check=True).stdout
        found |= set(re.findall(r"Test +#\d+: (\S+)", listed))
    return sorted(entry for entry in found if not entry.startswith("mutation/"))  # these read the sources


def passes(build, entry, timeout, **variables):
    # A test has a limit of its own, which --timeout of ctest does not shorten.
    command = ["ctest", "--test-dir", build, "-R", f"^{re.escape(entry)}$"]
    with subprocess.Popen(command, env=dict(os.environ, **variables), start_new_session=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ran:
        try:
            return ran.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            os.killpg(ran.pid, signal.SIGKILL)
            return False


def reached_by_tests(build, folder, workers):
    """(entry, seconds, numbers of the mutants it evaluates) of every test, the quickest first. Exits if one fails."""
    os.makedirs(folder, exist_ok=True)

    def one(entry):
        file = os.path.join(folder, entry.replace("/", "-"))
        if os.path.exists(file):
            os.remove(file)
        begin = time.monotonic()
        good = passes(build, entry, TIMEOUT_S, HOCKET_MUT="0", HOCKET_MUT_REACHED=file)
        seconds = time.monotonic() - begin
        numbers = []
        if os.path.exists(file):
            with open(file, encoding="utf-8") as f:
                numbers = sorted({int(line) for line in f})
        # Beside other tests some that measure time fail; alone they must pass.
        if not good and not passes(build, entry, TIMEOUT_S, HOCKET_MUT="0"):
            sys.exit(f"{entry} fails without a mutant")
        return entry, seconds, numbers

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return sorted(pool.map(one, entries(build)), key=lambda row: row[1])


def killer(build, number, tests):
    """The first test that fails with the mutant, or None. One that takes three times as long counts as failed."""
    for entry, seconds, numbers in tests:
        if number in numbers and not passes(build, entry, 3 * seconds + 20, HOCKET_MUT=str(number)):
            return entry
    return None


def drawn_and_built(args, tree, drawn):
    """Draws the mutants, notes them in the file `drawn`, and builds the tree with all of them."""
    texts = mutable_texts(tree)
    chosen = draw(texts, args.seed, args.count,
                  lambda site: compiles(tree, with_sites(texts[site.file], [(1, site)])), args.workers)
    with open(drawn, "w", encoding="utf-8") as f:
        json.dump(chosen, f)
    for path in sorted({site.file for _, site in chosen}):
        rows = [row for row in chosen if row[1].file == path]
        put(os.path.join(tree, path), with_sites(texts[path], rows).encode())
    for command in (["cmake", "-G", "Ninja", "-S", tree, "-B", os.path.join(tree, "build")] + shlex.split(args.cmake),
                    ["cmake", "--build", os.path.join(tree, "build"), "-j", str(os.cpu_count())]):
        if subprocess.run(command, check=False).returncode:
            sys.exit("the mutants do not build")
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--build", default=os.path.join(ROOT, "build-drawn"))
    parser.add_argument("--cmake", default="-DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DHOCKET_BENCH=OFF")
    parser.add_argument("--numbers", default="", metavar="A-B", help="judge only these mutants of the draw")
    parser.add_argument("--json", help="also write the results here")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="tests that run at once")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--skip-build", action="store_true", help="what is built is up to date")
    args = parser.parse_args()
    tree, build = args.build, os.path.join(args.build, "build")
    if args.list:
        for number, site in draw(mutable_texts(ROOT), args.seed, args.count, lambda site: True):
            print(f"{number:3} {site.kind:9} {site.file}: {site.old!r} -> {site.new!r}")
        return
    drawn = os.path.join(tree, f"drawn-{args.seed}-{args.count}.json")
    if args.skip_build and os.path.exists(drawn):
        with open(drawn, encoding="utf-8") as f:
            chosen = [(number, Site(*site)) for number, site in json.load(f)]
    else:
        make_tree(tree)
        chosen = drawn_and_built(args, tree, drawn)
    reached = os.path.join(tree, f"reached-{args.seed}-{args.count}.json")
    if args.skip_build and os.path.exists(reached):
        with open(reached, encoding="utf-8") as f:
            tests = json.load(f)
    else:
        tests = reached_by_tests(build, os.path.join(tree, "reached"), args.workers)
        with open(reached, "w", encoding="utf-8") as f:
            json.dump(tests, f)

    def judge(row):
        number, site = row
        begin = time.monotonic()
        by = killer(build, number, tests)
        is_reached = any(number in numbers for _, _, numbers in tests)
        survived = f"{'SURVIVED' if is_reached else 'NOT REACHED'}  {site.old}  ->  {site.new}"
        print(f"{number:3} {site.kind:9} {site.file}:{site.line}: {'killed by ' + by if by else survived} "
              f"({time.monotonic() - begin:.0f} s)", flush=True)
        return {"number": number, "file": site.file, "line": site.line, "kind": site.kind, "old": site.old, "new": site.new,
                "killed_by": by, "reached": is_reached}

    first, dash, last = args.numbers.partition("-")
    last = last if dash else first
    judged = [row for row in chosen if int(first or 1) <= row[0] <= int(last or len(chosen))]
    with concurrent.futures.ThreadPoolExecutor(args.workers) as pool:
        results = list(pool.map(judge, judged))
    killed = sum(bool(r["killed_by"]) for r in results)
    print(f"seed {args.seed}: {killed} of {len(results)} killed; {len(results) - killed} survived or equivalent")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
