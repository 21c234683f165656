#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""cast gives PyTorch's result for all pairs of element types, over numbers in the range of both types, with ties and
subnormal numbers of the small types. Beyond the range ours saturates, while PyTorch's result depends on the processor.
The kernels run in hocket_tests on a file that is written here."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))
SEED = 5
TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
         "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "i32": torch.int32,
         "i64": torch.int64, "i8": torch.int8, "u8": torch.uint8}
LARGEST = {"f8_e4m3": 448, "f8_e5m2": 57344, "f16": 65504, "i8": 127, "u8": 255}
SMALL = ("bf16", "f16", "f8_e4m3", "f8_e5m2")


def codes(name):
    """Returns all finite numbers of a small type, as f64."""
    dtype = TYPES[name]
    bits = torch.arange(0, 256 if "f8" in name else 65536, dtype=torch.int64)
    raw = bits.to(torch.uint8) if "f8" in name else bits.to(torch.int32).to(torch.int16)
    values = raw.view(dtype).to(torch.float64)
    return values[torch.isfinite(values)]


def numbers(source, target, generator):
    """Returns numbers of `source` to be cast: normal ones of many sizes, and for a small target its own and the
    midpoints between them."""
    some = torch.randn(4000, generator=generator, dtype=torch.float64)
    some *= 2.0 ** torch.randint(-12, 16, (4000,), generator=generator)
    parts = [some, torch.tensor([0.0, -0.0, 1.0, 0.5, 1.5, 2.5])]
    if target in SMALL and source in ("f32", "f64"):
        own = codes(target).sort().values
        parts += [own, (own[1:] + own[:-1]) / 2]
    values = torch.cat([p.to(torch.float64) for p in parts])
    if source in SMALL:
        values = torch.cat([values, codes(source)])
    # PyTorch rounds f64 twice, through f32, so f64 sources have numbers of f32.
    if source == "f64" and target in SMALL:
        values = values.to(torch.float32).to(torch.float64)
    most = min(LARGEST.get(source, 2.0 ** 30), LARGEST.get(target, 2.0 ** 30))
    low = 0 if "u8" in (source, target) else -most
    made = values[(values >= low) & (values <= most)].to(TYPES[source])
    rounded = made.to(torch.float64)
    return made[(rounded >= low) & (rounded <= most)]


class CastParity(unittest.TestCase):
    def test_all_pairs(self):
        generator = torch.Generator().manual_seed(SEED)
        print("seed", SEED)
        tensors = {}
        for source in TYPES:
            for target, dtype in TYPES.items():
                values = numbers(source, target, generator)
                self.assertGreater(len(values), 200, f"{source} to {target}")
                tensors[f"{source}.{target}.in"] = values
                tensors[f"{source}.{target}.out"] = values.to(dtype, copy=True)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "casts.safetensors")
            save_file(tensors, path)
            done = subprocess.run([BUILD / "hocket_tests", "--gtest_filter=Cast.EqualsPyTorch"], text=True,
                                  env={**os.environ, "HOCKET_CAST_FILE": path}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("100 pairs compared with PyTorch", done.stdout)


if __name__ == "__main__":
    sys.exit(unittest.main())
