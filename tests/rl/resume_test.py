#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
# ctest: timeout=900
"""A training by rewards that `kill -9` ends in any phase goes on with the samples and losses that it would have had, bit
for bit.

Every kill has a fresh folder. To meet a phase of a step, the run is stopped there by SIGSTOP, its files must show that
phase, and SIGKILL ends it. Where rewards are asked for, the command that scores stops the run (SCORER); elsewhere the test
does, when a file appears. A run that got past the phase goes on to a later step. Other kills come at random moments.
HOCKET_LONG=1: 30 kills by phase, 10 at random, 6 of ranks, 5 of reward processes. Prints the seed; SEED=S takes another."""
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

import rl_util
from rl_util import cli_util

LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")
SEED = int(os.environ.get("SEED", random.randrange(10**6)))

# Updates of a run, two a step. A killed step begins after so many: none of them has an evaluation.
UPDATES, EVAL_EVERY, BEGINS = 20, 8, (2, 4, 6)
AFTER = 10  # updates that are left at least when a run is killed
ROUND = 16  # samples of a step, and of its first round without dynamic sampling
TRIES = 5  # runs to meet a phase
HOLD_S = 60  # seconds for a run to meet it

# Scores. With $SCORED it keeps in that file a line for each event of a sample to train on: the updates of $METRICS before it,
# and "asked" or "answered". With $STOP_AT, "EVENT N UPDATES", it stops the run at the N-th such event of every step after so
# many updates. With $DIE_AT, N, it ends itself by SIGKILL, once, in place of an answer after N events.
SCORER = """import json, os, signal, sys, time

def state_and_parent(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[:2]

def stop_hocket():
    pid = os.getppid()
    while os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "hocket":
        pid = int(state_and_parent(pid)[1])
    os.kill(pid, signal.SIGSTOP)
    last = time.monotonic() + 1  # the test may let it go on before this process looks
    while state_and_parent(pid)[0] != "T" and time.monotonic() < last:
        pass
    while state_and_parent(pid)[0] == "T":
        time.sleep(0.001)

def updates():
    try:
        with open(os.environ["METRICS"]) as f:
            return f.read().count('"train/loss"')
    except OSError:
        return 0

def note(done, event):
    with open(os.environ["SCORED"], "a+") as f:
        print(done, event, file=f, flush=True)
        f.seek(0)
        return f.read().splitlines()

def stop_at(done, event, lines):
    wanted, count, begin = os.environ.get("STOP_AT", "nothing 0 0").split()
    if event == wanted and done >= int(begin) and lines.count(f"{done} {event}") == int(count):
        stop_hocket()

for line in sys.stdin:
    row = json.loads(line)
    noted = "SCORED" in os.environ and row["extra_info"]["split"] == "train"
    if noted:
        done = updates()
        lines = note(done, "asked")
        stop_at(done, "asked", lines)
        if len(lines) >= int(os.environ.get("DIE_AT", 10**9)) and "died" not in str(lines):
            note(done, "died")
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002)
    right = sum(a == b for a, b in zip(row["solution_str"], row["ground_truth"]))
    print(json.dumps({"score": right}), flush=True)
    if noted:
        stop_at(done, "answered", note(done, "answered"))
"""

# Phases of a step, with the event that $STOP_AT names; the others begin with a file.
PHASES = {"rollout": "asked 1", "another round": f"asked {ROUND + 1}", "reward": f"asked {ROUND}",
          "advantage": f"answered {ROUND}", "update": None, "save": None}


def rank_of(pid):
    with open(f"/proc/{pid}/environ", encoding="utf-8") as f:
        return dict(pair.split("=", 1) for pair in f.read().split("\0") if "=" in pair).get("RANK")


def rank_pids(launcher):
    """Returns the process of each rank, while all of them are there."""
    try:
        with open(f"/proc/{launcher}/task/{launcher}/children", encoding="ascii") as f:
            return {rank_of(pid): int(pid) for pid in f.read().split()}
    except (FileNotFoundError, ProcessLookupError):
        return {}


