#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests exit code 77 of tools/py_file.py, which ctest shows as Skipped, for Python tests that could check nothing."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SKIPPED = 77
HEAD = "import unittest\nclass T(unittest.TestCase):\n"
SKIPS = '    @unittest.skip("nothing here")\n    def test_a(self): pass\n'
TAIL = "unittest.main()\n"


class PyFile(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.addCleanup(self.tmp.cleanup)

    def run_file(self, path, path_variable=os.environ["PATH"]):
        return subprocess.run([sys.executable, os.path.join(ROOT, "tools/py_file.py"), path], check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PATH": path_variable})

    def code(self, text):
        path = os.path.join(self.tmp.name, "a_test.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return self.run_file(path).returncode

    def test_codes(self):
        self.assertEqual(SKIPPED, self.code(HEAD + SKIPS + TAIL))
        self.assertEqual(0, self.code(HEAD + SKIPS + "    def test_b(self): pass\n" + TAIL))
        self.assertEqual(1, self.code(HEAD + SKIPS + "    def test_b(self): self.fail()\n" + TAIL))
        for code in (0, 3, SKIPPED):
            self.assertEqual(code, self.code(f"import sys\nsys.exit({code})\n"))

    def test_the_report_without_a_browser(self):
        """With an empty PATH there is neither Chromium nor Node."""
        r = self.run_file(os.path.join(ROOT, "tests/diagnose/report_browser_test.py"), self.tmp.name)
        self.assertEqual(SKIPPED, r.returncode, r.stdout)
        self.assertIn("no Chromium here", r.stdout)


if __name__ == "__main__":
    unittest.main()
