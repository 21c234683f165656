#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tests hocket whatif on traces of Megatron's ops (the straggler data's schema) with missing or unusual content: cut
steps, ranks without events, ops of unknown types, transfers of negative time, other numbers of threads. Each is
reported, and never blamed as a cause."""
import random
import unittest

from ranks_test import Ranks, run, straggler_util


class Lacks(Ranks):
    def same(self, found, expected, tolerance=1e-7):
        for key in ("T", "T_ideal", "S", "M_S", "M_W"):
            self.assertLessEqual(abs(found[key] - expected[key]), tolerance * max(abs(expected[key]), 0.1), key)
        for key in ("S_stage", "S_dp"):
            for a, b in zip(found[key], expected[key], strict=True):
                self.assertLessEqual(abs(a - b), tolerance, key)
        self.assertEqual(sorted(found["S_step"]), sorted(expected["S_step"]))

    def ops(self, events, keeps=lambda event: True):
        """Filters the ops among events."""
        return [e for e in events if e["ph"] != "X" or keeps(e)]

    def test_a_window_that_cuts_steps(self):
        """The first and the last of three steps are cut, and all three differ."""
        job = straggler_util.Job(dp=1, pp=2, steps=3)
        first, whole, last = job.steps

        def spans(events, step):
            of_step = [e for e in events if e["ph"] == "X" and e["args"]["step"] == step]
            begin = min(e["ts"] for e in of_step)
            return begin, max(e["ts"] + e["dur"] for e in of_step) - begin
        events = job.trace()
        (begin, takes), (end, lasts) = spans(events, first), spans(events, last)
        cut = self.ops(events, lambda e: begin + takes * 0.6 <= e["ts"] <= end + lasts * 0.5)
        found = self.analyse(self.write(cut))
        self.same(found, job.expected([whole]))
        self.assertRegex(self.notes(found), f"(?s)step {first} is not used.*step {last} is not used.*no event of step "
                         f"{whole}, the only one that is used: .*none shows that it is whole")
        # A step that is cut at its beginning, before a complete one.
        job = straggler_util.Job(dp=2, pp=2, steps=2)
        events = job.trace()
        begin, takes = spans(events, job.steps[0])
        found = self.analyse(self.write(self.ops(events, lambda e: e["ts"] >= begin + takes * 0.3)))
        self.same(found, job.expected(job.steps[1:]))

    def test_ranks_without_events(self):
        """Missing ranks are found by the names of threads and processes, also the last ones."""
        job = straggler_util.Job(dp=2, pp=4)
        names = [{"ph": "M", "name": "process_name", "pid": dp, "tid": 0, "args": {"name": f"DP rank [{dp}]"}}
                 for dp in range(2)]
        for extra in ([], names):
            for lacks in range(2):
                found = self.analyse(self.write(self.ops(job.trace() + extra, lambda e, n=lacks: e["pid"] != n)))
                self.assertIn("1 of data-parallel ranks 0 to 1 have no events", self.notes(found))
                self.assertEqual(found["dp"], 1)
        for lacks in range(4):
            found = self.analyse(self.write(self.ops(job.trace(), lambda e, n=lacks: e["tid"] // 10 != n)))
            self.assertIn(f"pipeline rank {lacks} has no events; its neighbours do not wait for it", self.notes(found))
            self.assertIn("of a step have no other end", self.notes(found))
            self.assertEqual(found["pp"], 4)
            self.assertEqual(found["M_S"] is None, lacks == 3)
        self.assertIn("M_S unknown (the last stage is missing)", run(self.path()).stdout)

    def test_ranks_without_events_or_names(self):
        job = straggler_util.Job(dp=2, pp=4)

        def without(rank, **options):
            return self.analyse(self.write([e for e in job.trace(**options) if e["tid"] // 10 != rank]))
        # Found by their messages, if no later rank has events.
        self.assertIn("pipeline ranks behind rank 2 have no events", self.notes(without(3)))
        self.assertIn("pipeline ranks behind rank 2 have no events", self.notes(without(3, named=False)))
        # Found by the numbers of threads.
        for lacks in (0, 1, 2):
            named = self.analyse(self.write(self.ops(job.trace(), lambda e, n=lacks: e["tid"] // 10 != n)))
            found = without(lacks, named=False)
            self.assertEqual({**found, "dropped": 0}, {**named, "dropped": 0})
            self.assertIn(f"pipeline rank {lacks} has no events", self.notes(found))
        # Ranks numbered replica by replica contain no stage.
        events = [{**e, "tid": e["tid"] % 5 + 5 * (e["pid"] * 4 + e["tid"] // 10)} for e in job.trace(named=False)]
        found = self.analyse(self.write(events))
        self.same(found, job.expected())
        self.assertEqual(found["dropped"]["notes"], [])

    def test_messages_that_were_not_launched(self):
        """Some exporters record messages at both ends of a pipeline, as of several chunks: no rank is missing. Also if
        some of the first messages lack."""
        job = straggler_util.Job(dp=2, pp=2)
        events = job.trace()
        for event in self.ops(events):
            if event["ph"] != "X":
                continue
            direction, what = event["name"].split("-")[0], event["name"].split("-")[-1]
            if what == "compute":
                is_first = event["tid"] < 10
                other = "recv" if (direction == "forward") == is_first else "send"
                at = event["ts"] - 2 if other == "recv" else event["ts"] + event["dur"]
                events.append({**event, "name": f"{direction}-{other}", "ts": at, "dur": 400, "tid": event["tid"] + 1})
        self.assertEqual(self.analyse(self.write(events))["dropped"]["notes"], [])
        lacks = [e for e in events if (e["name"], e["args"].get("seq_id"), e["tid"] < 10) != ("forward-recv", 0, True)]
        self.assertEqual(self.analyse(self.write(lacks))["dropped"]["notes"], [])

    def gaps(self, found):
        pauses = next(c for c in found["causes"] if c["cause"] == "pauses")
        return "in which nothing is waited for" in pauses["evidence"]

    def test_gaps_that_lost_ops_made_are_no_pauses(self):
        job = straggler_util.Job(dp=2, pp=2, steps=4)
        for event_type in ("forward-compute", "backward-recv"):
            events = [{**e, "name": e["name"].replace(event_type, "unknown")} for e in job.trace()]
            self.assertFalse(self.gaps(self.analyse(self.write(events))))
            events = [{**e, "args": {}} if e["name"] == event_type else e for e in job.trace()]
            self.assertFalse(self.gaps(self.analyse(self.write(events))))
            found = self.analyse(self.write([e for e in job.trace() if e["name"] != event_type]))
            self.assertIsNone(found["cause"], event_type)
            self.assertIn("of the measured step, more than 10 %", run(self.path()).stdout)
        found = self.analyse(self.write(self.ops(job.trace(), lambda e: e["name"] != "backward-recv")))
        self.assertFalse(self.gaps(found))

        # A pause of half a second before a pass of one worker, as a gap.
        events, marks, ops = job.trace(), [], []
        for event in events:
            if (event["name"], event["pid"], event["args"].get("mb_id"), event["tid"] < 10) == (
                    "backward-compute", 1, 3, False):
                begin = event["ts"]
                event["ts"], event["dur"] = begin + 0.9 * event["dur"], 0.1 * event["dur"]
                marks += [{**event, "name": "user's mark", "ts": begin - 10, "dur": 20},
                          {**event, "name": "user's range", "ts": begin, "dur": event["ts"] - begin, "args": {}},
                          {**event, "name": "user's step", "ts": begin - 5e4, "dur": 4e5}]
                ops.append({**event, "name": "data-load", "ts": begin, "dur": event["ts"] - begin})
        self.assertTrue(self.gaps(self.analyse(self.write(events))))
        self.assertTrue(self.gaps(self.analyse(self.write(events + marks))))
        self.assertFalse(self.gaps(self.analyse(self.write(events + ops))))
        # A step that lacks an op is not used.
        one = next(e for e in events if (e["name"], e["pid"], e["tid"] < 10) == ("backward-compute", 1, False))
        self.assertTrue(self.gaps(self.analyse(self.write([{**e, "dur": None} if e is one else e for e in events]))))
        # The ops belong to another replica.
        self.assertTrue(self.gaps(self.analyse(self.write(events + [{**e, "pid": 0} for e in ops]))))

    def test_transfers_of_negative_time(self):
        """StragglerAnalysis keeps times above -10 ms, and takes others as 0."""
        for waiting in (False, True):
            job = straggler_util.Job(dp=3, pp=3, seed=12)
            rng = random.Random(4)
            for cell in job.duration:
                kind = cell[2][1]
                if kind.endswith(("-send", "-recv")) and rng.random() < 0.3:
                    job.duration[cell] = -rng.uniform(1e-6, 40e-6)
                elif kind in ("params-all-gather", "grads-reduce-scatter") and rng.random() < 0.2 and not waiting:
                    job.duration[cell] = -rng.uniform(1e-3, 9e-3)
            found = self.analyse(self.write(job.trace(waiting=waiting)))
            # Launched traces have delays of up to 20 us an op.
            self.same(found, job.expected(), 1e-7 if not waiting else 1e-3)
            self.assertEqual(found["dropped"]["notes"], [])
        job = straggler_util.Job(dp=2, pp=2)
        events = job.trace()
        early = [e for e in events if e["name"] == "params-all-gather"][:3]
        for event in early:
            event["dur"] = -12000
        expected = self.analyse(self.write([{**e, "dur": 0} if e in early else e for e in events]))
        found = self.analyse(self.write(events))
        self.alike(found, expected)
        self.assertIn("the duration of 3 events: it is negative; taken as 0", self.notes(found))

    def test_threads_in_another_order(self):
        """Names give a thread's worker, whatever its number."""
        job = straggler_util.Job(dp=2, pp=3, slow=lambda step, dp, pp, kind, mb: 1.5 if (dp, pp) == (1, 2) else 1)
        whole = self.analyse(self.write(job.trace()))
        for renumbered in (lambda rank, lane: lane * 6 + rank, lambda rank, lane: 7 * rank + lane,
                           lambda rank, lane: 10 * rank + lane):
            events = [{**e, "tid": renumbered(e["tid"] // 5, e["tid"] % 5)} for e in job.trace()]
            found = self.analyse(self.write(events))
            self.same(found, job.expected())
            order = [[w["dp"], w["stage"]] for w in sorted(found["workers"], key=lambda w: w["rank"])]
            self.assertEqual(order, [[w["dp"], w["stage"]] for w in sorted(whole["workers"], key=lambda w: w["rank"])])

    def test_numbers_of_steps_are_labels(self):
        job = straggler_util.Job(dp=2, pp=2)
        whole = self.analyse(self.write(job.trace()))
        events = job.trace()
        for event in self.ops(events):
            if "step" in event["args"]:
                event["args"]["step"] += 10**10
        found = self.analyse(self.write(events))
        self.alike(found, whole)
        self.assertEqual(list(found["S_step"]), [str(10**10 + s) for s in job.steps])

    def test_nothing_is_lost(self):
        """Without a loss, its shares are null."""
        job = straggler_util.Job(dp=2, pp=2)
        for cell in job.duration:
            job.duration[cell] = 0.02 if "compute" in cell[2][1] else 0.001
        found = self.analyse(self.write(job.trace()))
        self.assertEqual((found["M_S"], found["M_W"]), (None, None))
        self.assertAlmostEqual(found["S"], 1, places=9)

    def test_a_replay_that_is_far_off(self):
        job = straggler_util.Job(dp=2, pp=4)
        found = self.analyse(self.write(self.ops(job.trace(), lambda e: e["tid"] // 10 != 1)))
        self.assertLess(found["T"], 0.9 * found["T_measured"])
        self.assertIsNone(found["cause"])
        self.assertRegex(run(self.path()).stdout, "cause +none is named: the replay is off by -[0-9]+ % of the measured")
        one = next(e for e in job.trace() if e["name"] == "backward-compute")
        self.assertIn("no op waits for another one (1 op a step)", self.notes(self.analyse(self.write([one]))))


if __name__ == "__main__":
    unittest.main()
