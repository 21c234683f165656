#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests notice faults of the product.

    tests/mutation/run.py [--build FOLDER] [--cmake ARGS] [-j N] [NUMBER...]

Copies the sources to FOLDER (default build-mutants) with all mutants of mutants.py in them,
each behind its number, and builds them once with the tests that the rows name. These tests must pass with no mutant
switched on. Then every mutant's tests run until one fails. Prints a line for each and the sum. Exit code 1 if a
mutant survives that is not marked as equivalent. After the build, about ten minutes on two cores; later runs build only
changed files."""
import argparse
import os
import shlex
import subprocess
import sys
import time

from mutants import MUTANTS
from schemata import mutated_files

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TIMEOUT_S = 300


def sources():
    """Returns the files of the working tree, relative to its root."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                            check=True, capture_output=True).stdout.decode().split("\0")
    return [path for path in listed if path and os.path.isfile(os.path.join(ROOT, path))]


def put(path, content):
    """Writes a file if it differs, so that a build redoes only what changed."""
    try:
        with open(path, "rb") as f:
            if f.read() == content:
                return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content)


def make_tree(tree, mutants):
    files = mutated_files(ROOT, mutants)
    wanted = set()
    for path in sources():
        wanted.add(path)
        source = os.path.join(ROOT, path)
        with open(source, "rb") as f:
            content = f.read()
        put(os.path.join(tree, path), files[path].encode() if path in files else content)
        os.chmod(os.path.join(tree, path), os.stat(source).st_mode)
    with open(os.path.join(HERE, "mut.h"), "rb") as f:
        put(os.path.join(tree, "src/base/mut.h"), f.read())
    wanted.add("src/base/mut.h")
    for where, folders, names in os.walk(tree):  # removes files that are gone from the working tree
        if where == tree and "build" in folders:
            folders.remove("build")
        for name in names:
            path = os.path.join(where, name)
            if os.path.relpath(path, tree) not in wanted and not os.path.islink(path):
                os.remove(path)
    venv = os.path.join(tree, ".venv")
    if not os.path.lexists(venv) and os.path.exists(os.path.join(ROOT, ".venv")):
        os.symlink(os.path.realpath(os.path.join(ROOT, ".venv")), venv)


def test_files(chosen):
    """Returns a regular expression of the C++ test files that the rows name: the build needs no others."""
    names = sorted({test for m in chosen for test in m.tests})
    return f"/tests/({'|'.join(names)})[.]cc$"


def passes(build, test, number):
    """Returns whether the ctest entry passes with this mutant switched on, and its output."""
    ran = subprocess.run(["ctest", "--test-dir", build, "-R", f"^{test}$", "--no-tests=error",
                          "--timeout", str(TIMEOUT_S), "--output-on-failure"],
                         env=dict(os.environ, HOCKET_MUT=str(number)), capture_output=True,
                         text=True, check=False)
    if "No tests were found" in ran.stdout + ran.stderr:
        sys.exit(f"{test}: no such ctest entry")
    if "***Skipped" in ran.stdout:
        sys.exit(f"{test}: skipped here; it can't notice anything")
    return ran.returncode == 0, ran.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build-mutants"))
    parser.add_argument("--cmake", default="-DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DHOCKET_BENCH=OFF",
                        help="arguments for the configuration (default: %(default)s)")
    parser.add_argument("--skip-build", action="store_true", help="what is built is up to date")
    parser.add_argument("--only-build", action="store_true")
    parser.add_argument("-j", type=int, default=os.cpu_count())
    parser.add_argument("numbers", type=int, nargs="*", help="mutants (default: all)")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if not args.numbers or m.number in args.numbers]
    # Beside the sources as build/ is, so that ccache knows the files without mutants.
    tree, build = args.build, os.path.join(args.build, "build")
    if not args.skip_build:
        make_tree(tree, MUTANTS)
        for command in (["cmake", "-G", "Ninja", "-S", tree, "-B", build,
                         "-DHOCKET_TEST_FILES=" + test_files(chosen)] + shlex.split(args.cmake),
                        ["cmake", "--build", build, "-j", str(args.j), "--target", "hocket",
                         "hocket_tests"]):
            if subprocess.run(command, check=False).returncode:
                sys.exit("the mutants do not build")
    if args.only_build:
        return
    for test in sorted({test for m in chosen for test in m.tests}):
        good, said = passes(build, test, 0)
        if not good:
            sys.exit(f"{test} fails without a mutant:\n{said}")
    survived, equivalent = [], []
    for m in chosen:
        begin = time.monotonic()
        by = next((test for test in m.tests if not passes(build, test, m.number)[0]), None)
        if not m.tests:
            equivalent.append(m)
            fate = "equivalent"
        elif by is None:
            survived.append(m)
            fate = "SURVIVED"
        else:
            fate = f"killed by {by}"
        print(f"{m.number:3} {m.file}: {m.breaks}: {fate} ({time.monotonic() - begin:.0f} s)",
              flush=True)
    print(f"{len(chosen) - len(survived) - len(equivalent)} of {len(chosen)} killed, "
          f"{len(equivalent)} equivalent, {len(survived)} survived")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
