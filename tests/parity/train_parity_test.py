#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=900
"""Losses of 20 steps of every family against Hugging Face transformers, and the files after them (with HOCKET_LONG=1 of
all models under all plans): see train_parity.py."""
import os, pathlib, subprocess, sys

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))

if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    sys.exit(subprocess.call([sys.executable, here / "train_parity.py", "--hocket", BUILD / "hocket",
                              *([] if os.environ.get("HOCKET_LONG", "0") not in ("", "0") else ["--some"])]))
