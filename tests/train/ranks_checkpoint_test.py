#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: serial
# ctest: slow, without sanitizers
# ctest: timeout=600
"""Checkpoints of ranks as processes: loaded under other plans and numbers of ranks, on hosts without a shared file
system (processes with mounts of their own), and with a full disk."""
import json, os, pathlib, shutil, subprocess, tempfile, unittest

from ranks_test import BUILD, CONFIG, HOCKET, free_port, losses, weights

SETTINGS = ["train.eval_every=0", "train.save_every=2", "train.keep_last=0"]


def steps_of(folder):
    """Returns loss and norm of every step, without the evaluation at the end of each start."""
    return [row for row in losses(folder) if row[1] is not None]


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (BUILD / "libhocket_torch.so").exists():
            raise unittest.SkipTest("this build has no libhocket_torch.so (tools/setup.sh --torch)")
        cls.dir = pathlib.Path(tempfile.mkdtemp())
        (cls.dir / "text").mkdir()
        for i in range(12):
            (cls.dir / f"text/{i}.txt").write_text(" ".join(f"word{(i * 37 + k * k) % 211}" for k in range(900)))
        cls.config = cls.dir / "run.yaml"
        cls.config.write_text(CONFIG % {"dir": cls.dir})
        for verb in (["train-tokenizer"], ["prepare"]):
            subprocess.run([HOCKET, "data", *verb, cls.config], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)

    def words(self, name, plan, steps):
        keys = [f"output.dir={self.dir / name}", f"train.steps={steps}", *SETTINGS, *(f"plan.{key}" for key in plan)]
        return ["train", str(self.config), *(word for key in keys for word in ("--set", key))]

    def run_it(self, command, code=0):
        r = subprocess.run([str(w) for w in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           timeout=240, check=False)
        self.assertEqual(code, r.returncode, f"{command}\n{r.stdout}\n{r.stderr}")
        return r

    def on_hosts(self, folders, words, mount="--bind"):
        """Runs one process per folder, which it sees as output.dir; returns (code, stderr) of each."""
        out = self.dir / "host"
        out.mkdir(exist_ok=True)
        port, processes = str(free_port()), []
        for rank, folder in enumerate(folders):
            folder.mkdir(exist_ok=True)
            option = mount if rank else "--bind"
            script = f'mount {option} {folder if option == "--bind" else "none"} {out} && exec "$0" "$@"'
            place = {"RANK": str(rank), "WORLD_SIZE": str(len(folders)), "LOCAL_RANK": str(rank),
                     "LOCAL_WORLD_SIZE": str(len(folders)), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
            processes.append(subprocess.Popen(
                ["unshare", "-m", "--propagation", "private", "sh", "-c", script, HOCKET, *words],
                env=dict(os.environ, **place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        told = [process.communicate(timeout=240) for process in processes]
        return [(process.returncode, out + err) for process, (out, err) in zip(processes, told)]

    def test_other_plans_on_other_numbers_of_ranks_go_on(self):
        first = ["dp=2", "pp=2", "shard.optimizer=all"]
        self.run_it([HOCKET, *self.words("other", first, 8)])
        want = steps_of(self.dir / "other")
        self.run_it([HOCKET, "launch", "-n", 4, *self.words("plans", first, 8)])
        files = json.loads((self.dir / "plans/checkpoints/step-000002/run.json").read_text())["files"]
        for name in ("model.safetensors", "optimizer.safetensors"):
            parts = files[name]["parts"]
            self.assertEqual(files[name]["bytes"], sum(self.length(part) for part in parts))
            ranks = {part["rank"] for part in parts}
            # The first of the replicas writes the tensors that all hold.
            self.assertEqual({0, 2} if name.startswith("model") else {0, 1, 2, 3}, ranks)
        for n, plan, last in ((2, ["tp=2"], 2), (3, ["pp=3", "pp_layers=[1,2,1]"], 4), (1, ["dp=2", "ep=2"], 6)):
            # As if the previous run had been killed after this step.
            for later in range(last + 2, 10, 2):
                shutil.rmtree(self.dir / f"plans/checkpoints/step-{later:06}")
            command = [HOCKET, *(["launch", "-n", n] if n > 1 else []), *self.words("plans", plan, 8)]
            self.assertIn(f"(step {last})", self.run_it(command).stdout)
        got = steps_of(self.dir / "plans")
        for one, other in zip(got, want, strict=True):
            self.assertEqual(one[0], other[0])
            self.assertAlmostEqual(one[1], other[1], delta=1e-4)

    @staticmethod
    def length(part):
        return sum(length * (more[1] if more else 1) for _, length, *more in part["ranges"])

    def test_a_killed_run_goes_on_to_the_bit(self):
        plan = ["dp=2", "shard.params=all"]
        self.run_it([HOCKET, *self.words("local", plan, 6)])
        self.run_it([HOCKET, "launch", "-n", 2, *self.words("run", plan, 6)])
        self.assertEqual(weights(self.dir / "local"), weights(self.dir / "run"))
        shutil.rmtree(self.dir / "run/checkpoints/step-000006")
        shutil.rmtree(self.dir / "run/checkpoints/step-000004")
        self.assertIn("(step 2)", self.run_it([HOCKET, "launch", "-n", 2, *self.words("run", plan, 6)]).stdout)
        self.assertEqual(weights(self.dir / "local"), weights(self.dir / "run"))

    def test_an_error_of_all_ranks_is_told_once(self):
        (self.dir / "broken/checkpoints/step-000001").mkdir(parents=True)
        (self.dir / "broken/checkpoints/step-000001/run.json").write_text("{}", encoding="utf-8")
        for _ in range(3):
            r = self.run_it([HOCKET, "launch", "-n", "2", *self.words("broken", ["dp=2"], 2)], code=2)
            self.assertEqual(1, r.stderr.count("no intact checkpoint: step-000001 (rank 0: "), r.stderr)

    def need_mounts(self):
        probe = ["unshare", "-m", "--propagation", "private", "sh", "-c", f"mount -t tmpfs none {self.dir / 'text'}"]
        if shutil.which("unshare") is None or subprocess.run(probe, check=False, capture_output=True).returncode != 0:
            self.skipTest("this user may not mount")

    def test_hosts_without_a_shared_file_system(self):
        self.need_mounts()
        hosts = [self.dir / "a", self.dir / "b"]
        plan = ["dp=2", "shard.optimizer=all"]
        self.run_it([HOCKET, *self.words("one", plan, 6)])
        for steps in (2, 4):
            for code, text in self.on_hosts(hosts, self.words("host", plan, steps)):
                self.assertEqual(0, code, text)
        self.assertEqual(["step-000002", "step-000004"], sorted(os.listdir(hosts[0] / "checkpoints")))
        self.assertEqual(["step-000002", "step-000004"], sorted(os.listdir(hosts[1] / "checkpoints")))
        newest = [host / "checkpoints/step-000004" for host in hosts]
        for folder in newest:
            self.assertIn("model.part.safetensors", os.listdir(folder))
            r = self.run_it([HOCKET, "generate", folder, "--max-new-tokens", "1"], code=2)
            self.assertIn("has only the weights of one host", r.stderr)
        # Another plan needs tensors of the other host.
        told = self.on_hosts(hosts, self.words("host", ["pp=2", "micro_batch=2"], 6))
        self.assertTrue(all(code != 0 for code, _ in told), told)
        text = told[0][1]
        self.assertIn("the ranks on this host need data of others", text)
        self.assertRegex(text, r"written by rank [01] on host [01] \(")
        # After the hosts' folders are merged, every verb reads the result.
        whole = self.dir / "whole/step-000004"
        r = self.run_it([HOCKET, "checkpoint", "join", *newest, "--out", whole])
        self.assertRegex(r.stdout, r"step 4, .* of tensors, from 2 folders of 2 hosts")
        self.run_it([HOCKET, "generate", whole, "--max-new-tokens", "1"])
        self.assertIn("written by rank 1 on host 1 of 2",
                      self.run_it([HOCKET, "checkpoint", "join", newest[0], "--out", self.dir / "x"], code=2).stderr)
        joined = [self.dir / "e", self.dir / "f", self.dir / "g"]
        for folder in joined:
            shutil.copytree(whole, folder / "checkpoints/step-000004")
        for code, text in self.on_hosts(joined[:2], self.words("host", ["pp=2", "micro_batch=2"], 6)):
            self.assertEqual(0, code, text)
        self.run_it([HOCKET, *self.words("g", plan, 6)])
        for one, other in zip(steps_of(joined[0]), steps_of(joined[2]), strict=True):
            self.assertEqual(one[0], other[0])
            self.assertAlmostEqual(one[1], other[1], delta=1e-4)
        # If one host has lost the newest checkpoint, all resume from the previous one.
        newest[1].rename(self.dir / "lost")
        told = self.on_hosts(hosts, self.words("host", plan, 6))
        self.assertEqual([0, 0], [code for code, _ in told], told)
        self.assertIn("(step 2)", told[0][1])
        self.assertIn("step-000004 (rank 1: is missing on host " + os.uname().nodename + ")", told[0][1])
        self.assertEqual(steps_of(self.dir / "one"), steps_of(hosts[0]))

    def test_a_full_disk_of_one_rank_ends_all(self):
        self.need_mounts()
        hosts = [self.dir / "c", self.dir / "d"]
        told = self.on_hosts(hosts, self.words("host", ["dp=2"], 2), mount="-t tmpfs -o size=256k")
        self.assertEqual([1, 1], [code for code, _ in told], told)
        self.assertIn("rank 1: writing failed: No space left on device", told[0][1])
        self.assertIn("there is no checkpoint yet", told[0][1])
        self.assertEqual([], os.listdir(hosts[0] / "checkpoints"))


if __name__ == "__main__":
    unittest.main(verbosity=1)
