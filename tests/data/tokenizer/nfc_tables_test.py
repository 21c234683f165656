#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""src/data/tokenizer/nfc_tables.inc equals the output of tools/nfc_tables.py for the same Unicode version."""
import os
import re
import sys
import unicodedata
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import nfc_tables  # noqa: E402


class NfcTables(unittest.TestCase):
    def test_committed_tables_are_the_generated_ones(self):
        with open(os.path.join(ROOT, "src/data/tokenizer/nfc_tables.inc"), encoding="utf-8") as f:
            committed = f.read()
        version = re.search(r"version (\d+\.\d+\.\d+)", committed).group(1)
        if version != unicodedata.unidata_version:
            self.skipTest(f"this Python knows Unicode {unicodedata.unidata_version}, the tables are of {version}")
        self.assertEqual(nfc_tables.text(), committed)


if __name__ == "__main__":
    unittest.main()
