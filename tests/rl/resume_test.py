#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=900
"""A training by rewards that was killed, in any phase, goes on with the samples and losses that it would have had, bit for
bit: in every phase once, and at random moments (HOCKET_LONG=1: 30). Prints the seed."""
import json
import os
import random
import signal
import subprocess
import time
import unittest

import rl_util
from rl_util import cli_util

SCORER = """import json, sys, time
for line in sys.stdin:
    row = json.loads(line)
    time.sleep(0.002)
    right = sum(a == b for a, b in zip(row["solution_str"], row["ground_truth"]))
    print(json.dumps({"score": right}), flush=True)
"""


def rank_of(pid):
    with open(f"/proc/{pid}/environ", encoding="utf-8") as f:
        return dict(pair.split("=", 1) for pair in f.read().split("\0") if "=" in pair).get("RANK")


class Resume(rl_util.RlTest):
    def run_config(self, name):
        with open(self.path("scorer.py"), "w", encoding="utf-8") as f:
            f.write(SCORER)
        return self.write_run(name, train={"steps": 12, "save_every": 2, "eval_every": 4},
                              rl={"prompts_per_update": 2, "dynamic_sampling": {"on": True},
                                  "rewards": [{"type": "exec", "command": "python3 " + self.path("scorer.py")}],
                                  "advantage": "gae", "kl_coef": 0.05})

    def lines(self, name):
        """Losses and metrics of samples, which must be equal; not times."""
        updates, evaluations = self.metrics(name)
        return [{key: value for key, value in line.items() if not key.startswith(("time", "timing_s/", "perf/", "memory/"))}
                for line in updates + evaluations]

    def test_kills(self):
        whole = self.run_config("whole")
        begin = time.monotonic()
        self.rl("whole")
        took = time.monotonic() - begin
        self.assertTrue(os.path.exists(whole))
        self.run_config("killed")
        seed = int(os.environ.get("SEED", random.randrange(10**6)))
        kills = 30 if os.environ.get("HOCKET_LONG") else 6
        print(f"seed {seed}, {kills} kills in {took:.1f} s", flush=True)
        draw = random.Random(seed)
        for kill in range(kills):
            process = subprocess.Popen([cli_util.HOCKET, "rl", self.path("killed.yaml")], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
            try:
                process.wait(draw.uniform(0.05, 1) * took)
            except subprocess.TimeoutExpired:
                pass
            process.send_signal(signal.SIGKILL)
            error = process.communicate()[1]
            self.assertIn(process.returncode, (-signal.SIGKILL, 0), f"kill {kill}: {error}")
        self.rl("killed")
        self.assertEqual(self.lines("whole"), self.lines("killed"))
        self.assertEqual(self.samples("whole"), self.samples("killed"))

    @unittest.skipUnless(os.path.exists(os.path.join(cli_util.BINARY_DIR, "libhocket_torch.so")), "no c10d")
    def test_kills_of_a_rank(self):
        """Ranks are processes; one of them is killed, and the launcher ends the other."""
        for name in ("whole", "killed"):
            path = self.run_config(name)
            with open(path, encoding="utf-8") as f:
                run = json.load(f)
            run["plan"] = {"dp": 2, "ranks": "gloo", "timeout_s": 10}
            with open(path, "w", encoding="utf-8") as f:
                json.dump(run, f)
        launch = ["launch", "-n", 2, "rl"]
        begin = time.monotonic()
        self.hocket(*launch, self.path("whole.yaml"))
        took = time.monotonic() - begin
        seed = int(os.environ.get("SEED", random.randrange(10**6)))
        kills = 30 if os.environ.get("HOCKET_LONG") else 3
        print(f"seed {seed}, {kills} kills of a rank in {took:.1f} s", flush=True)
        draw, killed = random.Random(seed), 0
        for _ in range(kills):
            process = subprocess.Popen([cli_util.HOCKET, *map(str, launch), self.path("killed.yaml")], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            time.sleep(draw.uniform(0.2, 1) * took)
            with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as f:
                ranks = [int(pid) for pid in f.read().split()]
            if ranks:
                os.kill(draw.choice(ranks), signal.SIGKILL)
                killed += 1
            process.wait(60)
        self.assertGreater(killed, 0)
        self.hocket(*launch, self.path("killed.yaml"))
        self.assertEqual(self.lines("whole"), self.lines("killed"))
        self.assertEqual(self.samples("whole"), self.samples("killed"))

    def test_signal_saves(self):
        self.run_config("whole")
        self.rl("whole")
        self.run_config("stopped")
        process = subprocess.Popen([cli_util.HOCKET, "rl", self.path("stopped.yaml")], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while not os.path.exists(self.path("stopped", "trajectories", "step-000003.jsonl")):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=120)[0]
        self.assertEqual(143, process.returncode, said)
        self.assertIn("the same command goes on from there", said)
        self.rl("stopped")
        self.assertEqual(self.lines("whole"), self.lines("stopped"))

    def test_a_signal_does_not_wait_for_rewards(self):
        with open(self.path("slow.py"), "w", encoding="utf-8") as f:
            f.write(SCORER.replace("0.002", "20 if os.path.exists('slow') else 0").replace("import json,", "import json, os,"))
        self.write_run("run", train={"steps": 1000}, data={"evaluation": [], "valid_fraction": 0},
                       rl={"rewards": [{"type": "exec", "command": "python3 slow.py", "timeout_s": 60}]})
        process = subprocess.Popen([cli_util.HOCKET, "rl", self.path("run.yaml")], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while not os.path.exists(self.path("run", "trajectories", "step-000002.jsonl")):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        with open(self.path("slow"), "w", encoding="utf-8"):
            pass
        time.sleep(1)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=240)[0]
        self.assertLess(time.monotonic() - begin, 15)
        self.assertEqual(143, process.returncode, said)
        self.assertIn("SIGTERM: dropping the samples of step", said)
        self.assertTrue(os.listdir(self.path("run", "checkpoints")), said)

    @unittest.skipUnless(os.path.exists(os.path.join(cli_util.BINARY_DIR, "libhocket_torch.so")), "no c10d")
    def test_a_signal_to_another_rank_does_not_wait(self):
        """Rank 1 gets it, while rank 0 waits for rewards, and while it samples."""
        with open(self.path("slow.py"), "w", encoding="utf-8") as f:
            f.write(SCORER.replace("0.002", "40 if os.path.exists('slow') else 0").replace("import json,", "import json, os,"))
        for phase, keys in (("rewards", {}), ("samples", {"max_num_seqs": 1, "samples_per_prompt": 1 << 12})):
            with self.subTest(phase):
                self.write_run(phase, train={"steps": 1000, "save_every": 1}, data={"evaluation": [], "valid_fraction": 0},
                               plan={"dp": 2, "ranks": "gloo", "timeout_s": 60},
                               rl={"rewards": [{"type": "exec", "command": "python3 slow.py", "timeout_s": 120}], **keys})
                process = subprocess.Popen([cli_util.HOCKET, "launch", "-n", "2", "rl", self.path(phase + ".yaml")],
                                           cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if phase == "rewards":
                    while not os.path.exists(self.path(phase, "trajectories", "step-000002.jsonl")):
                        self.assertIsNone(process.poll())
                        time.sleep(0.01)
                    with open(self.path("slow"), "w", encoding="utf-8"):
                        pass
                    time.sleep(2)
                else:
                    while not process.stdout.readline().startswith("memory "):
                        self.assertIsNone(process.poll())
                    time.sleep(5)
                begin = time.monotonic()
                with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as f:
                    ranks = [int(pid) for pid in f.read().split()]
                second = next(pid for pid in ranks if rank_of(pid) == "1")
                os.kill(second, signal.SIGTERM)
                said = process.communicate(timeout=240)[0]
                self.assertLess(time.monotonic() - begin, 15, said)
                self.assertIn("the same command goes on from there", said)
                self.assertEqual(143, process.returncode, said)

    def test_a_signal_keeps_scored_groups(self):
        """A judge answers differently every time; the rounds that it scored before a signal are not scored again."""
        scorer = SCORER.replace('print(json.dumps({"score": right}), flush=True)',
                                'open("asked", "a").write("x")\n'
                                '    print(json.dumps({"score": int(random.random() < 0.02)}), flush=True)')
        with open(self.path("judge.py"), "w", encoding="utf-8") as f:
            f.write(scorer.replace("import json,", "import json, random,"))
        sections = {"data": {"evaluation": [], "valid_fraction": 0}}
        rl = {"dynamic_sampling": {"on": True}, "rewards": [{"type": "exec", "command": "python3 judge.py"}]}
        self.write_run("run", train={"steps": 1000}, rl=rl, **sections)
        process = subprocess.Popen([cli_util.HOCKET, "rl", self.path("run.yaml")], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while not os.path.exists(self.path("run", "trajectories", "step-000001.jsonl")):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=120)[0]
        self.assertEqual(143, process.returncode, said)
        done = len(self.metrics("run")[0])
        kept = self.path("run", "checkpoints", f"step-{done:06d}", "samples.cbor")
        self.assertTrue(os.path.exists(kept), said)
        self.write_run("run", train={"steps": done + 2}, rl=rl, **sections)
        self.rl("run")
        self.assertEqual(done + 2, len(self.metrics("run")[0]))
        groups = [row[:2] for row in self.samples("run")]
        self.assertEqual(len(groups), len(set(groups)))
        # All but those of the round that the signal dropped, of at most 8 prompts, were asked for once.
        again = os.path.getsize(self.path("asked")) - 4 * self.metrics("run")[0][-1]["rl/prompts"]
        self.assertTrue(0 <= again <= 32, again)

    def test_a_solved_task_ends_well(self):
        """All answers are right: no group has different rewards, and the run ends with 0; or all are wrong, with 1."""
        for name, score, code in (("solved", 1, 0), ("hopeless", 0, 1)):
            with self.subTest(name):
                with open(self.path(name + ".py"), "w", encoding="utf-8") as f:
                    f.write(SCORER.replace("time.sleep(0.002)", f"right = {score}").replace("    right = sum", "    # sum"))
                self.write_run(name, train={"steps": 4}, output={"dir": self.path(name), "report": True, "trace": False},
                               rl={"dynamic_sampling": {"on": True}, "max_new_tokens": 2,
                                   "rewards": [{"type": "exec", "command": f"python3 {name}.py", "processes": 1}]})
                said = self.rl(name, code=code)
                self.assertIn("the last 516 groups had equal ones", said)
                self.assertEqual(score == 1, "the task is solved" in said, said)
                if code == 0:
                    self.assertTrue(self.metrics(name)[1][-1]["eval/final"])

    def test_limits_and_judges_may_change(self):
        """The way to the same rewards is free; what they are is not, and is named."""
        with open(self.path("scorer.py"), "w", encoding="utf-8") as f:
            f.write(SCORER)
        exec_of = lambda **keys: [{"type": "exec", "command": "python3 scorer.py", **keys}]
        sections = {"train": {"steps": 2}, "data": {"evaluation": [], "valid_fraction": 0}}
        self.write_run("run", rl={"rewards": exec_of(), "dynamic_sampling": {"on": True, "max_rounds": 40}}, **sections)
        self.rl("run")
        sections["train"] = {"steps": 3}
        self.write_run("run", rl={"rewards": exec_of(weight=2), "dynamic_sampling": {"on": True}}, **sections)
        self.assertIn("was saved with rl.rewards[0].weight = 1.0; this run has 2.0", self.rl("run", code=2))
        self.write_run("run", rl={"rewards": exec_of(timeout_s=50, retries=3, processes=1),
                                  "dynamic_sampling": {"on": True, "max_rounds": 50}}, **sections)
        self.rl("run")
        self.assertEqual([1, 2, 3], [line["step"] for line in self.metrics("run")[0]])


if __name__ == "__main__":
    unittest.main()
