#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tests the kernels of every instruction set. HOCKET_CPU selects one, and the rest of the program needs only the
lowest, so that it starts on every processor."""
import json
import os
import platform
import re
import subprocess
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
# Vector registers and instructions that only v3 and v4 have, as objdump writes them.
WIDE = re.compile(r"%[yz]mm\d|\tv[a-z0-9]+ ")


def env(**more):
    return subprocess.run([HOCKET, "env", "--json"], env=dict(os.environ, **more), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)


class Levels(unittest.TestCase):
    def test_the_environment_chooses(self):
        shown = json.loads(env(HOCKET_CPU="").stdout)["kernels"]
        self.assertIn("best for this processor", shown)
        lowest = "x86-64-v2" if platform.machine() == "x86_64" else shown.split()[0]
        self.assertEqual(f"{lowest} (HOCKET_CPU says so)", json.loads(env(HOCKET_CPU=lowest).stdout)["kernels"])
        r = env(HOCKET_CPU="x86-64-v9")
        self.assertEqual(2, r.returncode)
        self.assertIn("HOCKET_CPU is 'x86-64-v9'; expected one of " + lowest, r.stderr)

    @unittest.skipUnless(platform.machine() == "x86_64", "one instruction set here")
    def test_wide_instructions_stay_in_their_kernels(self):
        text = subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", HOCKET], stdout=subprocess.PIPE, text=True)
        function, found, wide = "", set(), set()
        sanitized = False
        for line in text.stdout:
            sanitized = sanitized or "<__asan_" in line or "<__tsan_" in line
            if line.endswith(">:\n"):
                function = line.split("<", 1)[1][:-3]
            elif WIDE.search(line):
                (wide if "x86_64_v3" in function or "x86_64_v4" in function else found).add(function)
        text.stdout.close()
        self.assertEqual(0, text.wait())
        if sanitized:
            # Instrumented code is inlined less: uncalled copies of inline functions remain.
            self.skipTest("a sanitizer's build, which only runs where it was built")
        self.assertGreater(len(wide), 50)
        self.assertEqual(set(), found)


if __name__ == "__main__":
    unittest.main()
