#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make build`, which ./quickstart calls, leaves out tests and benchmarks in a new build folder, and keeps the
configuration of one that is there."""
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


@unittest.skipUnless(shutil.which("make"), "no make")
class Build(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        shutil.copy(os.path.join(ROOT, "Makefile"), self.folder)
        for name, text in (("tools/setup.sh", ""), ("bin/cmake", f'echo "$@" >> {self.folder}/calls\n')):
            path = os.path.join(self.folder, name)
            os.makedirs(os.path.dirname(path))
            with open(path, "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\n" + text)
            os.chmod(path, 0o755)

    def calls(self):
        env = {**os.environ, "PATH": os.path.join(self.folder, "bin") + ":" + os.environ["PATH"]}
        env.pop("MAKEFLAGS", None)
        subprocess.run(["make", "build", "CMAKE_ARGS=-DX=1"], cwd=self.folder, env=env, check=True,
                       stdout=subprocess.DEVNULL)
        with open(os.path.join(self.folder, "calls"), encoding="utf-8") as f:
            return f.read().splitlines()

    def test_new_folder(self):
        configure, build = self.calls()
        self.assertEqual("--preset release -DHOCKET_TESTS=OFF -DHOCKET_BENCH=OFF -DX=1", configure)
        self.assertTrue(build.startswith("--build build"), build)

    def test_configured_folder(self):
        os.mkdir(os.path.join(self.folder, "build"))
        with open(os.path.join(self.folder, "build", "CMakeCache.txt"), "w", encoding="utf-8"):
            pass
        configure, build = self.calls()
        self.assertEqual("-B build -DX=1", configure)
        self.assertTrue(build.startswith("--build build"), build)


if __name__ == "__main__":
    unittest.main()
