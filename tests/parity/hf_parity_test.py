#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=1800
"""Logits and gradients of random models, all families, against Hugging Face transformers, on one rank
and under plans (with HOCKET_LONG=1 each model under all of them, and 60 drawn models): see hf_parity.py."""
import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))

LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")

if __name__ == "__main__":
    if importlib.util.find_spec("transformers") is None:
        print("skipped: no transformers here (tools/setup.sh --tests)")
        sys.exit(77)
    command = [sys.executable, pathlib.Path(__file__).parent / "hf_parity.py", "--hocket", BUILD / "hocket"]
    runs = [command, [*command, "--some", "--random", "60"]] if LONG else [[*command, "--some"]]
    sys.exit(max(subprocess.call(run) for run in runs))
