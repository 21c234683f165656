#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=600
"""Logits and gradients of random models, all families, against Hugging Face transformers, on one rank
and under plans (with HOCKET_LONG=1 each model under all of them): see hf_parity.py."""
import os, pathlib, subprocess, sys

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))

if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    sys.exit(subprocess.call([sys.executable, here / "hf_parity.py", "--hocket", BUILD / "hocket",
                              *([] if os.environ.get("HOCKET_LONG", "0") not in ("", "0") else ["--some"])]))
