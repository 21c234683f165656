#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tests hocket whatif on traces whose ranks do not fit together: clock offsets, lost records, missing workers and
files, impossible durations. The analysis equals that of the whole trace or is withheld, with a note."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
import cli_util  # noqa: E402

import straggler_util  # noqa: E402
from chakra_util import node, trace  # noqa: E402


def run(*words, **options):
    return subprocess.run([cli_util.HOCKET, "whatif", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False, **options)


class Ranks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name="trace.json"):
        return os.path.join(self.folder.name, name)

    def write(self, document, name="trace.json"):
        return straggler_util.write(self.path(name), document)

    def analyse(self, *words):
        done = run(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def notes(self, found):
        return "\n".join(found["dropped"]["notes"])

    def alike(self, found, expected, tolerance=1e-6):
        for key in ("T", "T_ideal", "S", "T_measured"):
            self.assertLess(abs(found[key] / expected[key] - 1), tolerance, [key, found[key], expected[key]])
        self.assertEqual(found["cause"], expected["cause"])


class Chakra(Ranks):
    def nodes(self, rank, clock=0, sums=20, starts=True):
        """Returns products and all-reduces of four ranks in turn; rank 3 is the slowest, and all-reduces end
        together."""
        nodes, begin = [], 1000 + clock
        slowest = 100 + 30 + 100
        for k in range(sums):
            work = 100 + 10 * rank
            at = [begin, begin + work, begin + work + 100] if starts else [0, 0, 0]
            waited = slowest - work - 100 if starts else 0
            nodes += [node(3 * k, "mm", "COMP_NODE", [3 * k - 1] if k else [], work, at[0]),
                      node(3 * k + 1, "mm2", "COMP_NODE", [3 * k], 100, at[1]),
                      node(3 * k + 2, "sum", "COMM_COLL_NODE", [3 * k + 1], 50 + waited, at[2], pg_name=("string", "0"))]
            begin += slowest + 50
        return nodes

    def files(self, **of_last):
        for rank in range(4):
            with open(self.path(f"{rank}.et"), "wb") as f:
                f.write(trace(self.nodes(rank, **(of_last if rank == 3 else {}))))
        return [self.path(f"{rank}.et") for rank in range(4)]

    def test_clocks(self):
        whole = self.analyse(*self.files())
        self.assertAlmostEqual(whole["T"], 20 * 280e-6, places=12)
        self.assertNotIn("clocks", self.notes(whole))
        for micros, shown in ((2000, "2 ms"), (-700, "700 us"), (20000, "20 ms"), (10**6, "1 s"), (10**9, "16")):
            found = self.analyse(*self.files(clock=micros))
            self.alike(found, whole)
            self.assertRegex(self.notes(found), f"clocks of ranks differed by up to {shown}.* 0 still have")

    def test_ranks_that_only_exchange_messages(self):
        """Two ranks exchange messages in both directions; the second rank's clock is 5 ms slow."""
        def rank(number, clock):
            nodes, begin = [], 10000 + clock
            for k in range(10):
                there, back = (number == 0), (number == 1)
                nodes += [node(3 * k, "mm", "COMP_NODE", [3 * k - 1] if k else [], 100, begin + 150 * number),
                          node(3 * k + 1, "m", "COMM_SEND_NODE" if there else "COMM_RECV_NODE", [3 * k] if there else [],
                               50, begin + 100, comm_src=("int32", 0), comm_dst=("int32", 1), comm_tag=("int32", 1)),
                          node(3 * k + 2, "b", "COMM_SEND_NODE" if back else "COMM_RECV_NODE",
                               [3 * k] if back else [3 * k + 1], 50, begin + 250, comm_src=("int32", 1),
                               comm_dst=("int32", 0), comm_tag=("int32", 2))]
                if back:  # the product waits for the message
                    nodes[-3] = node(3 * k, "mm", "COMP_NODE", [3 * k + 1], 100, begin + 150)
                begin += 300
            return trace(nodes)
        found = {}
        for clock in (0, -5000):
            for number in range(2):
                with open(self.path(f"{number}.et"), "wb") as f:
                    f.write(rank(number, clock * number))
            found[clock] = self.analyse(self.path("0.et"), self.path("1.et"))
        self.alike(found[-5000], found[0])
        self.assertIn("clocks of ranks differed by up to 5 ms", self.notes(found[-5000]))
        self.assertNotIn("clocks", self.notes(found[0]))

    def test_clocks_that_no_offset_sets(self):
        rng = random.Random(5)
        for rank in range(4):
            nodes = []
            for k, base in enumerate(range(0, 20 * 300, 300)):
                at = 10**6 + base + rng.randrange(-4000, 4000) * (rank == 3)
                nodes.append(node(2 * k, "mm", "COMP_NODE", [2 * k - 1] if k else [], 100, at))
                nodes.append(node(2 * k + 1, "sum", "COMM_COLL_NODE", [2 * k], 50, at + 100, pg_name=("string", "0")))
            with open(self.path(f"{rank}.et"), "wb") as f:
                f.write(trace(nodes))
        paths = [self.path(f"{rank}.et") for rank in range(4)]
        found = self.analyse(*paths)
        self.assertIsNone(found["cause"])
        self.assertRegex(self.notes(found), "clocks apart: .* no cause is named")
        self.assertIn("cause     none", run(*paths).stdout)

    def test_lost_nodes(self):
        """A stretch of a rank's file is lost: its other all-reduces still match those of their groups."""
        whole = self.analyse(*self.files())
        for first, count in ((18, 4), (3, 1), (5, 30), (30, 30)):  # the last: the rank's second half
            paths = self.files()
            kept = [n for k, n in enumerate(self.nodes(3)) if not first <= k < first + count]
            with open(paths[3], "wb") as f:
                f.write(trace(kept))
            found = self.analyse(*paths)
            lost = sum(k % 3 == 2 for k in range(first, first + count))
            self.assertLess(abs(found["T_ideal"] / whole["T_ideal"] - 1), 0.05, (first, count))
            self.assertLess(abs(found["S"] / whole["S"] - 1), 0.07, (first, count))
            self.assertNotEqual(found["cause"], "slow link")
            if lost > 0:
                self.assertIn(f"the other members of {lost} collective", self.notes(found))
            # Without starts only their order is known, which is reported.
        paths = [self.path(f"s{rank}.et") for rank in range(4)]
        for rank, path in enumerate(paths):
            with open(path, "wb") as f:
                f.write(trace(self.nodes(rank, starts=False, sums=20 - 10 * (rank == 3))))
        self.assertRegex(self.notes(self.analyse(*paths)), "members of 10 collectives.*where starts do not match")

    def test_starts_of_some_files_only(self):
        paths = self.files()
        without = self.analyse(*self.files(starts=False))
        for rank in range(3):
            with open(paths[rank], "wb") as f:
                f.write(trace(self.nodes(rank, starts=False)))
        with open(paths[3], "wb") as f:
            f.write(trace(self.nodes(3)))
        found = self.analyse(*paths)
        self.assertAlmostEqual(found["T"], 20 * 280e-6, places=12)
        self.assertAlmostEqual(without["T"], 20 * 280e-6 , delta=20 * 100e-6)
        self.assertNotIn("clocks", self.notes(found) + self.notes(without))

    def test_lost_messages(self):
        """The sender lacks the record of one of ten messages: messages without a partner do not wait."""
        def end(number, sends):
            other = {"comm_dst": ("int32", 1)} if sends else {"comm_src": ("int32", 0)}
            return node(number, "m", "COMM_SEND_NODE" if sends else "COMM_RECV_NODE", [], 10, 1000 + 100 * number,
                        **other)
        for name, sends in (("0.et", True), ("1.et", False)):
            with open(self.path(name), "wb") as f:
                f.write(trace([end(k, sends) for k in range(10) if not (sends and k == 3)]))
        notes = self.notes(self.analyse(self.path("0.et"), self.path("1.et")))
        self.assertIn("the other ends of 1 message", notes)
        self.assertIn("the waits of 9 messages", notes)

    def test_files_that_cannot_be_read(self):
        paths = self.files()
        three = self.analyse(*paths[:3])
        for bad in (b"", b"\0", b"\xff" * 20):
            for number in (3, 0):
                paths = self.files()
                with open(paths[number], "wb") as f:
                    f.write(bad)
                found = self.analyse(*paths)
                self.assertRegex(self.notes(found), f"1 of 4 ranks, files unreadable.*{number}.et")
                self.assertEqual([w["rank"] for w in found["workers"]], [r for r in range(4) if r != number])
                if number == 3:
                    self.alike(found, three)
        for path in paths:
            with open(path, "wb") as f:
                f.write(b"")
        self.assertEqual(run(*paths, "--format", "chakra").returncode, 2)
        self.assertIn("no such file", run(*self.files(), self.path("absent.et")).stderr)

    def test_waits_for_itself_and_negative_durations(self):
        nodes = {"nodes": [{"id": 1, "name": "mm", "type": "COMP_NODE", "data_deps": [1], "duration_micros": 10},
                           {"id": 2, "name": "mm", "type": "COMP_NODE", "data_deps": [1], "duration_micros": -10}]}
        notes = self.notes(self.analyse(self.write(nodes)))
        self.assertIn("1 wait of nodes for themselves", notes)
        self.assertIn("the duration of 1 node: it is negative; taken as 0", notes)


class Own(Ranks):
    """Hocket's own traces."""

    def trace(self, ranks=2, steps=3, clock=0, sums=8, late=0):
        """Returns the trace of a run: products, slower on the last rank, and all-reduces that end together. The last
        rank's clock is `clock` us fast, and it begins `late` us later."""
        events = [{"ph": "M", "name": "process_name", "pid": rank + 1, "args": {"name": f"rank {rank}", "rank": rank}}
                  for rank in range(ranks)]
        last = ranks - 1
        for step in range(steps):
            for rank in range(ranks):
                begin, number = 1e5 * step, 0

                def task(lane, start, duration, op, number, rank=rank, step=step, **args):
                    events.append({"ph": "X", "name": op, "cat": op, "pid": rank + 1, "tid": lane,
                                   "ts": start + clock * (rank == last), "dur": duration,
                                   "args": {"task": number, "step": step, "stage": 0, **args}})
                for k in range(sums):
                    own, slowest = 200 + 40 * (rank == last), 240
                    at = begin + late * (rank == last and k == 0)
                    end = begin + late * (k == 0) + slowest
                    task(1, at, own, "linear", number, phase="forward", micro_batch=k)
                    task(2, at + own, end + 60 - at - own, "all_reduce", number + 1, phase="forward", group=3, bytes=8)
                    number += 2
                    begin = end + 60
        waits = [{"ranks": list(range(ranks)),
                  "tasks": [w for k in range(sums) for w in ([[2 * k + 1, 2 * k]] + [[2 * k, 2 * k - 1]] * (k > 0))]}]
        return {"otherData": {"schema": "hocket-trace-2", "source": "run", "ranks": ranks}, "waits": waits,
                "traceEvents": events}

    def test_clocks(self):
        for late in (0, 150):
            whole = self.analyse(self.write(self.trace(late=late)))
            self.assertNotIn("clocks", self.notes(whole))
            self.assertAlmostEqual(whole["T"], (8 * 300 + late) * 1e-6, places=9)
            for micros in (700, -3000, 50000, 1e6, -1e9):
                found = self.analyse(self.write(self.trace(clock=micros, late=late)))
                self.alike(found, whole)
                self.assertIn("clocks of ranks differed by up to", self.notes(found))

    def test_lost_tasks(self):
        """Every seventh event is lost: there is no cycle, and all missing tasks are reported."""
        whole = self.trace(ranks=4, steps=1, sums=40)
        expected = self.analyse(self.write(whole))
        events = [e for e in whole["traceEvents"] if e["ph"] == "X"]
        others = [e for e in whole["traceEvents"] if e["ph"] != "X"]
        for part in range(7):
            kept = [e for i, e in enumerate(events) if i % 7 != part]
            found = self.analyse(self.write({**whole, "traceEvents": others + kept}))
            self.assertIn(f"{len(events) - len(kept)} of the program's 320 tasks, which are not in the trace, of 4 ranks",
                          self.notes(found))
            self.assertRegex(self.notes(found), "the other members of [0-9]+ collectives")
            self.assertLess(abs(found["S"] / expected["S"] - 1), 0.1)
        # A task that only the other rank has.
        one = [e for e in events if not (e["pid"] == 2 and e["args"]["task"] == 79)]
        self.assertIn("1 of the program's 320 tasks, which are not in the trace, of 1 rank; one is task 79 of rank 1",
                      self.notes(self.analyse(self.write({**whole, "traceEvents": others + one}))))

    def test_cut_off_within_its_only_step(self):
        text = json.dumps(self.trace(ranks=1, steps=1))
        with open(self.path(), "w", encoding="utf-8") as f:
            f.write(text[:len(text) * 3 // 5])
        found = self.analyse(self.path())
        self.assertIn("the rest of step 0, the only one: the file ends within it", self.notes(found))
        self.assertRegex(self.notes(found), "of the program's 16 tasks, which are not in the trace")

    def test_negative_durations(self):
        whole = self.trace()
        for event in [e for e in whole["traceEvents"] if e["ph"] == "X"][::5]:
            event["dur"] = -event["dur"]
        self.assertIn("the duration of 20 tasks: it is negative or none; taken as 0",
                      self.notes(self.analyse(self.write(whole))))


class Straggler(Ranks):
    def test_clocks(self):
        job = straggler_util.Job(dp=3, pp=2)
        for waiting in (False, True):
            whole = self.analyse(self.write(job.trace(waiting=waiting)))
            events = job.trace(waiting=waiting)
            for event in events:
                event["ts"] = event.get("ts", 0) + 250000 * (event["pid"] == 1)
            found = self.analyse(self.write(events))
            self.alike(found, whole, 2e-3)
            self.assertIn("clocks of ranks differed by up to 250 ms", self.notes(found))

    def test_a_worker_that_is_missing_in_every_step(self):
        job = straggler_util.Job(dp=3, pp=2)

        def lacks(pid, event):
            return event["ph"] == "X" and event["pid"] == pid and event["tid"] >= 15
        for pid in range(3):
            found = self.analyse(self.write([e for e in job.trace() if not lacks(pid, e)]))
            rest = self.analyse(self.write([e for e in job.trace() if e["pid"] != pid]))
            self.alike(found, rest)
            self.assertEqual(found["S_dp"], rest["S_dp"])
            self.assertEqual([w["dp"] for w in found["workers"]], [w["dp"] for w in rest["workers"]])
            self.assertIn(f"data-parallel rank {pid} is not used: it differs from others in every step, in step 20 replica "
                          f"{pid} lacks", self.notes(found))
        # The replica that lacks ops is dropped, whichever comes first; also if all of one kind lack.
        job = straggler_util.Job(dp=2, pp=2)
        for pid in range(2):
            events = [e for e in job.trace() if not (e["pid"] == pid and e["name"] == "optimizer" and e["tid"] >= 10)]
            self.alike(self.analyse(self.write(events)),
                       self.analyse(self.write([e for e in job.trace() if e["pid"] != pid])))

    def test_cut_off_within_its_only_step(self):
        events = [e for e in straggler_util.Job(dp=1, pp=2, steps=1).trace() if e["ph"] == "X"]
        text = json.dumps(sorted(events, key=lambda e: e["ts"]))
        with open(self.path(), "w", encoding="utf-8") as f:
            f.write(text[:len(text) * 3 // 5])
        self.assertIn("the rest of step 20, the only one: the file ends within it", self.notes(self.analyse(self.path())))

    def test_names_of_data_parallel_ranks(self):
        job = straggler_util.Job(dp=3, pp=2, slow=lambda step, dp, pp, kind, mb: 1.5 if dp == 0 else 1)
        whole = self.analyse(self.write(job.trace()))
        events = [{**e, "pid": 2 - e["pid"]} for e in job.trace()]
        names = [{"ph": "M", "name": "process_name", "pid": 2 - dp, "tid": 0, "args": {"name": f"DP rank [{dp}]"}}
                 for dp in range(3)]
        self.assertEqual(self.analyse(self.write(events + names))["S_dp"], whole["S_dp"])
        self.assertEqual(self.analyse(self.write(events))["S_dp"], whole["S_dp"][::-1])

    def test_durations_that_cannot_be(self):
        events = straggler_util.Job(dp=2, pp=2).trace()
        negative = [e for e in events if e["name"] == "forward-compute"][:5]
        for event in negative:
            event["dur"] = -500000
        self.assertIn("the duration of 5 events: it is negative; taken as 0",
                      self.notes(self.analyse(self.write(events))))
        done = run(self.write([{**e, "dur": 0} for e in events if e["ph"] == "X"]))
        self.assertEqual(done.returncode, 2)
        self.assertIn("ops that all take no time", done.stderr)

    def test_what_is_refused_and_why(self):
        events = [{**e, "ph": phase} for e in straggler_util.Job(dp=2, pp=2).trace() if e["ph"] == "X" for phase in "BE"]
        done = run(self.write(events))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "of unknown phase 'B', [0-9]+ events of unknown phase 'E'")
        path = self.write(straggler_util.Job(dp=2, pp=2).trace())
        for factor in ("1e300", "1e-300", "2e9", "nan", "inf"):
            self.assertEqual(run(path, "--scale", f"all={factor}").returncode, 2, factor)

    def test_pipes_and_byte_order_marks(self):
        path = self.write(straggler_util.Job(dp=2, pp=2).trace())
        whole = self.analyse(path)
        with open(path, "rb") as f:
            data = f.read()
        done = run("/dev/stdin", "--json", input=data.decode())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), whole)
        self.assertIn("[/dev/stdin]", run("/dev/stdin", input="{").stderr)
        with open(path, "wb") as f:
            f.write(b"\xef\xbb\xbf" + data)
        self.assertEqual(self.analyse(path), whole)


if __name__ == "__main__":
    unittest.main()
