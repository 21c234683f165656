#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tests hocket whatif: synthetic traces against brute force (tests/whatif/straggler_util.py), injected causes, broken
traces, and the straggler data against its published results, where HOCKET_STRAGGLER_DATA names its folder."""
import glob
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
import cli_util  # noqa: E402
import hostile_test  # noqa: E402

import straggler_util  # noqa: E402
from kineto_util import profile  # noqa: E402

JOBS = {
    "four stages": (dict(), dict()),
    "communication as launched": (dict(seed=2), dict(waiting=True)),
    "tensor ranks that are not in the trace": (dict(dp=4, micro_batches=8, seed=3), dict(tensor=4)),
    "threads without names": (dict(dp=6, pp=2, micro_batches=5, seed=4), dict(named=False)),
    "two chunks per rank": (dict(chunks=2, seed=5), dict()),
    "sums beside the backward pass": (dict(overlap=True, seed=6), dict()),
    "both, two stages": (dict(chunks=2, overlap=True, pp=2, seed=7), dict()),
    "no pipeline": (dict(pp=1, dp=3, seed=8), dict()),
    "one replica": (dict(pp=2, dp=1, seed=9), dict()),
    "no collections of garbage": (dict(pp=4, chunks=2, micro_batches=8, gc=False, overlap=True, seed=10,
                                       slow=lambda step, dp, pp, kind, mb: 1.7 if (dp, pp) == (1, 2) else 1),
                                  dict(waiting=True)),
}


def read(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def run(*words):
    return subprocess.run([cli_util.HOCKET, "whatif", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)


class Whatif(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name="trace.json"):
        return os.path.join(self.folder.name, name)

    def analyse(self, *words):
        done = run(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def same(self, found, expected, tolerance=1e-7):
        for key, value in expected.items():
            values = found[key]
            if isinstance(value, dict):
                self.assertEqual(sorted(values), sorted(value), key)
                values, value = [values[k] for k in sorted(value)], [value[k] for k in sorted(value)]
            one = not isinstance(value, list)
            for a, b in zip([values] if one else values, [value] if one else value, strict=True):
                self.assertLessEqual(abs(a - b), tolerance * max(abs(b), 0.1), f"{key}: {a}, expected {b}")

    def test_brute_force(self):
        for name, (job_options, trace_options) in JOBS.items():
            with self.subTest(name):
                job = straggler_util.Job(**job_options)
                straggler_util.write(self.path(), job.trace(**trace_options))
                self.same(self.analyse(self.path()), job.expected())

    def test_steps_that_lack_ops_are_dropped(self):
        job = straggler_util.Job(steps=5, dp=3, pp=2)
        first, last = job.steps[0], job.steps[-1]

        def there(event):
            at = event["args"].get("step")
            return not (at == first and event["pid"] == 1 and event["name"] == "optimizer" or
                        at == last and event["ts"] > 1e6 * 2 and event["tid"] > 10)
        events = [e for e in job.trace() if there(e)]
        straggler_util.write(self.path(), events)
        found = self.analyse(self.path())
        self.same(found, job.expected(job.steps[1:-1]))
        self.assertEqual(found["dropped"]["steps"], 2)
        self.assertIn(f"step {first} is not used: replica 1 lacks", found["dropped"]["notes"][0])
        # The text has the same content.
        text = run(self.path())
        self.assertEqual(text.returncode, 0)
        self.assertIn(f"step {last} is not used", text.stdout)

    def test_collections_that_are_noted_only_where_they_were(self):
        job = straggler_util.Job(steps=2, dp=2, pp=2)
        events = [e for e in job.trace() if e["name"] != "gc"]
        pause = next(e for e in job.trace() if e["name"] == "gc")
        straggler_util.write(self.path(), events + [{**pause, "dur": 5e5}])
        found = self.analyse(self.path())
        self.assertEqual(found["dropped"]["steps"], 0)
        self.assertIn("pauses", [c["cause"] for c in found["causes"]])

    def test_what_is_not_known_is_listed(self):
        job = straggler_util.Job(steps=2, dp=2, pp=2)
        events = job.trace()
        extra = [{**events[0], "name": "data-load"}, {"ph": "i", "name": "mark", "pid": 0, "tid": 0, "ts": 1},
                 {**events[0], "ts": float("nan")}, {**events[0], "args": {}}, 7]
        straggler_util.write(self.path(), extra + events)
        found = self.analyse(self.path())
        self.same(found, job.expected())
        notes = "\n".join(found["dropped"]["notes"])
        self.assertIn("1 event of unknown type 'data-load'", notes)
        self.assertIn("1 event of unknown phase 'i'", notes)
        self.assertIn("2 events without a step, or without a number for a time", notes)
        self.assertEqual(found["dropped"]["events"], 4)

    def test_cut_off(self):
        job = straggler_util.Job(steps=6, dp=2, pp=2)
        events = sorted(job.trace(), key=lambda e: e.get("ts", -1))
        text = json.dumps(events)
        with open(self.path(), "w", encoding="utf-8") as f:
            f.write(text[:len(text) * 2 // 3])
        found = self.analyse(self.path())
        self.assertIn("cut off", "\n".join(found["dropped"]["notes"]))
        kept = [s for s in job.steps if str(s) in found["S_step"]]
        self.assertIn(len(kept), (3, 4))
        self.same(found, job.expected(kept))
        # The same, compressed; and a file without a complete step.
        packed = gzip.compress(text.encode())
        with open(self.path("cut.json.gz"), "wb") as f:
            f.write(packed[:len(packed) * 2 // 3])
        self.assertIn("cut off", "\n".join(self.analyse(self.path("cut.json.gz"))["dropped"]["notes"]))
        with open(self.path("short.json"), "w", encoding="utf-8") as f:
            f.write(text[:40])
        self.assertEqual(run(self.path("short.json")).returncode, 2)

    def test_missing_ranks(self):
        job = straggler_util.Job(steps=2, dp=3, pp=3)
        events = [e for e in job.trace() if e["pid"] != 1]
        straggler_util.write(self.path(), events)
        found = self.analyse(self.path())
        self.assertEqual(len(found["S_dp"]), 2)
        self.assertIn("1 of data-parallel ranks 0 to 2 have no events", "\n".join(found["dropped"]["notes"]))
        events = [e for e in job.trace() if not (e["ph"] == "X" and 15 <= e["tid"] < 30)]
        straggler_util.write(self.path(), events)
        found = self.analyse(self.path())
        notes = "\n".join(found["dropped"]["notes"])
        self.assertIn("pipeline rank 1 has no events", notes)
        self.assertIn("have no other end", notes)

    def test_no_trace(self):
        for text in ("", "[]", "{}", "[1]", '[{"ph":"X"}]', '{"traceEvents":[]}', "no json", "[" * 5000):
            with open(self.path(), "w", encoding="utf-8") as f:
                f.write(text)
            for words in ([], ["--format", "straggler"], ["--format", "hocket"]):
                done = run(self.path(), *words)
                self.assertEqual(done.returncode, 2, f"{text[:20]!r} {words}: {done.stdout}{done.stderr}")
        self.assertEqual(run(self.path("absent.json")).returncode, 2)
        self.assertEqual(run(self.path(), "--format", "what").returncode, 2)

    def test_injected_trouble(self):
        """Each trouble at three levels: its cause is named, and the gain of the cure is within 5 points of the true
        gain. The true gain replays the same job without the trouble, or with a heavy stage's excess shared by all."""
        def job(slow):
            return straggler_util.Job(dp=4, pp=4, micro_batches=8, steps=2, seed=11, slow=slow)

        def slow_worker(level):
            return lambda step, dp, pp, kind, mb: level if (dp, pp) == (2, 1) and "compute" in kind else 1

        def last_stage(level):
            return lambda step, dp, pp, kind, mb: level if pp == 3 and "compute" in kind else 1

        def uneven(level):  # the same lengths in another order for every step and replica
            return lambda step, dp, pp, kind, mb: \
                1 + level * ((mb * 3 + step * 5 + dp * 7) % 8 / 3.5 - 1) if "compute" in kind else 1

        def pauses(level):
            return lambda step, dp, pp, kind, mb: \
                level if kind == "forward-compute" and (dp + pp * 3 + mb * 5 + step) % 41 == 0 else 1

        def slow_link(level):
            ends = ((1, "forward-send"), (2, "forward-recv"), (2, "backward-send"), (1, "backward-recv"))
            return lambda step, dp, pp, kind, mb: level if dp == 1 and (pp, kind) in ends else 1
        injected = {
            "slow worker": (slow_worker, (1.3, 1.6, 2.2), "dp 2 pp 1"),
            "last stage": (last_stage, (1.4, 1.8, 2.5), "stage 3"),
            "uneven sequences": (uneven, (0.4, 0.6, 0.9), ""),
            "pauses": (pauses, (6, 12, 20), ""),
            "slow link": (slow_link, (150, 250, 400), "dp 1 pp 1, dp 1 pp 2"),
        }
        def without(slow):
            well = job(slow)
            return sum(well.replay(well.duration)[0].values()) / len(well.steps)

        def shared(level):  # spreads the excess of the last of four stages
            return lambda step, dp, pp, kind, mb: (3 + level) / 4 if "compute" in kind else 1
        for cause, (slow, levels, where) in injected.items():
            for level in levels:
                with self.subTest(cause, level=level):
                    straggler_util.write(self.path(), job(slow(level)).trace(waiting=True))
                    found = self.analyse(self.path())
                    named = found["causes"][0]
                    self.assertEqual((found["cause"], named["where"]), (cause, where), [found["S"], found["causes"]])
                    cured = without(shared(level) if cause == "last stage" else lambda *where: 1)
                    self.assertLess(abs(named["gain"] - found["T"] / cured), 0.05, [level, named])

    def test_a_worker_that_is_a_stage_is_named_as_one(self):
        """Without replicas, the only worker of a stage cannot be told from its stage."""
        for pp, stage, cause in ((4, 3, "last stage"), (2, 1, "last stage"), (4, 1, "slow stage"), (3, 0, "slow stage")):
            for level in (1.6, 2, 2.6):
                with self.subTest(cause, pp=pp, stage=stage, level=level):
                    def slow(step, dp, pp, kind, mb, stage=stage, level=level):
                        return level if pp == stage and "compute" in kind else 1
                    job = straggler_util.Job(dp=1, pp=pp, micro_batches=8, steps=2, seed=12, slow=slow)
                    straggler_util.write(self.path(), job.trace())
                    found = self.analyse(self.path())
                    named = found["causes"][0]
                    self.assertEqual((found["cause"], named["where"]), (cause, f"stage {stage}"), found["causes"])
                    self.assertIn(f"all of it is dp 0 pp {stage}, which may be slow", named["evidence"])
                    self.assertEqual(max(range(pp), key=lambda i: found["S_stage"][i]), stage)

    def test_nothing_lost_worth_naming(self):
        """All ops of a kind are alike, except one that is 1 % longer: shares of so small a loss are meaningless."""
        job = straggler_util.Job(dp=2, pp=2, steps=2, seed=13)
        kinds = {op[1]: d for (_, _, op), d in job.duration.items()}
        for cell in job.duration:
            job.duration[cell] = kinds[cell[2][1]]
        job.duration[job.steps[0], 0, (0, "forward-compute", 0)] *= 1.01
        straggler_util.write(self.path(), job.trace())
        found = self.analyse(self.path())
        self.same(found, job.expected())
        self.assertLess(abs(found["S"] - 1), 0.01)
        self.assertIsNone(found["cause"])
        self.assertEqual({c["explains"] for c in found["causes"]}, {None})
        text = run(self.path()).stdout
        self.assertIn("less than 1 % of the time is lost\n", text)
        self.assertIn("cause     none: less than 1 % of a step is lost, nothing worth naming\n", text)
        self.assertNotIn("of the loss", text)
        page = run(self.path(), "--html", "-").stdout
        self.assertIn("Cause: none: less than 1 % of a step is lost, nothing worth naming.", page)
        self.assertNotIn("of the loss", page)

    def test_a_share_of_more_than_all_is_explained(self):
        """One of two replicas is slow: the ideal, the mean of both, is slower than the fast replica."""
        def slow(step, dp, pp, kind, mb):
            return 2 if dp == 1 and "compute" in kind else 1
        straggler_util.write(self.path(), straggler_util.Job(dp=2, pp=1, steps=2, seed=14, slow=slow).trace())
        found = self.analyse(self.path())
        self.assertEqual((found["cause"], found["causes"][0]["where"]), ("slow worker", "dp 1 pp 0"))
        self.assertGreater(found["causes"][0]["explains"], 1.5)
        for words in ([], ["--html", "-"]):
            self.assertIn("more than 100 % of the loss: the ideal, a mean or median, includes the slow ops",
                          run(self.path(), *words).stdout)

    def test_scales_and_surface(self):
        job = straggler_util.Job(dp=2, pp=2)
        straggler_util.write(self.path(), job.trace())
        words = ["--scale", "forward-compute=2", "--scale", "gradients=4"]
        found = self.analyse(self.path(), *words, "--surface")

        def time(factor):
            return sum(job.replay({c: d / factor(c[2][1]) for c, d in job.duration.items()})[0].values()) / 3
        expected = [time(lambda k: 2 if k == "forward-compute" else 1), time(lambda k: 4 if "grads" in k else 1),
                    time(lambda k: 2 if k == "forward-compute" else 4 if "grads" in k else 1)]
        self.same({"T": [s["T"] for s in found["scaled"]]}, {"T": expected[:2] + expected[2:]}, 1e-6)
        self.assertIn("no interval is known", found["scaled_note"])
        self.assertIn("no interval is known", run(self.path(), *words).stdout)
        surface = found["surface"]
        at = surface["T"][surface["bandwidth"].index(2)][surface["compression"].index(4)]
        alone = {"forward-compute", "backward-compute", "optimizer", "gc"}
        self.same({"T": at}, {"T": time(lambda k: 1 if k in alone else 8 if k in GRADIENTS else 2)}, 1e-6)

    def test_keys_are_documented(self):
        straggler_util.write(self.path(), straggler_util.Job().trace())
        found = self.analyse(self.path(), "--surface", "--scale", "compute=2")
        with open(os.path.join(cli_util.ROOT, "docs", "whatif.md"), encoding="utf-8") as f:
            documented = f.read().split("## JSON")[1]
        lists = ("workers", "causes", "scaled")
        keys = [*found, *found["surface"], *found["dropped"], *(k for name in lists for k in found[name][0])]
        for key in keys:
            self.assertIn(f"`{key}`", documented)

    def test_page(self):
        straggler_util.write(self.path(), straggler_util.Job().trace())
        page = self.path("page.html")
        done = run(self.path(), "--html", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(page, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("dp 1 pp 3", text)
        self.assertIn("<th>pp \\ dp</th>", text)
        self.assertIn(": 3 steps, 8 workers.", text)
        self.assertTrue(text.endswith("</html>\n"))

    def test_page_leaves_out_what_has_no_effect(self):
        """All workers are alike, except that forward passes of the second stage take a little longer."""
        job = straggler_util.Job(dp=2, pp=2, steps=1, seed=3)
        for cell in job.duration:
            job.duration[cell] = 1000 if "compute" in cell[2][1] else 10
            if cell[2][:2] == (1, "forward-compute"):
                job.duration[cell] = 1200
        straggler_util.write(self.path(), job.trace())
        found = self.analyse(self.path())
        self.assertTrue(1.01 < found["S"] < 1.1, found["S"])
        page = run(self.path(), "--html", "-").stdout
        self.assertIn("Cause: none: S is below 1.1.", page)
        self.assertNotIn("of the loss", page)
        self.assertNotIn("of the loss", run(self.path()).stdout)
        self.assertIn(": 1 step, 4 workers.", page)
        steps = page[page.index("<h2>Steps</h2>"):]
        self.assertIn("<th>forward-compute</th>", steps)
        self.assertNotIn("<th>backward-compute</th>", steps)
        self.assertRegex(steps, r"Left out: \d+ columns of 1.000 in every step.")

    def simulated(self, *words):
        """Writes the trace of a simulation of two stages and two replicas; returns the predicted step in seconds."""
        config = os.path.join(cli_util.ROOT, "configs", "quickstart.yaml")
        done = subprocess.run(
            [cli_util.HOCKET, "simulate", config, "--set", "plan.dp=2", "--set", "plan.pp=2", "--set",
             "plan.micro_batch=1", "--all-ranks", "--trace", self.path("own.json"), "--json", *words],
            cwd=cli_util.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)["step_s"]

    def test_simulated_ranks_stand_for_others(self):
        done = subprocess.run(
            [cli_util.HOCKET, "simulate", os.path.join(cli_util.ROOT, "configs", "quickstart.yaml"), "--set", "plan.dp=2",
             "--set", "plan.pp=2", "--set", "plan.micro_batch=1", "--cluster", "configs/clusters/h100-64x8.yaml",
             "--trace", self.path("own.json")],
            cwd=cli_util.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
        self.assertIn(" x2", done.stdout)
        found = self.analyse(self.path("own.json"))
        self.assertEqual(found["stand_for"],
                         "2 of 4 were simulated, each stands for all that do the same with the same kinds of others")
        self.assertEqual([note for note in found["dropped"]["notes"] if "ranks" in note], [])
        for words in ([], ["--html", "-"]):
            self.assertIn(found["stand_for"], run(self.path("own.json"), *words).stdout)

    def test_our_own_traces(self):
        seconds = self.simulated()
        found = self.analyse(self.path("own.json"))
        self.assertEqual((found["dp"], found["pp"], found["dependencies"]), (2, 2, "the program's"))
        self.same(found, {"T_measured": seconds}, 1e-3)
        self.assertLess(abs(found["T"] / found["T_measured"] - 1), 0.01)
        # Dependencies of ranks without recorded ones are inferred.
        trace = read(self.path("own.json"))
        for of in trace["waits"]:
            of["ranks"] = [rank for rank in of["ranks"] if rank != 1]
        straggler_util.write(self.path("partly.json"), trace)
        self.assertEqual(self.analyse(self.path("partly.json"))["dependencies"],
                         "the program's; of 1 of 4 ranks inferred from times")
        trace["waits"][0]["tasks"].append([0, 10**6])
        straggler_util.write(self.path("absent.json"), trace)
        self.assertRegex("\n".join(self.analyse(self.path("absent.json"))["dropped"]["notes"]),
                         "waits? of tasks that are not in the trace")
        del trace["waits"]
        straggler_util.write(self.path("older.json"), trace)
        self.assertEqual(self.analyse(self.path("older.json"))["dependencies"], "inferred from times")

    def test_what_the_program_says_is_replayed(self):
        """Task 1 depends only on task 0 of another lane, though task 2 had always ended before it."""
        def task(number, lane, start, duration):
            return {"ph": "X", "name": "t", "cat": f"t{number}", "pid": 1, "tid": lane, "ts": start, "dur": duration,
                    "args": {"task": number, "step": 0}}
        trace = {"otherData": {"schema": "hocket-trace-2", "ranks": 1}, "waits": [{"ranks": [0], "tasks": [[1, 0]]}],
                 "traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "rank 0", "rank": 0}},
                                 task(0, 1, 0, 100), task(2, 1, 100, 300), task(1, 2, 500, 200)]}
        straggler_util.write(self.path(), trace)
        self.same(self.analyse(self.path()), {"T": 400e-6, "T_measured": 700e-6})
        del trace["waits"]
        straggler_util.write(self.path(), trace)
        self.same(self.analyse(self.path()), {"T": 600e-6})
        trace["waits"] = [{"ranks": [0], "tasks": [[1, 0], [0, 1]]}]
        straggler_util.write(self.path(), trace)
        done = run(self.path())
        self.assertEqual(done.returncode, 2)
        self.assertIn("in a cycle", done.stderr)

    @staticmethod
    def own(ranks, steps, source="run"):
        """Returns a trace of Hocket's: per step, rank and task, the lane, begin and duration in us, op and other
        args."""
        events = [{"ph": "M", "name": "process_name", "pid": rank + 1, "args": {"name": f"rank {rank}", "rank": rank}}
                  for rank in range(ranks)]
        for step, tasks in enumerate(steps):
            for rank, of_rank in enumerate(tasks):
                for number, (lane, start, duration, op, args) in enumerate(of_rank):
                    events.append({"ph": "X", "name": op, "cat": op, "pid": rank + 1, "tid": lane,
                                   "ts": step * 1e5 + start, "dur": duration,
                                   "args": {"task": number, "step": step, **args}})
        return {"otherData": {"schema": "hocket-trace-2", "source": source, "ranks": ranks}, "waits": [],
                "traceEvents": events}

    def test_a_rank_that_begins_later(self):
        """Rank 1 begins 150 us later, and rank 0 waits for it in an all-reduce of both stages: a host start, not a slow
        all-reduce."""
        def tasks(rank, begin):
            of = {"stage": rank}
            return [(1, begin, 100, "linear", {"phase": "forward", "micro_batch": 0, **of}),
                    (1, begin + 100, 250 - begin, "all_reduce", {"phase": "grad", "group": 3, "bytes": 8, **of})]
        steps = [[tasks(0, 0), tasks(1, 150)]]
        straggler_util.write(self.path(), self.own(2, steps))
        found = self.analyse(self.path(), "--scale", "host start@rank=1=1e9")
        self.same(found, {"T": 350e-6, "T_measured": 350e-6, "T_ideal": (75 + 100 + 100) * 1e-6})
        self.same({"T": found["scaled"][0]["T"]}, {"T": 200e-6}, 1e-6)
        # A simulated rank begins with its first task.
        straggler_util.write(self.path(), self.own(2, steps, "simulation"))
        self.same(self.analyse(self.path()), {"T": 200e-6})

    def test_pauses_beside_passes(self):
        """A rank stops for 1 ms in a pass, in the optimizer and in an all-reduce: all of them are cured."""
        def step(in_pass, in_sum, in_optimizer):
            ranks = []
            for rank in range(2):
                lengths = [("linear", 100 + (20 + in_pass) * rank, {"phase": "forward", "micro_batch": 0}),
                           ("linear", 200, {"phase": "backward", "micro_batch": 0}),
                           ("all_reduce", 50 + in_sum + (20 + in_pass) * (1 - rank), {"phase": "grad", "group": 3, "bytes": 8}),
                           ("adamw", 30 + in_optimizer * rank, {"phase": "optimizer"})]
                begin, tasks = 0, []
                for op, duration, args in lengths:
                    tasks.append((1, begin, duration, op, args))
                    begin += duration
                ranks.append(tasks)
            return ranks
        steps = [step(1000 * (n == 3), 1000 * (n == 5), 1000 * (n == 7)) for n in range(10)]
        straggler_util.write(self.path(), self.own(2, steps))
        found = self.analyse(self.path())
        self.same(found, {"T": (400 + 300) * 1e-6})
        self.assertEqual(found["cause"], "pauses")
        self.same({"T": found["causes"][0]["T_fixed"]}, {"T": 400e-6})
        self.assertRegex(found["causes"][0]["evidence"], "1 of 40 passes .* 3 other ops longer by the same time")

    def steps_of_replicas(self, steps, ranks=4, micro_batches=4, paused=lambda step, rank, place: 0):
        """Analyses a trace of Hocket's: passes of 100 and 200 us, an all-reduce of 50, two optimizer tasks of 30.

        `paused` adds microseconds to a step, rank and place: "forward 2", "sum", "adamw 0", or "gap" before "adamw 0"."""
        trace = []
        for step in range(steps):
            tasks, ready = [], []
            for rank in range(ranks):
                begin, of_rank = 0, []
                for micro_batch in range(micro_batches):
                    for phase, usual in (("forward", 100), ("backward", 200)):
                        takes = usual + paused(step, rank, f"{phase} {micro_batch}")
                        of_rank.append((1, begin, takes, "linear", {"phase": phase, "micro_batch": micro_batch}))
                        begin += takes
                tasks.append(of_rank)
                ready.append(begin)
            end = max(ready) + 50 + max(paused(step, rank, "sum") for rank in range(ranks))
            for rank, of_rank in enumerate(tasks):
                of_rank.append((1, ready[rank], end - ready[rank], "all_reduce", {"phase": "grad", "group": 3, "bytes": 8}))
                begin = end + paused(step, rank, "gap")
                for number in range(2):
                    takes = 30 + paused(step, rank, f"adamw {number}")
                    of_rank.append((1, begin, takes, "adamw", {"phase": "optimizer"}))
                    begin += takes
            trace.append(tasks)
        straggler_util.write(self.path(), self.own(ranks, trace))
        return self.analyse(self.path())

    def test_pauses_in_step_with_the_steps(self):
        """A pause at the same place in every step, or in every other one, is found by comparison with similar ops."""
        def at(rank, place, every=1):
            return lambda step, r, p: 1000 if (r, p) == (rank, place) and step % every == 0 else 0
        clean = 4 * 300 + 50 + 60
        cases = {  # name -> (how the steps are made, the mean step)
            "a pass, every step": (dict(paused=at(1, "forward 2")), clean + 1000),
            "a pass, every step, one rank": (dict(ranks=1, paused=at(0, "forward 2")), clean + 1000),
            "a pass, every other step, one rank": (dict(ranks=1, paused=at(0, "backward 1", 2)), clean + 500),
            "one of two passes": (dict(micro_batches=2, paused=at(1, "forward 1")), clean - 600 + 1000),
            "the only pass, every other step": (dict(micro_batches=1, paused=at(1, "forward 0", 2)), clean - 900 + 500),
            "the only pass, every step": (dict(micro_batches=1, paused=at(1, "forward 0")), clean - 900 + 1000),
            "the optimizer, every step": (dict(paused=at(0, "adamw 0")), clean + 1000),
            "the optimizer, every other step": (dict(paused=at(0, "adamw 1", 2)), clean + 500),
            "a sum, every other step": (dict(paused=at(2, "sum", 2)), clean + 500),
            "between ops, every step": (dict(paused=at(0, "gap")), clean + 1000),
            "between ops, every other step": (dict(paused=at(0, "gap", 2)), clean + 500),
        }
        for name, (options, took) in cases.items():
            with self.subTest(name):
                found = self.steps_of_replicas(8, **options)
                named = found["causes"][0]
                usual = clean - 300 * (4 - options.get("micro_batches", 4))
                self.assertEqual(found["cause"], "pauses", [found["S"], found["causes"]])
                self.same(found, {"T_measured": took * 1e-6})
                self.same(named, {"T_fixed": usual * 1e-6, "gain": took / usual}, 1e-6)
                self.assertRegex(named["evidence"], "in step with the steps: .* of rank . in [48] of 8")
                text = run(self.path()).stdout
                time = f"{usual} us" if usual < 1000 else f"{usual / 1e3:.3g} ms"
                self.assertIn(f"cause     pauses: without it {time} a step", text)
                self.assertRegex(text, rf"as fast \(interval {named['gain'] - 0.06:.2f} to {named['gain'] + 0.06:.2f}: ")
                self.assertEqual("S does not show it" in text, found["S"] < 1.1)

    def test_pauses_that_cannot_be_told(self):
        """The same all-reduce, or the optimizer of all ranks, is slow in every step: the report says that no comparison
        is possible."""
        for name, ranks in (("sum", (0,)), ("adamw 0", (0, 1, 2, 3))):
            found = self.steps_of_replicas(
                8, paused=lambda step, rank, place, name=name, ranks=ranks: 1000 if place == name and rank in ranks else 0)
            self.assertIsNone(found["cause"])
            self.assertLess(abs(found["S"] - 1), 1e-6)
            self.assertIn("not seen: pauses that hit the same transfer, or the same op of all workers that do the same, "
                          "in every step", run(self.path()).stdout)

    def test_what_only_looks_like_pauses_in_step(self):
        """A slow rank, an optimizer with more work, and long sequences at the same place are not mistaken for
        pauses."""
        found = self.steps_of_replicas(8, paused=lambda step, rank, place: {"f": 100, "b": 200, "a": 30}.get(place[0], 0)
                                       if rank == 1 else 0)
        self.assertEqual((found["cause"], found["causes"][0]["where"]), ("slow worker", "rank 1"))
        found = self.steps_of_replicas(8, paused=lambda step, rank, place: 500 if rank == 1 and place[0] == "a" else 0)
        self.assertEqual((found["cause"], found["causes"][0]["where"]), ("slow worker", "rank 1"))
        found = self.steps_of_replicas(8, paused=lambda step, rank, place: 500 if rank == 1 and place[-1] in "23" else 0)
        self.assertNotEqual(found["cause"], "pauses")

    def test_a_slow_link_slows_what_crosses_it(self):
        """The last of three links between four stages takes 1,000 us, not 10, and an all-reduce over all stages
        2,000."""
        begin, ranks = 0, [[], [], [], []]
        for rank, tasks in enumerate(ranks):
            of = {"stage": rank, "micro_batch": 0, "phase": "forward"}
            if rank > 0:
                takes = 1000 if rank == 3 else 10
                message = {"bytes": 64, "flow": rank, **of}
                ranks[rank - 1].append((2, begin, 1, "send", {**message, "stage": rank - 1, "end": "out"}))
                tasks.append((3, begin, takes, "recv", {**message, "end": "in"}))
                begin += takes
            tasks.append((1, begin, 100, "linear", of))
            begin += 100
        for rank, tasks in enumerate(ranks):
            tasks.append((1, begin, 2000, "all_reduce", {"phase": "grad", "group": 3, "bytes": 8, "stage": rank}))
        trace = self.own(4, [ranks], "simulation")
        # A pass depends on its message, a send on its pass: tasks are recv, pass, send, all_reduce.
        trace["waits"] = [{"ranks": [0], "tasks": [[1, 0]]}, {"ranks": [1, 2], "tasks": [[1, 0], [2, 1]]},
                          {"ranks": [3], "tasks": [[1, 0]]}]
        straggler_util.write(self.path(), trace)
        found = self.analyse(self.path())
        self.same(found, {"T": (400 + 1020 + 2000) * 1e-6})
        self.assertEqual((found["cause"], found["causes"][0]["where"]), ("slow link", "rank 2, rank 3"))
        self.same({"T": found["causes"][0]["T_fixed"]}, {"T": (400 + 30 + 20) * 1e-6})

    def test_chakra(self):
        # Two ranks: a product, then a common all-reduce; the first then sends a message that the second waits for.
        def node(number, name, kind, waits, micros, **attributes):
            attr = [{"name": k, "int32Val": v} for k, v in attributes.items()]
            return {"id": str(number), "name": name, "type": kind, "dataDeps": [str(w) for w in waits],
                    "durationMicros": str(micros), "attr": attr}
        ranks = [[node(1, "mm", "COMP_NODE", [], 100), node(2, "all_reduce", "COMM_COLL_NODE", [1], 50),
                  node(3, "send", "COMM_SEND_NODE", [2], 10, comm_dst=1, comm_tag=4)],
                 [node(1, "mm", "COMP_NODE", [], 300), node(2, "all_reduce", "COMM_COLL_NODE", [1], 50),
                  node(3, "recv", "COMM_RECV_NODE", [], 20, comm_src=0, comm_tag=4),
                  node(4, "mm", "COMP_NODE", [3, 9], 40)]]
        with open(self.path("0.json"), "w", encoding="utf-8") as f:
            f.write("\n".join(json.dumps(n) for n in ranks[0]))
        straggler_util.write(self.path("1.json"), {"schema": "1.1", "nodes": ranks[1]})
        found = self.analyse(self.path("0.json"), self.path("1.json"))
        self.same(found, {"T": (300 + 50 + 20 + 40) * 1e-6, "T_ideal": (200 + 50 + 20 + 40) * 1e-6})
        self.assertIn("1 wait for nodes that are not in the files", "\n".join(found["dropped"]["notes"]))
        for n in ranks[1]:
            del n["durationMicros"]
        straggler_util.write(self.path("1.json"), {"schema": "1.1", "nodes": ranks[1]})
        self.assertEqual(run(self.path("1.json")).returncode, 2)

    def samples(self):
        """Returns, by format, the files of a trace, as bytes."""
        self.simulated("--set", "train.global_batch=4")
        nodes = [{"id": i, "name": f"n{i}", "type": "COMM_COLL_NODE" if i % 3 == 2 else "COMP_NODE",
                  "data_deps": [i - 1] if i else [], "start_time_micros": 10 * i, "duration_micros": 9,
                  "attr": [{"name": "pg_name", "stringVal": "0"}]} for i in range(12)]
        files = {"straggler": [straggler_util.Job(steps=2, dp=2, pp=2, micro_batches=2).trace()],
                 "hocket": [read(self.path("own.json"))],
                 "kineto": [profile(0, 0, 100), profile(1, 5000, 200)],
                 "chakra": [{"nodes": nodes}, {"nodes": nodes}]}
        return {name: [json.dumps(document).encode() for document in documents] for name, documents in files.items()}

    def test_damage_of_every_kind_to_every_format(self):
        """Flipped, cut and doubled bytes and values of other types give a report as valid JSON, or exit code 2 with the
        file's name."""
        rounds = 25 * int(os.environ.get("HOSTILE_ROUNDS", "1"))
        for name, files in self.samples().items():
            rng = random.Random(f"{hostile_test.SEED} {name}")
            for number in range(rounds):
                paths, broken = [], rng.randrange(len(files))
                for i, data in enumerate(files):
                    if i == broken and number % 2 == 0:
                        data = hostile_test.damage(data, rng)
                    elif i == broken:
                        data = json.dumps(hostile_test.retype(json.loads(data), rng)).encode()
                    if number % 5 == 4:
                        data = gzip.compress(data)
                        data = hostile_test.damage(data, rng) if i == broken else data
                    paths.append(self.path(f"{name}{i}.json"))
                    with open(paths[-1], "wb") as f:
                        f.write(data)
                for words in ([], ["--format", name]):
                    done = run(*paths, *words, "--json", "--surface")
                    case = f"{name} {number} {words}: {done.stderr[-500:]}"
                    self.assertIn(done.returncode, (0, 2), case)
                    for word in hostile_test.FORBIDDEN:
                        self.assertNotIn(word, done.stderr, case)
                    if done.returncode == 0:
                        def constant(text, case=case):
                            self.fail(f"{text} in {case}")
                        json.loads(done.stdout, parse_constant=constant)
                    else:
                        self.assertRegex(done.stderr, f"{name}.\\.json|hocket whatif", case)

    def test_straggler_data(self):
        folder = os.environ.get("HOCKET_STRAGGLER_DATA", "")
        if not folder:
            self.skipTest("HOCKET_STRAGGLER_DATA does not name the folder of the straggler data")
        traces = glob.glob(os.path.join(folder, "timeline-*.json*"))
        self.assertTrue(traces, folder)
        for trace in traces:
            name = os.path.basename(trace).split(".")[0].split("-", 1)[1]
            result, of_stage, of_workers = (read(os.path.join(folder, f"{kind}-{name}.json"))
                                            for kind in ("result", "ms", "mw"))
            with self.subTest(name):
                found = self.analyse(trace)
                by_stage, by_dp = (result[f"blocking_decompose_by_{k}"] for k in ("stage", "dp_rank"))
                self.same(found, {
                    "T": of_stage["tori"], "T_ideal": of_stage["tideal"], "S": result["blocking_slowdown"],
                    "S_step": result["blocking_step_slowdown"], "T_step": result["step_t_nodelay"],
                    "S_stage": [by_stage[str(i)] for i in range(len(by_stage))],
                    "S_dp": [by_dp[str(i)] for i in range(len(by_dp))],
                    "M_S": of_stage["Ms"], "M_W": of_workers["Mw"]}, 1e-4)


GRADIENTS = {"grads-reduce-scatter", "layernorm-grads-all-reduce", "embedding-grads-all-reduce",
             "separate-grads-all-reduce"}

if __name__ == "__main__":
    unittest.main()
