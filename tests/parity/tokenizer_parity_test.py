#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
"""Ids, round trips and training of byte-level BPE against Hugging Face tokenizers, on a part of our sources (with
HOCKET_LONG=1 on all of them): see tokenizer_parity.py."""
import os, pathlib, subprocess, sys

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))

if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    sys.exit(subprocess.call([sys.executable, here / "tokenizer_parity.py", "--hocket", BUILD / "hocket",
                              "--strings", "300", "--seed", "7", ROOT / "src" / ("" if LONG else "planner")]))
