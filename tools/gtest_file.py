#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of one file: gtest_file.py EXECUTABLE FILE_test.cc [arguments for GoogleTest].

The tests are read from the file's TEST... macros when it runs, so a new one needs no new
configuration. A file without any test fails, also when none of its tests is in the executable. Where
every test was skipped the exit code is 77, which ctest shows as Skipped."""
import json
import os
import re
import subprocess
import sys
import tempfile

TESTS = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.M)
SKIPPED = 77


def main():
    executable, path, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(path, encoding="utf-8") as f:
        found = TESTS.findall(f.read())
    if not found:
        sys.exit(f"{path}: holds no test")
    filters = []
    for macro, suite, name in found:
        # Another file may have tests of the same suite.
        filters.append({"TEST_P": f"*/{suite}.{name}/*", "TYPED_TEST": f"{suite}/*.{name}",
                        "TYPED_TEST_P": f"*/{suite}/*.{name}"}.get(macro, f"{suite}.{name}"))
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "results.json")
        command = [executable, "--gtest_filter=" + ":".join(filters), "--gtest_brief=1",
                   "--gtest_output=json:" + results] + rest
        code = subprocess.call(command)
        if code or any(word.startswith("--gtest_list_tests") for word in rest):
            sys.exit(code)
        with open(results, encoding="utf-8") as f:
            fates = [test["result"] for suite in json.load(f)["testsuites"] for test in suite["testsuite"]
                     if test["status"] == "RUN"]
    if not fates:
        sys.exit(f"{path}: none of its tests is in {executable}")
    if set(fates) == {"SKIPPED"}:
        print(f"{path}: all {len(fates)} tests were skipped")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
