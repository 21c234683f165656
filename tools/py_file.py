#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a test that is a Python file: py_file.py FILE_test.py [arguments]. Where unittest skipped every
test the exit code is 77, which ctest shows as Skipped; otherwise it is the file's own."""
import os
import runpy
import sys
import unittest

SKIPPED = 77
NO_TESTS_RAN = 5  # unittest's exit code for no tests, from Python 3.12 on


def main():
    path = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    results, run = [], unittest.TextTestRunner.run

    def run_and_keep(self, test):
        results.append(run(self, test))
        return results[-1]

    unittest.TextTestRunner.run = run_and_keep
    code = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as e:
        code = e.code
    if code in (None, False, 0, NO_TESTS_RAN) and results:
        if all(r.skipped and r.testsRun <= len(r.skipped) and r.wasSuccessful() for r in results):
            print(f"{path}: all tests were skipped")
            sys.exit(SKIPPED)
    sys.exit(code)


if __name__ == "__main__":
    main()
