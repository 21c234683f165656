#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=2400
"""Losses of 20 AdamW steps of a model of every family, against Hugging Face transformers, on one rank and under one plan
(with HOCKET_LONG=1 all models, each under all plans): see train_parity.py."""
import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")

if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    if importlib.util.find_spec("transformers") is None:
        print("skipped: no transformers here (tools/setup.sh --tests)")
        sys.exit(77)
    sys.exit(subprocess.call([sys.executable, here / "train_parity.py", "--hocket", BUILD / "hocket",
                              *([] if LONG else ["--some"])]))
