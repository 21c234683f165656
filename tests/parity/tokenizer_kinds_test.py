#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""Ids and texts of every kind of tokenizer against Hugging Face tokenizers, on a little text (with HOCKET_LONG=1 on all of
our sources): see tokenizer_kinds.py."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))

if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    sys.exit(subprocess.call([sys.executable, here / "tokenizer_kinds.py", "--hocket", BUILD / "hocket", "--strings",
                              "100000" if LONG else "60", "--seed", "7", ROOT / ("src" if LONG else "src/autodiff")]))
