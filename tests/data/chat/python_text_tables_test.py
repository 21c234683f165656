#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of src/data/chat/python_text_tables.inc are what tools/python_text_tables.py makes of the same Unicode
version."""
import os
import re
import sys
import unicodedata
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import python_text_tables  # noqa: E402


class PythonTextTables(unittest.TestCase):
    def test_committed_tables_are_the_generated_ones(self):
        with open(os.path.join(ROOT, "src/data/chat/python_text_tables.inc"), encoding="utf-8") as f:
            committed = f.read()
        version = re.search(r"(\d+\.\d+\.\d+); written", committed).group(1)
        if version != unicodedata.unidata_version:
            self.skipTest(f"this Python knows Unicode {unicodedata.unidata_version}, the tables are of {version}")
        self.assertEqual(python_text_tables.text(), committed)


if __name__ == "__main__":
    unittest.main()
