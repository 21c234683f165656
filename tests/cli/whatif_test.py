#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hocket whatif: traces of jobs that never ran against brute force (tests/whatif/straggler_util.py), causes that
were put in, broken traces, and, where HOCKET_STRAGGLER_DATA names its folder, the straggler data against its
published results."""
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile
import unittest

import cli_util

sys.path.insert(0, os.path.join(cli_util.ROOT, "tests", "whatif"))
import straggler_util  # noqa: E402

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
        # Words to people, with the same in them.
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
        self.assertIn("2 events without a step, or whose time is no number", notes)
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
        # The same, packed; and a file of which no step is whole.
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
        self.assertIn("met no other end", notes)

    def test_no_trace(self):
        for text in ("", "[]", "{}", "[1]", '[{"ph":"X"}]', '{"traceEvents":[]}', "no json", "[" * 5000):
            with open(self.path(), "w", encoding="utf-8") as f:
                f.write(text)
            for words in ([], ["--format", "straggler"], ["--format", "hocket"]):
                done = run(self.path(), *words)
                self.assertEqual(done.returncode, 2, f"{text[:20]!r} {words}: {done.stdout}{done.stderr}")
        self.assertEqual(run(self.path("absent.json")).returncode, 2)
        self.assertEqual(run(self.path(), "--format", "what").returncode, 2)

    def test_causes(self):
        def job(slow, **options):
            return straggler_util.Job(dp=4, pp=4, micro_batches=8, steps=2, seed=11, slow=slow, **options)
        lengths = {(s, d, m): 0.5 + ((s * 31 + d * 7 + m * 13) % 10) / 5
                   for s in range(100) for d in range(4) for m in range(-1, 8)}
        causes = {
            "slow worker": lambda step, dp, pp, kind, mb: 2 if (dp, pp) == (2, 1) and "compute" in kind else 1,
            "last stage": lambda step, dp, pp, kind, mb: 1.8 if pp == 3 and "compute" in kind else 1,
            "uneven sequences": lambda step, dp, pp, kind, mb: lengths[step, dp, mb] if "compute" in kind else 1,
            "pauses": lambda step, dp, pp, kind, mb:
                12 if kind == "forward-compute" and (dp + pp * 3 + mb * 5 + step) % 41 == 0 else 1,
            "slow link": lambda step, dp, pp, kind, mb:
                200 if dp == 1 and (pp, kind) in ((1, "forward-send"), (2, "forward-recv"),
                                                  (2, "backward-send"), (1, "backward-recv")) else 1,
        }
        for cause, slow in causes.items():
            with self.subTest(cause):
                straggler_util.write(self.path(), job(slow).trace(waiting=True))
                found = self.analyse(self.path())
                self.assertEqual(found["cause"], cause, [found["S"], found["causes"]])
                self.assertGreater(found["causes"][0]["gain"], 1.03)

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
        surface = found["surface"]
        at = surface["T"][surface["bandwidth"].index(2)][surface["compression"].index(4)]
        alone = {"forward-compute", "backward-compute", "optimizer", "gc"}
        self.same({"T": at}, {"T": time(lambda k: 1 if k in alone else 8 if k in GRADIENTS else 2)}, 1e-6)

    def test_page(self):
        straggler_util.write(self.path(), straggler_util.Job().trace())
        page = self.path("page.html")
        done = run(self.path(), "--html", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(page, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("dp 1 pp 3", text)
        self.assertTrue(text.endswith("</html>\n"))

    def test_our_own_traces(self):
        config = os.path.join(cli_util.ROOT, "configs", "quickstart.yaml")
        done = subprocess.run(
            [cli_util.HOCKET, "simulate", config, "--set", "plan.dp=2", "--set", "plan.pp=2", "--set",
             "plan.micro_batch=1", "--all-ranks", "--trace", self.path("own.json.gz"), "--json"],
            stdout=subprocess.PIPE, text=True, check=True)
        found = self.analyse(self.path("own.json.gz"))
        self.assertEqual((found["dp"], found["pp"]), (2, 2))
        self.same(found, {"T_measured": json.loads(done.stdout)["step_s"]}, 1e-3)
        self.assertLess(abs(found["T"] / found["T_measured"] - 1), 0.01)

    def profile(self, rank, clock, kernel_us, collectives=2):
        """A Kineto profile: each round launches a kernel and a sum that waits for it; the sums end together, when the
        slowest kernel (300 us) has ended and 100 us have passed."""
        events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": 1, "tid": 1,
                   "ts": 1000 + clock, "dur": 5000, "args": {}}]

        def add(category, name, tid, start, duration, **args):
            events.append({"ph": "X", "cat": category, "name": name, "pid": rank, "tid": tid, "ts": start + clock,
                           "dur": duration, "args": args})
        begin = 1010
        for k in range(collectives):
            end = begin + 10 + 300 + 100
            add("cuda_runtime", "cudaLaunchKernel", 1, begin, 10, correlation=10 * k + 1)
            add("kernel", "void gemm<float>(int)", 7, begin + 10, kernel_us, stream=7, correlation=10 * k + 1)
            add("cuda_runtime", "cudaStreamWaitEvent", 1, begin + 10, 1, correlation=10 * k + 2)
            add("cuda_runtime", "cudaLaunchKernel", 1, begin + 12, 5, correlation=10 * k + 3)
            add("kernel", "ncclKernel_AllReduce_RING(x)", 20, begin + 10 + kernel_us, 300 - kernel_us + 100, stream=20,
                correlation=10 * k + 3)
            add("cuda_runtime", "cudaDeviceSynchronize", 1, begin + 20, end - begin - 20, correlation=10 * k + 4)
            begin = end + 20
        return {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"rank": rank, "world_size": 4},
                "traceEvents": events}

    def test_profiles_of_several_ranks(self):
        paths = []
        for rank, (clock, kernel) in enumerate([(0, 100), (7000, 300), (-4000, 100), (123.5, 100)]):
            paths.append(straggler_util.write(self.path(f"rank{rank}.json"), self.profile(rank, clock, kernel)))
        found = self.analyse(*reversed(paths))
        self.assertEqual(found["dp"], 4)
        # From the step's begin: 10 us, then twice launch, kernel, sum, with 20 us between.
        self.same(found, {"T": (10 + 2 * (10 + 300 + 100) + 20) * 1e-6, "T_measured": (10 + 2 * 410 + 20) * 1e-6}, 1e-3)
        ideal = (10 + 2 * (10 + 150 + 100) + 20) * 1e-6
        self.same(found, {"T_ideal": ideal}, 2e-2)
        self.assertEqual(max(range(4), key=lambda r: found["S_dp"][r]), 1)
        self.assertIn("clocks of ranks differed by up to 7 ms", "\n".join(found["dropped"]["notes"]))
        self.assertEqual((found["cause"], found["causes"][0]["where"]), ("slow worker", "rank 1"))
        # A rank without its file, one that lacks a sum, the same file twice.
        found = self.analyse(paths[0], paths[1], paths[3])
        self.assertIn("1 of ranks 0 to 3 have no file", "\n".join(found["dropped"]["notes"]))
        straggler_util.write(paths[2], self.profile(2, 0, 100, collectives=1))
        self.assertIn("not all ranks have them", "\n".join(self.analyse(*paths)["dropped"]["notes"]))
        self.assertEqual(run(paths[0], paths[0]).returncode, 2)

    def test_chakra(self):
        # Two ranks: a product, then a sum that both take part in; the first then sends what the second waits for.
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