def is_stopped(pid):
    """Returns whether every thread of a process is."""
    states = set()
    for path in glob.glob(f"/proc/{pid}/task/*/stat"):
        try:
            with open(path, encoding="ascii") as f:
                states.add(f.read().rsplit(")", 1)[1].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # the thread has ended
    return states == {"T"}


def end(run):
    """Ends a run and its ranks, if they have not ended, and returns what it printed."""
    if run.poll() is None:
        for pid in [*rank_pids(run.pid).values(), run.pid]:
            os.kill(pid, signal.SIGKILL)
    return run.communicate()[0]


class Resume(rl_util.RlTest):
    def write_config(self, name, rounds=False, **sections):
        """Writes a run with a critic and a reference; `rounds`: with dynamic sampling."""
        with open(self.path("scorer.py"), "w", encoding="utf-8") as f:
            f.write(SCORER)
        reward = {"type": "exec", "command": "python3 " + self.path("scorer.py"), "processes": 2}
        return self.write_run(name, train={"steps": UPDATES, "save_every": 2, "eval_every": EVAL_EVERY},
                              rl={"prompts_per_update": 2, "dynamic_sampling": {"on": rounds},
                                  "rewards": [reward], "advantage": "gae", "kl_coef": 0.05, "max_num_seqs": 4}, **sections)

    def lines(self, name):
        """Losses and metrics of samples, which must be equal; not times."""
        updates, evaluations = self.metrics(name)
        return [{key: value for key, value in line.items() if not key.startswith(("time", "timing_s/", "perf/", "memory/"))}
                for line in updates + evaluations]

    def expect_same(self, whole, name):
        self.assertEqual(self.lines(whole), self.lines(name))
        self.assertEqual(self.samples(whole), self.samples(name))

    def updates(self, name):
        try:
            with open(self.path(name, "metrics.jsonl"), encoding="utf-8") as f:
                return f.read().count('"train/loss"')
        except FileNotFoundError:
            return 0

    def events(self, name):
        try:
            with open(self.path(name + ".scored"), encoding="utf-8") as f:
                return f.read().splitlines()
        except FileNotFoundError:
            return []

    def phase(self, name):
        """Returns the phase that the files of a run show, or nothing between two of them."""
        if any(glob.glob(self.path(name, folder, "*.hocket-tmp-*")) for folder in ("checkpoints", "critic/checkpoints")):
            return "save"
        done, events = self.updates(name), self.events(name)
        asked, answered = events.count(f"{done} asked"), events.count(f"{done} answered")
        if os.path.exists(self.path(name, "trajectories", f"step-{done - done % 2 + 1:06}.jsonl")):
            return "update"
        if asked == 1:  # the second process waits for a sample: no other one is drawn yet
            return "rollout"
        if asked > ROUND:
            return "another round"
        if asked == ROUND:
            return "reward" if answered < ROUND else "advantage"
        return None

    def begin(self, words, name, **variables):
        environment = dict(os.environ, METRICS=self.path(name, "metrics.jsonl"), SCORED=self.path(name + ".scored"), **variables)
        run = subprocess.Popen([cli_util.HOCKET, *words, self.path(name + ".yaml")], cwd=self.folder, env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self.addCleanup(lambda: run.poll() is None and end(run))
        return run

    def forget(self, name):
        shutil.rmtree(self.path(name), ignore_errors=True)
        if os.path.exists(self.path(name + ".scored")):
            os.remove(self.path(name + ".scored"))

    def hold(self, run, name, phase, begin, of_ranks):
        """Stops a run in a phase of a step that begins after `begin` updates or later. Returns the process, of ranks the first
        one, which scores and writes the files; None if the run got past that phase of all steps, or takes too long."""
        last = time.monotonic() + HOLD_S
        while run.poll() is None and self.updates(name) < UPDATES - AFTER and time.monotonic() < last:
            first = rank_pids(run.pid).get("0") if of_ranks else run.pid
            if first and not PHASES[phase] and self.updates(name) >= begin and self.phase(name) == phase:
                os.kill(first, signal.SIGSTOP)
                while not is_stopped(first) and run.poll() is None and time.monotonic() < last:
                    pass
            if first and is_stopped(first):
                if self.phase(name) == phase:
                    return first
                os.kill(first, signal.SIGCONT)
            time.sleep(0.0005)
        return None

    def kill_in(self, name, phase, begin, words, victim):
        """Kills a new run, or that rank of it, in a phase; returns whether it was in it."""
        self.forget(name)
        run = self.begin(words, name, **({"STOP_AT": f"{PHASES[phase]} {begin}"} if PHASES[phase] else {}))
        first = self.hold(run, name, phase, begin, victim is not None)
        if first is None:
            end(run)
            return False
        killed = rank_pids(run.pid)["1"] if victim == "1" else first
        os.kill(killed, signal.SIGKILL)
        if killed != first:
            os.kill(first, signal.SIGCONT)
        said = run.communicate(timeout=120)[0]
        if victim is None:
            self.assertEqual(-signal.SIGKILL, run.returncode, said)
        else:
            self.assertEqual(128 + signal.SIGKILL, run.returncode, said)
            self.assertIn(f"rank {victim} was ended by signal {signal.SIGKILL:d} ", said)
        return True

    def expect_resumes(self, whole, name, phase, begin, words=("rl",), victim=None):
        """Kills a run in a phase; it must go on to what the whole one has. Returns the updates before the kill."""
        if not any(self.kill_in(name, phase, begin, words, victim) for _ in range(TRIES)):
            self.fail(f"none of {TRIES} runs was stopped in {phase}")
        done = self.updates(name)
        self.assertLessEqual(done, UPDATES - AFTER)
        saved = glob.glob(self.path(name, "checkpoints", "step-" + 6 * "[0-9]"))  # none if the first was being saved
        self.assertEqual(saved != [], "resumed" in self.hocket(*words, self.path(name + ".yaml")))
        self.expect_same(whole, name)
        return done

    def test_kills_in_every_phase(self):
        kills, draw = 30 if LONG else len(PHASES), random.Random(SEED)
        for rounds in (False, True):
            self.write_config(f"whole-{rounds}", rounds)
            self.rl(f"whole-{rounds}")
            self.write_config(f"killed-{rounds}", rounds)
        print(f"seed {SEED}, {kills} kills", flush=True)
        for kill in range(kills):
            phase, begin = list(PHASES)[kill % len(PHASES)], draw.choice(BEGINS)
            rounds = phase == "another round"
            with self.subTest(phase=phase, begin=begin):
                done = self.expect_resumes(f"whole-{rounds}", f"killed-{rounds}", phase, begin)
                print(f"{phase}: killed after {done} updates", flush=True)

    def test_kills_at_random_moments(self):
        self.write_config("whole", True)
        begin = time.monotonic()
        self.rl("whole")
        took = time.monotonic() - begin
        self.write_config("killed", True)
        kills, killed, draw = 10 if LONG else 2, 0, random.Random(SEED)
        print(f"seed {SEED}, {kills} kills in {took:.1f} s", flush=True)
        for _ in range(TRIES * kills):
            self.forget("killed")
            run = self.begin(["rl"], "killed")
            time.sleep(draw.uniform(0.05, 1) * took)
            run.kill()
            said = run.communicate()[0]
            if run.returncode == 0:
                continue  # it ended before
            self.assertEqual(-signal.SIGKILL, run.returncode, said)
            self.rl("killed")
            self.expect_same("whole", "killed")
            killed += 1
            if killed == kills:
                return
        self.fail(f"{killed} kills of {kills}")

    def test_kills_of_a_reward_process(self):
        """Another process is started for the sample; nothing else changes."""
        self.write_config("whole")
        self.rl("whole")
        self.write_config("killed")
        draw = random.Random(SEED)
        for _ in range(5 if LONG else 1):
            self.forget("killed")
            events = draw.randrange(1, 200)
            run = self.begin(["rl"], "killed", DIE_AT=str(events))
            said = run.communicate(timeout=120)[0]
            self.assertEqual(0, run.returncode, said)
            self.assertIn("died", str(self.events("killed")))
            self.expect_same("whole", "killed")

    @unittest.skipUnless(os.path.exists(os.path.join(cli_util.BINARY_DIR, "libhocket_torch.so")), "no c10d")
    def test_kills_of_a_rank(self):
        """Ranks are processes; one of them is killed, and the launcher ends the other."""
        for name in ("whole", "killed"):
            self.write_config(name, plan={"dp": 2, "ranks": "gloo", "timeout_s": 10})
        words, draw = ["launch", "-n", "2", "rl"], random.Random(SEED)
        self.hocket(*words, self.path("whole.yaml"))
        cases = [("reward", "1"), ("update", "0"), ("rollout", "0"), ("advantage", "1"), ("update", "1"), ("save", "0")]
        for phase, victim in cases if LONG else cases[:2]:
            with self.subTest(phase=phase, rank=victim):
                done = self.expect_resumes("whole", "killed", phase, draw.choice(BEGINS), words, victim)
                print(f"{phase}: rank {victim} was killed after {done} updates", flush=True)

    def test_signal_saves(self):
        self.write_config("whole", True)
        self.rl("whole")
        self.write_config("stopped", True)
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
            f.write(SCORER.replace("0.002", "20 if os.path.exists('slow') else 0"))
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
            f.write(SCORER.replace("0.002", "40 if os.path.exists('slow') else 0"))
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
                os.kill(rank_pids(process.pid)["1"], signal.SIGTERM)
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

    def test_coefficients_may_change(self):
        """They make another training from there on, which a warning and a mark say; other keys of the loss are refused."""
        sections = {"train": {"steps": 2}, "data": {"evaluation": [], "valid_fraction": 0}}
        self.write_run("run", rl={"kl_coef": 0}, **sections)
        self.rl("run")
        sections["train"] = {"steps": 4}
        self.write_run("run", rl={"kl_coef": 0.1, "loss": "gspo"}, **sections)
        self.assertIn('was saved with rl.loss = "ppo"', self.rl("run", code=2))
        self.write_run("run", rl={"kl_coef": 0.1, "entropy_coef": 0.01, "clip_high": 0.3, "temperature": 0.7}, **sections)
        said = self.rl("run")
        self.assertIn("from update 3 on the training is another one: rl.kl_coef 0 -> 0.1, rl.entropy_coef 0 -> 0.01, "
                      "rl.clip_high 0.2 -> 0.3, rl.temperature 1 -> 0.7", said)
        updates = self.metrics("run")[0]
        self.assertEqual([1, 2, 3, 4], [line["step"] for line in updates])
        marks = [{key: value for key, value in line.items() if key.startswith("changed/")} for line in updates]
        self.assertEqual([{}, {}, {"changed/rl.kl_coef": 0.1, "changed/rl.entropy_coef": 0.01, "changed/rl.clip_high": 0.3,
                                   "changed/rl.temperature": 0.7}, {}], marks)
        self.assertIn("actor/kl_loss", updates[2])


if __name__ == "__main__":
    unittest.main()
