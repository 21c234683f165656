#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tests hocket whatif --bottleneck: tables of gradients against a replay in ticks of half a microsecond, our traces at
other numbers of ranks and bandwidths, profiles of PyTorch, and refusals."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
import cli_util  # noqa: E402


def run(*words):
    return subprocess.run([cli_util.HOCKET, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)


def brute_force(gradients, fusion_bytes, timeout, ranks, bytes_per_s, ratio, add_bytes_per_s):
    """Returns the end of the last all-reduce in seconds, from a replay in ticks of half a microsecond.

    At every tick, gradients that are ready enter the fusion buffer. One process performs the all-reduces: when it is free, it
    takes the oldest batch."""
    buffer, age, queue, free_at, end = [], 0, [], 0.0, 0.0
    last = gradients[-1][1]
    tick, next_one = 0, 0
    while next_one < len(gradients) or buffer or queue:
        if buffer and age == timeout:
            queue.append((tick, sum(buffer)))
            buffer = []
        while next_one < len(gradients) and gradients[next_one][1] == tick:
            size = gradients[next_one][0]
            next_one += 1
            if buffer and sum(buffer) + size > fusion_bytes:
                queue.append((tick, sum(buffer)))
                buffer = []
            if not buffer:
                age = 0
            buffer.append(size)
            if sum(buffer) >= fusion_bytes:
                queue.append((tick, sum(buffer)))
                buffer = []
        if buffer and tick == last:
            queue.append((tick, sum(buffer)))
            buffer = []
        while queue:
            at, size = queue.pop(0)
            step = size / ratio / ranks
            begin = max(at * 0.5e-6, free_at)
            # 2 (N - 1) messages per rank, each one N-th of the batch; N - 1 of them are added.
            for message in range(2 * (ranks - 1)):
                begin += step / bytes_per_s
                if message < ranks - 1 and add_bytes_per_s:
                    begin += step / add_bytes_per_s
            free_at = end = begin
        tick += 1
        age += 1
    return end


class Bottleneck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def found(self, *words):
        done = run("whatif", *words, "--bottleneck", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["bottleneck"]

    def table(self, gradients, step_us, gaps=False, **more):
        rows, before = [], 0
        for size, ready in gradients:
            when = f"gap: {ready - before}us" if gaps else f"ready: {ready}us"
            rows.append(f"  - {{bytes: {size}, {when}}}\n")
            before = ready
        with open(self.path("table.yaml"), "w", encoding="utf-8") as f:
            f.write("".join([f"step: {step_us}us\n", *(f"{key}: {value}\n" for key, value in more.items()),
                             "gradients:\n", *rows]))
        return self.path("table.yaml")

    def test_brute_force(self):
        rng = random.Random(7)
        for case in range(25):
            ready = sorted(rng.randrange(1, 4000) for _ in range(rng.randrange(1, 30)))
            gradients = [(rng.choice([1000, 40000, 250000, 3000000]) + rng.randrange(1000), at) for at in ready]
            fusion = rng.choice([0, 50000, 1000000, 10**9])
            timeout = rng.choice([0.5, 100.5, 900.5, 100000.5])  # us: never when a gradient becomes ready
            adds = rng.choice([0, 2e9])
            ranks, rates, ratios = [2, 3, 16], [1e8, 3e9], [1, 2.5]
            step_us = ready[-1] + rng.randrange(500)
            table = self.table(gradients, step_us, gaps=case % 2 == 1)
            words = [table, "--ranks", "2,3,16", "--bandwidths", "100MB/s,24Gbit/s", "--ratios", "1,2.5", "--fusion",
                     str(fusion), "--fusion-timeout", f"{timeout}us", "--used", "0.5"]
            found = self.found(*words, *(["--adds", f"{adds:.0f}"] if adds else []))
            for key, share in (("f", 1), ("f_used", 0.5)):
                for n, at_n in zip(ranks, found[key], strict=True):
                    for rate, at_rate in zip(rates, at_n, strict=True):
                        for ratio, f in zip(ratios, at_rate, strict=True):
                            end = brute_force([(size, 2 * at) for size, at in gradients], fusion, 2 * timeout, n,
                                              rate * share, ratio, adds)
                            late = max(end - ready[-1] * 1e-6, 0)
                            expected = step_us * 1e-6 / (step_us * 1e-6 + late)
                            self.assertAlmostEqual(f, expected, places=9, msg=f"case {case} {key} {n} {rate} {ratio}")
            # The reported ratio reaches its f, and a lower ratio does not.
            needed = found["compression_needed"][2][0]
            if needed and needed > 1:
                for ratio, enough in ((needed * 1.0001, True), (needed * 0.9999, False)):
                    f = self.found(*words[:1], *words[7:], "--ranks", "16", "--bandwidths", "100MB/s", "--ratios",
                                   f"{ratio:.12f}", *(["--adds", f"{adds:.0f}"] if adds else []))["f_used"][0][0][0]
                    self.assertEqual(f >= 0.95, enough, f"case {case}: {ratio} gives {f}")

    def test_backward_pass_that_goes_on(self):
        gradients = [(1000000, 100), (1000000, 200)]
        hidden = self.found(self.table(gradients, 9000, backward="9ms"), "--ranks", "2", "--bandwidths", "1GB/s")
        self.assertEqual(hidden["f"][0][0][0], 1)
        self.assertEqual(hidden["compression_needed"], [[1]])

    def test_adds_of_a_profile(self):
        add = {"op": "add", "dtype": "f32", "flops": 0, "spread": 0}
        tasks = [{**add, "kind": "add (f32[1000], f32[1000]) -> (f32[1000])", "bytes": 12000, "ns": 4000},
                 {**add, "kind": "add (f32[4000], f32[4000]) -> (f32[4000])", "bytes": 48000, "ns": 10000},
                 {**add, "op": "linear", "kind": "linear", "bytes": 12, "ns": 10**9}]
        profile = {"format": "hocket-profile-1", "device": "cpu", "machine": {}, "cores": 1, "threads": 1,
                   "task_overhead_ns": 0, "peak_flops": {}, "links": {}, "tasks": tasks}
        table = self.table([(1000000, 100)], 1000)
        words = [table, "--ranks", "2", "--bandwidths", "1GB/s", "--ratios", "1"]

        def put(**more):
            with open(self.path("profile.json"), "w", encoding="utf-8") as f:
                json.dump({**profile, **more}, f)
            return self.path("profile.json")

        def found(**more):
            return self.found(*words, "--adds", put(**more))["f"][0][0][0]

        # One all-reduce of 1 MB over two ranks: 1 ms on the link, and an addition of half a megabyte. 12 KB and 48 KB
        # moved are operands of 4 and 16 KB. Larger ones are extrapolated by the rate of memory or by the last two.
        by_rate = 10e-6 + 3 * (500000 - 16000) / 6e9
        by_slope = 10e-6 + (500000 - 16000) * 6e-6 / 12000
        self.assertAlmostEqual(found(memory_bytes_per_s=6e9), 1e-3 / (1e-3 + 1e-3 + by_rate), places=9)
        self.assertAlmostEqual(found(), 1e-3 / (1e-3 + 1e-3 + by_slope), places=9)
        refused = run("whatif", *words, "--bottleneck", "--adds", put(tasks=tasks[2:]))
        self.assertEqual(refused.returncode, 2)
        self.assertIn("has timed no task add", refused.stderr)

    def test_words(self):
        done = run("whatif", self.table([(100, 1)], 10), "--bottleneck", "--ranks", "8", "--used", "0.25")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("8 ranks", "25 % of it", "100 Gbit/s", "least ratio for f 0.95"):
            self.assertIn(part, done.stdout)

    def test_what_cannot_be(self):
        table = self.table([(100, 1), (100, 2)], 10)
        bad = [["--ranks", "1"], ["--ranks", "x"], ["--bandwidths", "0"], ["--bandwidths", "4s"], ["--ratios", "0.5"],
               ["--used", "0"], ["--used", "1.5"], ["--fusion", "-1"], ["--fusion-timeout", "1GB"], ["--adds", "0"],
               ["--adds", self.path("absent")], ["--surface"], ["--scale", "all=2"], ["--html", "-"]]
        for words in bad:
            done = run("whatif", table, "--bottleneck", *words)
            self.assertEqual(done.returncode, 2, f"{words}: {done.stdout}")
        self.assertEqual(run("whatif", table).returncode, 2)
        self.assertEqual(run("whatif", table, "--ranks", "2").returncode, 2)
        for text in ("", "step: 1s", "step: 1s\ngradients: []", "gradients: [{bytes: 1, ready: 1s}]",
                     "step: 1s\ngradients: [{bytes: 1}]", "step: 1s\ngradients: [{bytes: 1, ready: 1s, gap: 1s}]",
                     "step: 1s\ngradients: [{bytes: 1, ready: 2s}]", "step: 1s\ngradients: [{bytes: -1, ready: 0s}]",
                     "step: 4s\ngradients: [{bytes: 1, ready: 2s}, {bytes: 1, ready: 1s}]",
                     "step: 4s\nbackward: 1s\ngradients: [{bytes: 1, ready: 2s}]"):
            with open(self.path("bad.yaml"), "w", encoding="utf-8") as f:
                f.write(text)
            done = run("whatif", self.path("bad.yaml"), "--bottleneck")
            self.assertEqual(done.returncode, 2, f"{text!r}: {done.stdout}")

    def test_trace_of_two_ranks_tells_of_four(self):
        """The trace of a simulated step of 2 ranks predicts simulated steps of 2 and 4 ranks at other link rates within
        4 points. The model has no link latency."""
        with open(os.path.join(cli_util.ROOT, "configs", "clusters", "a100-16x8.yaml"), encoding="utf-8") as f:
            cluster = f.read().replace("devices_per_node: 8", "devices_per_node: 1")

        def simulate(ranks, rate, *words):
            with open(self.path("cluster.yaml"), "w", encoding="utf-8") as f:
                f.write(cluster.replace("200Gbit/s", f"{rate}Gbit/s"))
            done = run("simulate", os.path.join(cli_util.ROOT, "configs", "models", "dense-26m"), "--cluster",
                       self.path("cluster.yaml"), "--set", f"plan.dp={ranks}", "--set", f"train.global_batch={ranks}",
                       "--json", "--all-ranks", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["step_s"]
        simulate(2, 100, "--trace", self.path("trace.json.gz"))
        found = self.found(self.path("trace.json.gz"), "--ranks", "2,4", "--bandwidths", "10Gbit/s,25Gbit/s,100Gbit/s",
                           "--ratios", "1", "--used", "0.64", "--fusion", "0B")
        self.assertEqual(found["measured"]["ranks"], 2)
        self.assertAlmostEqual(found["measured"]["f"], found["measured"]["f_model"], delta=0.02)
        self.assertAlmostEqual(found["measured"]["bandwidth_achieved"], 0.64 * 100e9 / 8, delta=0.1e9)
        for i, ranks in enumerate((2, 4)):
            for j, rate in enumerate((10, 25, 100)):
                expected = found["T_without_all_reduces"] / simulate(ranks, rate)
                self.assertAlmostEqual(found["f_used"][i][j][0], expected, delta=0.04, msg=f"{ranks} ranks, {rate} Gbit/s")

    def profile(self, rank, new, dtype):
        """Writes two steps of a PyTorch profile: a forward kernel and two backward kernels, each with its
        all-reduce, of elements of `dtype`."""
        events, correlation = [], 0

        def event(**what):
            events.append({"ph": "X", "pid": 1, **what})

        def launch(name, tid, call, at, dur, stream, args):
            nonlocal correlation
            correlation += 1
            event(cat="cuda_runtime", name=call, tid=tid, ts=at - 5, dur=3, args={"correlation": correlation})
            event(cat="kernel", name=name, tid=stream, ts=at, dur=dur,
                  args={"correlation": correlation, "stream": stream, **args})
        for step in range(2):
            start = 10000 * step
            event(cat="user_annotation", name=f"ProfilerStep#{step}", tid=1, ts=start, dur=9000, args={})
            launch("gemm_forward", 1, "cudaLaunchKernel", start + 100, 1000, 7, {})
            launch("ncclKernel_AllReduce_sum(int)", 1, "cudaLaunchKernel", start + 1100, 20, 8,
                   {"In msg nelems": 5, "dtype": "Float"} if new else {})
            for i, elements in enumerate((250000, 500000)):
                at = start + 1200 + 1000 * i
                launch("gemm_backward", 2, "cudaLaunchKernel", at, 900, 7, {})
                event(cat="cuda_runtime", name="cudaStreamWaitEvent", tid=2, ts=at + 10, dur=1, args={})
                if not new:
                    event(cat="user_annotation", name="nccl:all_reduce", tid=2, ts=at + 890, dur=15,
                          args={"Input Dims": [[elements // 2, 2]], "Input type": [dtype]})
                launch("ncclKernel_AllReduce_sum(int)", 2, "cudaLaunchKernel", at + 905, 400, 8,
                       {"In msg nelems": elements, "dtype": dtype} if new else {})
        return {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}

    def test_profile(self):
        for new, dtype in ((False, "c10::BFloat16"), (True, "BFloat16")):
            names = self.profiles(new, dtype)
            found = self.found(*names, "--ranks", "2")
            self.assertEqual(found["gradient_bytes"], 2 * 750000)
            self.assertEqual(found["measured"]["ranks"], 2)
            self.assertAlmostEqual(found["measured"]["bandwidth_achieved"], 1.5e6 / 800e-6, delta=1)
            page = run("whatif", *names, "--bottleneck", "--ranks", "2", "--html", "-").stdout
            self.assertRegex(page, "(?s)<h2>Is the network the bottleneck.*2 ranks, gradients")

    def profiles(self, new, dtype):
        names = []
        for rank in range(2):
            names.append(self.path(f"rank{rank}.json"))
            with open(names[-1], "w", encoding="utf-8") as f:
                json.dump(self.profile(rank, new, dtype), f)
        return names

    def test_types_of_a_profile(self):
        """PyTorch names types in one way in NCCL's records, in another one in the inputs of ops."""
        for new, dtype, size in ((True, "Float8_e4m3fn", 1), (False, "c10::Float8_e5m2", 1), (True, "Short", 2),
                                 (False, "short int", 2), (True, "ComplexFloat", 8)):
            with self.subTest(dtype):
                found = self.found(*self.profiles(new, dtype), "--ranks", "2")
                self.assertEqual(found["gradient_bytes"], size * 750000)

    def test_trace_without_bytes(self):
        with open(self.path("trace.json"), "w", encoding="utf-8") as f:
            json.dump([{"ph": "X", "name": name, "pid": pid, "tid": 0, "ts": at, "dur": 10,
                        "args": {"step": 1, "model_chunk": 0, "mb_id": 0}}
                       for pid in (0, 1) for at, name in enumerate(("forward-compute", "backward-compute"))], f)
        done = run("whatif", self.path("trace.json"), "--bottleneck", "--format", "straggler")
        self.assertEqual(done.returncode, 2)
        self.assertIn("table of gradients", done.stderr)


if __name__ == "__main__":
    unittest.main()
