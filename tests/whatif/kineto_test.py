#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tests hocket whatif on PyTorch profiles: clocks of ranks, host threads, and profiles that lack records, files, the
ends of files, or steps."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
import cli_util  # noqa: E402

import straggler_util  # noqa: E402
from kineto_util import (SLOWEST, document, event, profile, running_ahead, step_time,  # noqa: E402
                         without_collective)

# Microseconds by which the clocks of four ranks are fast, and durations of their kernels.
CLOCKS, KERNELS = [0, 7000, -4000, 123.5], [100, SLOWEST, 100, 100]
# Collectives of two kinds in turns, with different durations.
ROUNDS = [("AllReduce", 100), ("AllGather", 40), ("AllReduce", 20), ("AllReduce", 60), ("AllGather", 150)]


def run(*words):
    return subprocess.run([cli_util.HOCKET, "whatif", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)


class Kineto(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, profiles):
        return [straggler_util.write(self.path(f"file{i}.json"), p) for i, p in enumerate(profiles)]

    def analyse(self, *words):
        done = run(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        found["notes"] = "\n".join(found["dropped"]["notes"])
        return found

    def near(self, seconds, microseconds, tolerance=1e-3):
        self.assertLessEqual(abs(seconds * 1e6 - microseconds), tolerance * microseconds)

    def same(self, found, other):
        for key in ("T", "T_ideal", "S", "T_measured", "cause"):
            self.assertEqual(found[key], other[key], key)

    def job(self, **options):
        return [profile(rank, CLOCKS[rank], KERNELS[rank], **options) for rank in range(4)]

    def test_profiles_of_several_ranks(self):
        profiles = self.job()
        paths = self.write(profiles)
        found = self.analyse(*reversed(paths))
        self.assertEqual(found["dp"], 4)
        # From the step's begin: 10 us, then twice launch, kernel, all-reduce, with 20 us between.
        self.near(found["T"], 10 + 2 * (10 + SLOWEST + 100) + 20)
        self.near(found["T_measured"], 10 + 2 * (10 + SLOWEST + 100) + 20)
        self.near(found["T_ideal"], 10 + 2 * (10 + 150 + 100) + 20, 2e-2)
        self.assertEqual(max(range(4), key=lambda r: found["S_dp"][r]), 1)
        self.assertEqual(len(found["dropped"]["notes"]), 1)
        self.assertIn("clocks of ranks differed by up to 7 ms", found["notes"])
        self.assertEqual((found["cause"], found["causes"][0]["where"]), ("slow worker", "rank 1"))
        self.assertEqual(run(paths[0], paths[0]).returncode, 2)

    def threads_at_once(self):
        """Returns a profile in which one thread launches while another waits for the device."""
        return document([
            event("user_annotation", "ProfilerStep#5", 1, 0, 1100),
            event("cuda_runtime", "cudaLaunchKernel", 1, 10, 10, correlation=1),
            event("kernel", "gemm", 7, 20, 1000, stream=7, correlation=1),
            event("cuda_runtime", "cudaDeviceSynchronize", 1, 20, 1000, correlation=2),
            event("cuda_runtime", "cudaLaunchKernel", 2, 300, 10, correlation=3),
            event("kernel", "copy", 9, 310, 200, stream=9, correlation=3),
            event("cuda_runtime", "cudaLaunchKernel", 1, 1020, 10, correlation=4),
            event("kernel", "gemm", 7, 1030, 50, stream=7, correlation=4)])

    def test_host_threads_at_once(self):
        """Host threads do not wait for each other."""
        found = self.analyse(*self.write([self.threads_at_once()]), "--scale", "gemm*=10")
        self.near(found["T"], 1080)
        self.near(found["T_measured"], 1080)
        # The copy then ends last: its launch, 280 us after the first one, does not wait for the other thread.
        self.near(found["scaled"][0]["T"], 510)

    def test_lost_records_of_collectives(self):
        """After a lost record, the k-th collective of a name differs between ranks. Their ends identify the members;
        the step's time stays, apart from kernels that depended on the lost record."""
        profiles = self.job(rounds=ROUNDS)
        whole = self.analyse(*self.write(profiles))
        self.near(whole["T"], step_time(ROUNDS))
        for rank in (0, 2):
            for k, (name, _) in enumerate(ROUNDS):
                lacks = list(profiles)
                lacks[rank] = without_collective(profiles[rank], k)
                found = self.analyse(*self.write(lacks))
                self.near(found["T"], whole["T"] * 1e6)
                of_name = sum(n == name for n, _ in ROUNDS[:k])
                self.assertIn("the other members of 1 collective: not all ranks have them (one is "
                              f"'ncclKernel_{name}_RING' {of_name} of rank {rank})", found["notes"])
                self.assertIn(f"the work launched by 1 call of rank {rank}: no record", found["notes"])
                self.assertIn("clocks of ranks differed by up to 7 ms", found["notes"])
        # Every rank lacks a different record, so that all have the same number of a name.
        lacks = [without_collective(p, k) for p, k in zip(profiles, (0, 1, 2, 3))]
        found = self.analyse(*self.write(lacks))
        self.near(found["T"], whole["T"] * 1e6, 2e-2)
        self.assertIn("the other members of 4 collectives", found["notes"])

    def test_gaps_that_lost_records_made_are_no_pauses(self):
        """On a rank without records of kernels, gaps of the host are no pauses. A paused rank has a gap that missing
        records of other ranks do not explain."""
        def gaps(found):
            return sum("nothing is waited for" in c["evidence"] for c in found["causes"])
        profiles = self.job()
        for name in ("gemm", "nccl"):
            lacks = list(profiles)
            lacks[1] = {**profiles[1], "traceEvents": [e for e in profiles[1]["traceEvents"] if name not in e["name"]]}
            found = self.analyse(*self.write(lacks))
            self.assertIn("of rank 1: no record", found["notes"])
            self.assertEqual(gaps(found), 0)
            self.assertNotEqual(found["cause"], "pauses")
        for lacks, expected in ((1, 0), (3, 1)):
            paused = [{**p, "traceEvents": [dict(e) for e in p["traceEvents"]]} for p in self.job()]
            for e in paused[1]["traceEvents"]:
                if e["name"] == "void gemm<float>(int)":
                    e["ts"], e["dur"] = e["ts"] + 250, 50
            events = paused[lacks]["traceEvents"]
            events.remove(next(e for e in events if e["cat"] == "kernel" and "nccl" in e["name"]))
            self.assertEqual(gaps(self.analyse(*self.write(paused))), expected)

    def step(self, *profiles, measured, cause=None, replayed=None):
        """Asserts the microseconds of a step, measured and replayed."""
        found = self.analyse(*self.write(profiles))
        self.near(found["T_measured"], measured, 5e-3)
        self.near(found["T"], replayed or measured, 5e-3)
        self.assertEqual(found["cause"], cause)
        return found

    def test_a_host_that_runs_ahead(self):
        """The host's step marks are at its launches, not at the device's execution."""
        # Ten kernels of 100 us a step; the host gets 0.9 ms further ahead with each. The first step includes a launch.
        found = self.step(running_ahead(), measured=1000)
        for seconds in list(found["T_measured_step"].values())[1:]:
            self.near(seconds, 1000)
        self.assertIn("step 0 counts in no mean: it begins with an idle device", found["notes"])
        # The host's work before the first launch of a step is hidden behind the device, in all but the first.
        for steps in (2, 3, 40):
            found = self.step(running_ahead(steps=steps, gap_us=500), measured=1000)
            self.near(found["T_measured_step"]["0"], 1510)
        # A faster device waits for the host.
        self.step(running_ahead(kernel_us=5, gap_us=500), measured=600 + 5 / 5)
        self.step(running_ahead(kernel_us=5), measured=100)

    def test_a_host_that_waits_for_its_device(self):
        """A step begins at the end of the previous one, and includes the host's work before the first launch."""
        self.step(running_ahead(synchronise=True), measured=1011)
        self.step(running_ahead(synchronise=True, gap_us=400), measured=1411)

    def test_kernels_that_become_faster_than_their_launches(self):
        """Faster kernels expose the host's launches."""
        paths = self.write([running_ahead(steps=20)])
        found = self.analyse(*paths, "--scale", "gemm*=20")
        self.near(found["scaled"][0]["T"], 100)
        found = self.analyse(*paths, "--scale", "gemm*=2")
        self.near(found["scaled"][0]["T"], 500)

    def test_a_device_that_is_busy_when_the_profile_begins(self):
        """Kernels launched before the profile are no part of the first step, nor a pause."""
        found = self.step(running_ahead(steps=3, busy_us=3000), measured=1000)
        self.assertIn("1 kernel of rank 0 without a launch in the profile", found["notes"])

    def test_ranks_whose_hosts_run_ahead(self):
        """Hosts are ahead by different times, and clocks differ; devices meet at the end of each step."""
        profiles = [running_ahead(rank=rank, gap_us=gap, clock=clock)
                    for rank, gap, clock in ((0, 0, 0), (1, 0, 7000))]
        self.step(*profiles, measured=1002)
        # One rank waits for its device, and one does not. Alone, the latter would be 11 us a step faster; it waits this
        # long for the other in its collective.
        profiles = [running_ahead(rank=0), running_ahead(rank=1, synchronise=True)]
        for e in profiles[0]["traceEvents"]:
            step = (e["args"].get("correlation", 0) - 1) // 10
            if e["cat"] == "kernel" and step > 0:
                e["ts"] += 11 * (step - 1)
                e["dur"] += 11 if "nccl" in e["name"] else 0
        self.step(*profiles, measured=1011)

    def test_ranks_whose_profiles_begin_apart(self):
        """Ranks start their profilers one after another. A step begins once all have ended the previous one, so with the
        last mark; what the others did before lies before it."""
        profiles = self.job()
        for e in profiles[2]["traceEvents"]:
            if e["name"].startswith("ProfilerStep"):
                e["ts"], e["dur"] = e["ts"] - 900, e["dur"] + 900
        found = self.analyse(*self.write(profiles))
        self.near(found["T_measured"], step_time([("AllReduce", 100)] * 2))
        self.near(found["T"], step_time([("AllReduce", 100)] * 2))

    def two_streams(self):
        """Returns a profile of a host that is ahead: a copy on a stream of its own runs between two kernels. No call says
        that the streams wait for each other."""
        events, correlation = [], 0
        for step in range(4):
            host, device = 1000 + 100 * step, 1010 + 1000 * step
            events.append(event("user_annotation", f"ProfilerStep#{step}", 1, host, 100))
            for k, (name, stream, us) in enumerate((("gemm", 7, 300), ("copy", 9, 400), ("gemm", 7, 300))):
                correlation += 1
                events += [event("cuda_runtime", "cudaLaunchKernel", 1, host + 10 * k, 10, correlation=correlation),
                           event("kernel", name, 7, device, us, stream=stream, correlation=correlation)]
                device += us
        return document(events)

    def test_streams_that_wait_unseen(self):
        """A kernel that begins when one of another stream has just ended waits for it; it is not paused."""
        found = self.step(self.two_streams(), measured=1000)
        self.assertEqual(found["ops"], 4 * 7)  # no time of an idle device
        self.near(self.analyse(*self.write([self.two_streams()]), "--scale", "copy=4")["scaled"][0]["T"], 700)

    def test_a_host_that_waits_for_an_event(self):
        """The time in which a host waits for an event is the device's, even where kernels behind the event still run."""
        events = []
        for step in range(3):
            t = 1000 + 1000 * step
            events += [event("user_annotation", f"ProfilerStep#{step}", 1, t, 990),
                       event("cuda_runtime", "cudaLaunchKernel", 1, t, 10, correlation=10 * step + 1),
                       event("kernel", "gemm", 7, t + 10, 500, stream=7, correlation=10 * step + 1),
                       event("cuda_runtime", "cudaLaunchKernel", 1, t + 10, 10, correlation=10 * step + 2),
                       event("kernel", "norm", 7, t + 510, 400, stream=7, correlation=10 * step + 2),
                       event("cuda_runtime", "cudaEventSynchronize", 1, t + 20, 490, correlation=10 * step + 3),
                       event("cuda_runtime", "cudaDeviceSynchronize", 1, t + 950, 50, correlation=10 * step + 4)]
        found = self.analyse(*self.write([document(events)]), "--scale", "gemm=10")
        self.near(found["T"], 1000)
        # The host's 440 us until its last call run beside the second kernel.
        self.near(found["scaled"][0]["T"], 1000 - 450, 2e-2)

    def test_kernels_of_a_graph(self):
        """All kernels of a graph have the correlation id of its launch. A branch on another stream runs beside them."""
        events = []
        for step in range(3):
            t = 1000 + 1000 * step
            events += [event("user_annotation", f"ProfilerStep#{step}", 1, t, 1000),
                       event("cuda_runtime", "cudaGraphLaunch", 1, t + 10, 10, correlation=10 + step),
                       *[event("kernel", "gemm", 7, t + 20 + 100 * k, 100, stream=7, correlation=10 + step,
                               **{"graph node id": k}) for k in range(5)],
                       event("kernel", "branch", 9, t + 120, 300, stream=9, correlation=10 + step),
                       event("kernel", "gemm", 7, t + 520, 100, stream=7, correlation=10 + step),
                       event("cuda_runtime", "cudaDeviceSynchronize", 1, t + 30, 960, correlation=90 + step)]
        found = self.step(document(events), measured=(990 + 2 * 1000) / 3)
        self.assertEqual(found["ops"], 3 * 10)
        self.assertEqual(found["dropped"]["events"], 0)
        # The branch waits for the first kernel, and ends beside the others.
        found = self.analyse(*self.write([document(events)]), "--scale", "branch=10", "--scale", "gemm*=10")
        self.near(found["scaled"][0]["T"], found["T"] * 1e6)
        self.near(found["scaled"][1]["T"], found["T"] * 1e6 - 600 + 10 + 300 + 10, 2e-2)

    def test_the_only_step_of_a_profile(self):
        """With one step, the time before it is unknown: it begins at its mark."""
        self.step(running_ahead(steps=1), measured=1010)
        self.step(running_ahead(steps=1, gap_us=300), measured=1310)

    def test_ids_that_are_texts(self):
        """Textual thread ids are distinguished by the numbers in them."""
        profile_ = self.threads_at_once()
        whole = self.analyse(*self.write([profile_]), "--scale", "gemm*=10")
        for e in profile_["traceEvents"]:
            e["pid"], e["tid"] = f"p{e['pid']}", f"thread {e['tid']} (python)"
            e["args"].pop("stream", 0)
        found = self.analyse(*self.write([profile_]), "--scale", "gemm*=10")
        self.same(found, whole)
        self.assertEqual(found["scaled"], whole["scaled"])

    def test_steps_that_lack_a_record_are_dropped(self):
        profiles = self.job(rounds=ROUNDS, steps=(5, 6, 7))
        profiles[2] = without_collective(profiles[2], len(ROUNDS))
        found = self.analyse(*self.write(profiles))
        self.assertEqual(len(found["S_step"]), 2)
        self.assertIn("step 6 is not used", found["notes"])
        self.near(found["T"], step_time(ROUNDS))

        # The last step is not used, so dependencies are not taken from it.
        profiles = self.job(rounds=ROUNDS, steps=(5, 6, 7))
        launches = [e for e in profiles[2]["traceEvents"] if e["name"] == "cudaLaunchKernel"]
        profiles[2]["traceEvents"].remove(launches[4 * len(ROUNDS)])
        found = self.analyse(*self.write(profiles))
        self.assertIn("step 7 is not used", found["notes"])
        self.near(found["T"], step_time(ROUNDS))

    def test_collectives_in_another_order(self):
        """Two ranks launch two collectives in opposite order. No clock offset lets both pairs meet, and they would wait
        for each other."""
        paths = self.write([profile(0, 0, 100, [("AllReduce", 100), ("AllGather", 40)]),
                            profile(1, 0, SLOWEST, [("AllGather", 100), ("AllReduce", 40)])])
        self.assertIn("which wait for each other in a cycle", self.analyse(*paths)["notes"])

    def test_missing_ranks(self):
        paths = self.write(self.job())
        self.assertIn("ranks missing of 0 to 3: 2;", self.analyse(paths[0], paths[1], paths[3])["notes"])
        self.assertIn("ranks missing of 0 to 3: 2, 3;", self.analyse(paths[0], paths[1])["notes"])
        self.assertIn("ranks missing of 0 to 3: 0, 1, 2;", self.analyse(paths[3])["notes"])
        many = self.job()
        for p in many:
            p["distributedInfo"]["world_size"] = 1024
        found = self.analyse(*self.write(many))
        self.assertIn("ranks missing of 0 to 1023: 4, 5, 6, 7, 8, 9, 10, 11, 1012 more;", found["notes"])

    def test_a_damaged_file_is_left_out(self):
        profiles = self.job()
        for rank in (0, 2):
            for what, said in (("", "cut off after 0 bytes"), (json.dumps(profiles[rank])[:400], "cut off after"),
                               ('{"schemaVersion": 1, "traceEvents": []}', "got no kernel"),
                               ("no json", "not a trace"),
                               (json.dumps(document([e for e in profiles[rank]["traceEvents"]
                                                     if e["cat"] != "cuda_runtime"], rank)), "got no call")):
                paths = self.write(profiles)
                others = self.analyse(*paths[:rank], *paths[rank + 1:])
                with open(paths[rank], "w", encoding="utf-8") as f:
                    f.write(what)
                found = self.analyse(*paths)
                self.same(found, others)
                self.assertIn(f"{paths[rank]} is left out:", found["notes"])
                self.assertIn(said, found["notes"])
                self.assertIn(f"ranks missing of 0 to 3: {rank};", found["notes"])
                done = run(paths[rank], "--format", "kineto")
                self.assertEqual(done.returncode, 2)
                self.assertIn(said, done.stderr)
        self.assertEqual(run(*paths, self.path("absent.json")).returncode, 2)

    def test_ranks_with_other_steps(self):
        profiles = self.job()
        others = self.analyse(*self.write(profiles)[:3])
        # A profile without step marks, and one with a mark of another step.
        unmarked = document([e for e in profiles[3]["traceEvents"] if "Profiler" not in e["name"]], 3)
        for odd, said in ((unmarked, "got no ProfilerStep"), (profile(3, 0, 100, steps=(4,)), "got no step 5")):
            paths = self.write([*profiles[:3], odd])
            found = self.analyse(*paths)
            self.same(found, others)
            self.assertIn(f"{paths[3]} is left out: {said}", found["notes"])
            self.assertIn("ranks missing of 0 to 3: 3;", found["notes"])
        # Without marks on any rank, the whole profile is a step.
        unmarked = [document([e for e in p["traceEvents"] if "Profiler" not in e["name"]], rank)
                    for rank, p in enumerate(profiles)]
        found = self.analyse(*self.write(unmarked))
        self.assertEqual(found["dp"], 4)
        self.assertIn("no profile has ProfilerStep marks", found["notes"])
        # One rank was profiled a step later: the common steps are used.
        profiles = self.job(steps=(5, 6, 7))
        profiles[3] = profile(3, CLOCKS[3] + step_time([("AllReduce", 100)] * 2), 100, steps=(6, 7, 8))
        found = self.analyse(*self.write(profiles))
        self.assertEqual((found["dp"], len(found["S_step"])), (4, 2))
        self.near(found["T"], step_time([("AllReduce", 100)] * 2))
        self.assertIn("step 5 is not used: of 4 ranks 1 lack it", found["notes"])
        self.assertIn("step 8 is not used: of 4 ranks 3 lack it", found["notes"])
        # One rank was cut off in its first of several steps: it is left out in favour of the others' steps.
        profiles = self.job(steps=(5, 6, 7))
        profiles[3] = profile(3, CLOCKS[3], 100)
        found = self.analyse(*self.write(profiles))
        self.assertEqual((found["dp"], len(found["S_step"])), (3, 3))
        self.assertIn("is left out: got no step 6", found["notes"])

    def test_two_calls_that_launch_the_same(self):
        paths = self.write(self.job())
        once = self.analyse(*paths)
        profiles = self.job()
        for p in profiles:
            call = next(e for e in p["traceEvents"] if e["args"].get("correlation") == 6)
            p["traceEvents"].append({**call, "name": "cuLaunchKernel", "cat": "cuda_driver", "ts": call["ts"] + 1,
                                     "dur": 1})
        self.near(self.analyse(*self.write(profiles))["T"], once["T"] * 1e6)

    def test_what_clocks_and_times_cannot_be(self):
        # A clock that runs a hundred times as fast, which no offset corrects.
        profiles = self.job(rounds=ROUNDS)
        for e in profiles[1]["traceEvents"]:
            e["ts"], e["dur"] = 100 * e["ts"], 100 * e["dur"]
        found = self.analyse(*self.write(profiles))
        self.assertIn("clocks apart", found["notes"])
        self.assertRegex(found["notes"], "ended more than .* before all had started")
        profiles = self.job()
        next(e for e in profiles[0]["traceEvents"] if e["cat"] == "kernel")["dur"] = -5
        self.assertIn("1 event of ", self.analyse(*self.write(profiles))["notes"])


if __name__ == "__main__":
    unittest.main()
