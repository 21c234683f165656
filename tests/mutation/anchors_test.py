#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rows of mutants.py fit the sources: each names text that occurs once, and tests that exist.
(run.py, which takes long, shows that the tests notice the mutants.)"""
import os
import unittest

from mutants import MUTANTS
from schemata import BadRow, mutated, span
from mutants import Mutant

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


class Anchors(unittest.TestCase):
    def test_each_text_occurs_once(self):
        for m in MUTANTS:
            with self.subTest(mutant=m.number), open(os.path.join(ROOT, m.file),
                                                     encoding="utf-8") as f:
                begin, end = span(m, f.read())
                self.assertLess(begin, end)

    def test_mutants_of_a_file_do_not_overlap(self):
        for path in sorted({m.file for m in MUTANTS}):
            with self.subTest(file=path), open(os.path.join(ROOT, path), encoding="utf-8") as f:
                text = mutated(f.read(), [m for m in MUTANTS if m.file == path])
                for m in MUTANTS:
                    self.assertEqual(text.count(f"MUT({m.number})"), int(m.file == path))

    def test_numbers_and_tests(self):
        numbers = [m.number for m in MUTANTS]
        self.assertEqual(len(numbers), len(set(numbers)))
        for m in MUTANTS:
            with self.subTest(mutant=m.number):
                self.assertTrue(m.breaks)
                for name in m.tests:
                    path = os.path.join(ROOT, "tests", name)
                    self.assertTrue(os.path.exists(path + ".cc") or os.path.exists(path + ".py"),
                                    f"no test {name}")

    def test_text_that_occurs_twice_or_never_is_refused(self):
        row = Mutant(1, "x", "if («a») b;", "c", "x", ())
        self.assertEqual(span(row, "if (a)\n  b;"), (4, 5))
        for text in ("if (a) b; if (a) b;", "if (x) b;"):
            with self.assertRaises(BadRow):
                span(row, text)


if __name__ == "__main__":
    unittest.main()
