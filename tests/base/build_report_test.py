#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the reading of ninja's log by tools/build_report.py, and its refusals."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
LOG = """# ninja log v5
0\t9000\t1\tCMakeFiles/hocket_base.dir/src/base/error.cc.o\ta
0\t2000\t2\tCMakeFiles/hocket_base.dir/src/base/error.cc.o\tb
100\t4100\t3\tCMakeFiles/hocket_tests.dir/tests/base/file_test.cc.o\tc
100\t1100\t3\tCMakeFiles/hocket_cli.dir/src/cli/args.cc.o\td
200\t90000\t4\thocket\te
"""


class BuildReport(unittest.TestCase):
    def report(self, log, *words):
        with tempfile.TemporaryDirectory() as folder:
            if log is not None:
                with open(os.path.join(folder, ".ninja_log"), "w", encoding="utf-8") as f:
                    f.write(log)
            r = subprocess.run([sys.executable, os.path.join(ROOT, "tools/build_report.py"), folder, *words],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            return r.returncode, r.stdout, r.stderr

    def test_last_time_of_every_object(self):
        code, out, _ = self.report(LOG)
        self.assertEqual(0, code)
        self.assertEqual(["3 objects, 7 s of compiling, median 2.0 s", "     4.0 s  tests/base/file_test.cc",
                          "     2.0 s  src/base/error.cc", "     1.0 s  src/cli/args.cc"], out.splitlines())

    def test_most_and_budget(self):
        code, out, _ = self.report(LOG, "--most", "1", "--budget", "3")
        self.assertEqual(1, code)
        self.assertEqual(3, len(out.splitlines()))
        self.assertIn("1 files over the budget of 3 s: tests/base/file_test.cc", out)
        self.assertEqual(0, self.report(LOG, "--budget", "4")[0])

    def test_refused(self):
        for log, why in ((None, "not there"), ("something\n", "no log of ninja"), ("# ninja log v5\n", "no object")):
            code, _, err = self.report(log)
            self.assertEqual(1, code)
            self.assertIn(why, err)


if __name__ == "__main__":
    unittest.main()
