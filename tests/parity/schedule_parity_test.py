#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Pipeline schedules match torch.distributed.pipelining cell for cell (idle cells aside), and PyTorch's own schedule
files, with transfers, reductions and sharding, can be read."""
import csv
import io
import os
import pathlib
import re
import subprocess
import tempfile
import types
import unittest

try:
    import torch
    from torch.distributed.pipelining import schedules
except ImportError as error:
    raise unittest.SkipTest(f"no torch.distributed.pipelining here: {error}")

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
ACTION = re.compile(r"\d+[FBIW]\d+|\(\d+[FBIW]\d+;\d+[FBIW]\d+\)OVERLAP_F_B")
HOCKET = str(pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket")


class Notes(types.SimpleNamespace):
    """A stage without a model or a peer, which records the actions that a schedule runs on it."""

    def forward_one_chunk(self, index, *_, **__):
        self.cells.append(f"{self.stage_index}F{index}")

    def backward_one_chunk(self, index, *_, **__):
        self.cells.append(f"{self.stage_index}B{index}")

    def __getattr__(self, name):
        if name.endswith("_ops"):
            return lambda index: []
        return lambda *_, **__: None


def what_it_runs(name, rank, ranks, micro_batches):
    """Returns the cells of one rank, one stage each, in the order in which the schedule of this class runs them."""
    stage = Notes(cells=[], group_size=ranks, group_rank=rank, num_stages=ranks, has_backward=True, stage_index=rank,
                  is_first=rank == 0, is_last=rank == ranks - 1, submod=torch.nn.Identity())
    schedule = getattr(schedules, name)(stage, micro_batches)
    schedule._initialize_stage = lambda *words: None
    schedule._step_microbatches()
    return stage.cells


def of_pytorch(name, ranks, chunks, micro_batches):
    """Returns the schedule object of this class: made as rank 0 makes it, from stages without a model."""
    stages = [types.SimpleNamespace(group_size=ranks, group_rank=0, num_stages=ranks * chunks, has_backward=True,
                                    stage_index=index, is_first=index == 0, is_last=index == ranks * chunks - 1,
                                    submod=torch.nn.Identity(), stage_index_to_group_rank=None)
              for index in range(chunks)]
    return getattr(schedules, name)(stages, micro_batches)


def cells(rows):
    return [[str(cell) for cell in row if cell is not None and str(cell)] for row in rows]


def hocket(*words):
    ran = subprocess.run([HOCKET, "simulate", *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def ours(name, ranks, chunks, micro_batches):
    text = hocket("schedule", name, "--ranks", str(ranks), "--chunks", str(chunks), "--micro-batches",
                  str(micro_batches), "--out", "-")
    return cells(csv.reader(io.StringIO(text)))


class SchedulesAreThoseOfPyTorch(unittest.TestCase):
    def compare(self, name, theirs, shapes):
        for shape in shapes:
            with self.subTest(schedule=name, shape=shape):
                expected = of_pytorch(theirs, *shape).pipeline_order
                self.assertEqual(ours(name, *shape), cells(expected[rank] for rank in range(shape[0])))

    def compare_single(self, name, theirs):
        """Compares a schedule with one stage per rank. Such a class has no table of its cells, so recording stages run
        it."""
        for ranks, micro_batches in [(1, 1), (1, 4), (2, 2), (2, 7), (3, 4), (4, 4), (4, 9), (8, 16)]:
            with self.subTest(schedule=name, shape=(ranks, micro_batches)):
                expected = [what_it_runs(theirs, rank, ranks, micro_batches) for rank in range(ranks)]
                self.assertEqual(ours(name, ranks, 1, micro_batches), expected)

    def test_gpipe(self):
        self.compare_single("gpipe", "ScheduleGPipe")

    def test_1f1b(self):
        self.compare_single("1f1b", "Schedule1F1B")

    def test_interleaved(self):
        self.compare("interleaved", "ScheduleInterleaved1F1B", [(2, 2, 4), (3, 3, 6), (4, 2, 3), (4, 2, 8)])

    def test_zb_h1(self):
        self.compare("zb-h1", "ScheduleInterleavedZeroBubble",
                     [(1, 1, 3), (2, 1, 2), (2, 1, 8), (4, 1, 3), (4, 1, 8), (8, 1, 16), (4, 2, 8), (3, 3, 6)])

    def test_zb_v(self):
        self.compare("zb-v", "ScheduleZBVZeroBubble",
                     [(1, 2, 1), (2, 2, 1), (2, 2, 4), (3, 2, 5), (4, 2, 3), (4, 2, 8), (8, 2, 24)])

    def test_dualpipev(self):
        self.compare("dualpipev", "ScheduleDualPipeV",
                     [(1, 2, 2), (2, 2, 4), (2, 2, 9), (3, 2, 6), (4, 2, 8), (5, 2, 13), (8, 2, 24)])


class SchedulesOfPyTorchAreRead(unittest.TestCase):
    def test_with_and_without_transfers(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, chunks in [("ScheduleInterleaved1F1B", 2), ("ScheduleInterleavedZeroBubble", 1),
                                 ("ScheduleInterleavedZeroBubble", 2), ("ScheduleZBVZeroBubble", 2),
                                 ("ScheduleDualPipeV", 2), ("ScheduleLoopedBFS", 2)]:
                schedule = of_pytorch(name, 4, chunks, 8)
                for form in ("compute_only", "compute_comms"):
                    with self.subTest(schedule=name, chunks=chunks, form=form):
                        path = os.path.join(folder, f"{name}-{chunks}-{form}.csv")
                        schedule._dump_csv(path, form)
                        with open(path, encoding="utf-8") as f:
                            text = f.read()
                        self.assertEqual(form == "compute_comms", "SEND_F" in text)
                        actions = [[cell for cell in row if ACTION.fullmatch(cell)]
                                   for row in cells(csv.reader(io.StringIO(text)))]
                        read = cells(csv.reader(io.StringIO(hocket("schedule", path, "--out", "-"))))
                        self.assertEqual(actions, read)


if __name__ == "__main__":
    unittest.main()
