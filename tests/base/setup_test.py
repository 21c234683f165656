#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the package sets of tools/setup.sh and its refusals. Installs nothing."""
import os
import subprocess
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def setup(*words):
    return subprocess.run([os.path.join(ROOT, "tools/setup.sh"), *words], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)


class Setup(unittest.TestCase):
    def packages(self, *words):
        r = setup(*words, "--list")
        self.assertEqual(0, r.returncode, r.stderr)
        return set(r.stdout.split())

    def test_sets(self):
        sim, build, tests = self.packages("--sim"), self.packages(), self.packages("--tests")
        self.assertIn("libyaml-cpp-dev", sim)
        self.assertNotIn("python3", sim)
        self.assertLess(sim - {"g++"}, build)
        with open("/etc/os-release", encoding="utf-8") as f:
            debian = "ID=debian\n" in f.readlines()
        # Ubuntu's chromium is a snap.
        self.assertLess(build, tests)
        self.assertEqual(debian, "chromium" in tests)
        self.assertNotIn("libgtest-dev", build)
        torch = self.packages("--torch")
        self.assertLess(build, torch)
        self.assertLess(torch, tests)
        chat = self.packages("--chat")
        self.assertLess(build, chat)
        self.assertLess(chat, tests)
        self.assertIn("curl", chat)
        # The layout of the sources differs between versions.
        self.assertEqual({"ca-certificates", "python3", "python3-venv"}, self.packages("--format"))

    def test_two_commands(self):
        for name, what in (("quickstart", "MINUTES"), ("test", "PATTERN")):
            r = subprocess.run([os.path.join(ROOT, name), "--help"], stdout=subprocess.PIPE, text=True, check=True)
            self.assertIn(f"./{name}", r.stdout)
            self.assertIn(what, r.stdout)
            self.assertNotIn("#", r.stdout)
            self.assertNotIn("set -", r.stdout)
            self.assertEqual(name == "quickstart", "./quickstart chat" in r.stdout)
        for words in (["quickstart", "soon"], ["quickstart", "1", "2"], ["test", "--fast"], ["test", "a", "b"],
                      ["test", "peers", "a", "b"]):
            r = subprocess.run([os.path.join(ROOT, words[0]), *words[1:]], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual((2, ""), (r.returncode, r.stdout), words)
            self.assertIn(f"./{words[0]} --help", r.stderr)

    def test_peers_takes_a_pattern(self):
        r = subprocess.run([os.path.join(ROOT, "test"), "peers", "no.such.peer"], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((2, ""), (r.returncode, r.stdout))
        self.assertRegex(r.stderr, "'no.such.peer'; expected a pattern of: .*chat_templates/")

    def test_unknown_word(self):
        r = setup("--test")
        self.assertEqual(2, r.returncode)
        self.assertIn("--tests", r.stderr)


if __name__ == "__main__":
    unittest.main()
