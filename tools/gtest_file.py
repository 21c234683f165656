#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of one file: gtest_file.py EXECUTABLE FILE_test.cc [arguments for GoogleTest].

The suites are read from the file's TEST... macros when it runs, so a new suite needs no new
configuration, and a file without any test fails."""
import os
import re
import sys

TESTS = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+)\s*,", re.M)


def main():
    executable, path, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(path, encoding="utf-8") as f:
        found = TESTS.findall(f.read())
    if not found:
        sys.exit(f"{path}: holds no test")
    filters = []
    for macro, suite in sorted(set(found)):
        filters += {"TEST_P": [f"*/{suite}.*"], "TYPED_TEST": [f"{suite}/*"],
                    "TYPED_TEST_P": [f"*/{suite}/*"]}.get(macro, [f"{suite}.*"])
    command = [executable, "--gtest_filter=" + ":".join(filters), "--gtest_brief=1"] + rest
    os.execv(executable, command)


if __name__ == "__main__":
    main()
