#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: serial
# ctest: slow, without sanitizers
# ctest: timeout=900
"""Ranks as processes give the same numbers as local ranks to the bit under every launcher (hocket launch, torchrun,
mpirun, srun's variables). Also tests ranks that die, hang or differ."""
import json, os, pathlib, random, shutil, signal, socket, subprocess, sys, tempfile, time, unittest

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"))
HOCKET = BUILD / "hocket"
SEED = int(os.environ.get("HOCKET_SEED", "11"))
# Every process loads libtorch, a second each: some cases need HOCKET_LONG=1.
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")

CONFIG = """
model:
  config: {model_type: qwen3_moe, vocab_size: 400, hidden_size: 32, num_hidden_layers: 4,
           num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, intermediate_size: 48,
           moe_intermediate_size: 24, num_experts: 4, num_experts_per_tok: 2, norm_topk_prob: true,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 128, hidden_act: silu,
           router_aux_loss_coef: 0.01, tie_word_embeddings: true}
data: {files: ["%(dir)s/text/*.txt"], dir: "%(dir)s/data", tokenizer: "%(dir)s/tok", vocab_size: 400,
       valid_fraction: 0.2}
train: {steps: 6, global_batch: 8, seq_len: 32, eval_every: 3, eval_sequences: 2, warmup_steps: 2}
plan: {micro_batch: 1, threads_per_rank: 1, timeout_s: 60}
output: {dir: "%(dir)s/run", report: false, trace: false, sample_tokens: 8}
"""

# Plans of 2 and of 4 ranks, with every kind of collective and message.
PLANS = {
    2: [["dp=2", "ep=2"], ["cp=2", "cp_comm_type=p2p"], ["dp=2"], ["pp=2"], ["tp=2"]],
    4: [["dp=2", "pp=2", "pp_schedule=interleaved", "pp_chunks=2"], ["dp=2", "tp=2", "shard.optimizer=all", "all_reduce=ring"],
        ["dp=4", "ep=2", "shard.params=all"]],
}


def cases(*each, short=1):
    """Returns the first `short` of these cases, or all with HOCKET_LONG=1."""
    return each if LONG else each[:short]


def losses(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r.get("train/loss"), r.get("train/grad_norm"), r.get("eval/loss")) for r in rows]


def weights(folder):
    [last] = sorted((folder / "checkpoints").glob("step-*"))[-1:]
    return (last / "model.safetensors").read_bytes()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (BUILD / "libhocket_torch.so").exists():
            raise unittest.SkipTest("this build has no libhocket_torch.so (tools/setup.sh --torch)")
        cls.dir = pathlib.Path(tempfile.mkdtemp())
        rng = random.Random(SEED)
        print(f"seed {SEED}", file=sys.stderr)
        (cls.dir / "text").mkdir()
        words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(300)]
        for i in range(12):
            (cls.dir / f"text/{i}.txt").write_text(" ".join(rng.choices(words, k=900)))
        cls.config = cls.dir / "run.yaml"
        cls.config.write_text(CONFIG % {"dir": cls.dir})
        for verb in (["train-tokenizer"], ["prepare"]):
            subprocess.run([HOCKET, "data", *verb, cls.config], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)

    def words(self, name, plan, *more):
        shutil.rmtree(self.dir / name, ignore_errors=True)
        words = ["train", self.config, "--set", f"output.dir={self.dir / name}"]
        for key in plan:
            words += ["--set", f"plan.{key}"]
        return [str(w) for w in (*words, *more)]

    def run_it(self, command, code=0, **more):
        r = subprocess.run([str(w) for w in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           errors="replace", timeout=240, check=False, **more)
        self.assertEqual(code, r.returncode, f"{command}\n{r.stdout}\n{r.stderr}")
        return r

    def same(self, one, other):
        self.assertEqual(losses(self.dir / one), losses(self.dir / other))
        self.assertEqual(weights(self.dir / one), weights(self.dir / other))

    def near(self, one, other):
        """Asserts equality up to the order of sums."""
        for mine, theirs in zip(losses(self.dir / one), losses(self.dir / other), strict=True):
            self.assertEqual(mine[0], theirs[0])
            for a, b in zip(mine[1:], theirs[1:]):
                self.assertEqual(a is None, b is None)
                self.assertTrue(a is None or abs(a - b) <= 1e-6 * abs(a), f"{mine} {theirs}")

    def test_processes_are_local_ranks_to_the_bit(self):
        for n, plans in PLANS.items():
            for plan in cases(*plans, short=2):
                with self.subTest(plan=plan):
                    self.run_it([HOCKET, *self.words("local", plan)])
                    self.run_it([HOCKET, "launch", "-n", n, *self.words("gloo", plan)])
                    self.same("local", "gloo")

    def test_collectives_of_c10d(self):
        for plan in cases(*reversed(PLANS[4])):
            with self.subTest(plan=plan):
                self.run_it([HOCKET, *self.words("local", plan)])
                self.run_it([HOCKET, "launch", "-n", 4, *self.words("gloo", [*plan, "collectives=c10d"])])
                self.near("local", "gloo")
        r = self.run_it([HOCKET, *self.words("other", ["dp=2", "collectives=c10d"])], code=2)
        self.assertIn("plan.collectives is c10d, and ranks are threads", r.stderr)

    def test_one_process(self):
        self.run_it([HOCKET, *self.words("local", [])])
        self.run_it([HOCKET, "launch", "-n", 1, *self.words("gloo", ["ranks=gloo"])])
        self.same("local", "gloo")
        self.run_it([HOCKET, "launch", "-n", 1, *self.words("other", [])])
        self.same("local", "other")
        r = self.run_it([HOCKET, *self.words("other", ["ranks=gloo"])], code=2)
        self.assertIn("hocket launch -n 1", r.stderr)

    def test_nccl(self):
        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        one_rank = [HOCKET, "launch", "-n", 1, *self.words("nccl", ["ranks=nccl"])]
        r = subprocess.run([str(w) for w in one_rank], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           timeout=240, check=False)
        if r.returncode == 2:
            self.assertIn("plan.ranks is nccl, and ", r.stderr)
            self.assertIn("try plan.ranks: gloo", r.stderr)
            self.skipTest(r.stderr.strip())
        self.assertEqual(0, r.returncode, r.stderr)
        self.run_it([HOCKET, *self.words("local", [])])
        self.near("local", "nccl")
        gpus = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=True).stdout.count("GPU ")
        for plan in PLANS[2] if gpus >= 2 else []:
            with self.subTest(plan=plan):
                self.run_it([HOCKET, *self.words("local", plan)])
                self.run_it([HOCKET, "launch", "-n", 2, *self.words("nccl", [*plan, "ranks=nccl"])], env=env)
                self.near("local", "nccl")

    def test_eval_and_generate(self):
        self.run_it([HOCKET, *self.words("local", ["dp=2"])])
        evaluate = ["eval", self.dir / "local"]
        generate = ["generate", self.dir / "local", "--prompt", "-", "--max-new-tokens", 20]
        for verb, plan in cases((evaluate, "dp=2"), (generate, "tp=2"), (generate, "pp=2"),
                                (evaluate, "tp=2"), (evaluate, "pp=2"), (generate, "dp=2"), short=3):
            with self.subTest(verb=verb[0], plan=plan):
                words = [*verb, f"--set=plan.{plan}"]
                alone = self.run_it([HOCKET, *words], input="abc def")
                together = self.run_it([HOCKET, "launch", "-n", 2, *words], input="abc def")
                self.assertEqual(alone.stdout, together.stdout)

    def test_a_sample_at_the_end(self):
        for ranks, plan in cases((4, ["pp=2", "dp=2", "shard.params=all"]), (2, ["dp=2"])):
            with self.subTest(plan=plan):
                alone = self.run_it([HOCKET, *self.words("local", plan)]).stdout
                together = self.run_it([HOCKET, "launch", "-n", ranks, *self.words("gloo", plan)]).stdout
                self.assertIn("sample (", alone)
                self.assertEqual(*(said[said.index("sample ("):].split("\n\n")[0] for said in (alone, together)))

    def launchers(self):
        torchrun = shutil.which("torchrun", path=f"{BUILD.parent}/.venv/bin:{os.environ['PATH']}")
        if torchrun:
            yield "torchrun", [torchrun, "--no-python", "--nproc-per-node", 2, "--master-port", free_port(), HOCKET], {}
        if shutil.which("mpirun"):
            yield ("mpirun", ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2, HOCKET],
                   {"MASTER_PORT": str(free_port())})

    def test_launchers(self):
        self.run_it([HOCKET, *self.words("local", ["dp=2"])])
        launchers = list(self.launchers())
        if not launchers:
            self.skipTest("neither torchrun nor mpirun is here")
        for name, command, env in launchers:
            with self.subTest(launcher=name):
                self.run_it([*command, *self.words("other", [])], env=dict(os.environ, **env))
                self.same("local", "other")

    def start(self, rank, size, words, **env):
        place = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size), "SLURM_LOCALID": str(rank),
                 "SLURM_STEP_ID": "0", "SLURM_NTASKS_PER_NODE": str(size), "SLURM_STEP_NODELIST": "localhost"}
        return subprocess.Popen([HOCKET, *words], env=dict(os.environ, **place, **env), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def test_srun(self):
        self.run_it([HOCKET, *self.words("local", ["dp=2"])])
        words = self.words("other", [])
        port = str(free_port())
        processes = [self.start(rank, 2, words, MASTER_PORT=port) for rank in range(2)]
        for rank, process in enumerate(processes):
            out, err = process.communicate(timeout=120)
            self.assertEqual(0, process.returncode, err)
            self.assertEqual(rank == 0, "predicted" in out, out)
        self.assertIn("check", (self.dir / "other/logs/rank-1.log").read_text())
        self.same("local", "other")

    def test_as_many_processes_as_the_plan_has_ranks(self):
        for plan, said in (("dp=2", "the plan has 2 ranks"),
                           ("tp=2", "3 processes were started; plan.pp x plan.cp x plan.tp is 2")):
            r = self.run_it([HOCKET, "launch", "-n", 3, *self.words("other", [plan])], code=2)
            self.assertEqual(1, r.stderr.count(said), r.stderr)
        r = self.run_it([HOCKET, *self.words("other", ["dp=2", "ranks=gloo"])], code=2)
        self.assertIn("hocket launch -n 2", r.stderr)
        r = self.run_it([HOCKET, "launch", "-n", 2, *self.words("other", ["dp=2", "ranks=local"])], code=2)
        self.assertIn("plan.ranks is local", r.stderr)

    def errors_of(self, words_of):
        """Returns the errors of two ranks that were started with different arguments, and fail."""
        port = str(free_port())
        processes = [self.start(rank, 2, words_of(rank), MASTER_PORT=port) for rank in range(2)]
        errors = [process.communicate(timeout=120)[1] for process in processes]
        self.assertEqual([1, 1], [process.returncode for process in processes], errors)
        return errors

    def test_ranks_that_differ_are_refused_by_name(self):
        for key, values in cases(("train.lr", ("0.001", "0.1")), ("plan.bucket_mib", ("25", "0.01")),
                                 ("train.save_every", ("2", "3"))):
            with self.subTest(key=key):
                errors = self.errors_of(
                    lambda rank: self.words("other", [], "--set", f"{key}={values[rank]}"))
                self.assertIn(f"rank 1 has '{key}: {values[1]}'; rank 0 has '{key}: {values[0]}'", errors[0])

    def test_what_ranks_evaluate_and_generate_is_the_same(self):
        self.run_it([HOCKET, *self.words("local", ["dp=2"])])
        files = []
        for rank in range(2):
            files.append(self.dir / f"ids{rank}.json")
            files[rank].write_text(json.dumps([[rank, 2, 3, 4]]))
        model = str(self.dir / "local")
        for words_of, told in (
                (lambda rank: ["eval", model, "--ids", str(files[rank])], "has --ids of 1 list"),
                (lambda rank: ["eval", model, "--ids", str(files[0]), "--set", f"plan.{['dp', 'tp'][rank]}=2"],
                 "'plan.dp: 1', 'plan.tp: 2'; rank 0 has"),
                (lambda rank: ["generate", model, "--prompt", "a", "--seed", str(rank)], "rank 1 has sampling of")):
            with self.subTest(told=told):
                self.assertIn(told, self.errors_of(words_of)[0])

    def fail_one(self, victim, signal_sent, plan=("dp=2", "pp=2")):
        """Returns the errors of the other ranks, and their seconds, when one of four dies or hangs after its first
        step."""
        words = self.words("other", [*plan, "timeout_s=6"], "--set", "train.steps=100000")
        port = str(free_port())
        processes = [self.start(rank, 4, words, MASTER_PORT=port) for rank in range(4)]
        metrics = self.dir / "other/metrics.jsonl"
        deadline = time.time() + 90
        while time.time() < deadline and (not metrics.exists() or metrics.stat().st_size == 0):
            time.sleep(0.05)
        time.sleep(0.6)  # notes are written, and read, five times a second
        processes[victim].send_signal(signal_sent)
        begin = time.time()
        errors = {}
        for rank, process in enumerate(processes):
            if rank != victim:
                errors[rank] = process.communicate(timeout=60)[1]
                self.assertEqual(1, process.returncode, errors[rank])
        took = time.time() - begin
        processes[victim].kill()
        processes[victim].communicate()
        return errors, took

    def test_a_rank_that_dies_is_named_with_its_last_task(self):
        c10d = ("dp=4", "shard.params=all", "collectives=c10d")
        for victim, plan in cases((3, ("dp=2", "pp=2")), (0, c10d), (0, ("dp=2", "pp=2")), (2, c10d), short=2):
            with self.subTest(victim=victim, plan=plan):
                errors, took = self.fail_one(victim, signal.SIGKILL, plan)
                self.assertLess(took, 6)
                told = [text for text in errors.values() if "has exited without reporting an error" in text]
                self.assertEqual(1, len(told), errors)
                self.assertIn(f"rank {victim} (on host", told[0])
                self.assertIn("its last task: ", told[0])

    def test_a_rank_that_hangs_is_named(self):
        for plan in cases(("dp=2", "pp=2"), ("dp=4", "shard.params=all", "collectives=c10d")):
            with self.subTest(plan=plan):
                errors, took = self.fail_one(2, signal.SIGSTOP, plan)
                self.assertLess(took, 20)
                told = [text for text in errors.values() if "rank 2 (on host" in text]
                self.assertEqual(1, len(told), errors)
                self.assertIn("has sent nothing for 6 s", told[0])

    def test_rank_0_that_hangs_is_named(self):
        # This rank owns the table in which ranks see each other's state: all end without it.
        for plan in cases(("dp=4", "shard.params=all", "collectives=c10d"), ("dp=2", "pp=2")):
            with self.subTest(plan=plan):
                errors, took = self.fail_one(0, signal.SIGSTOP, plan)
                self.assertLess(took, 20)
                told = [text for text in errors.values() if "rank 0 (on host" in text]
                self.assertEqual(1, len(told), errors)
                self.assertRegex(told[0], r"has not answered for \d+\.\d s \(plan.timeout_s is 6\)")

    # Steps of about a second, each followed by a checkpoint.
    SLOW = [w for key in ("train.steps=2", "train.global_batch=1536", "plan.micro_batch=32", "train.save_every=1")
            for w in ("--set", key)]

    def in_the_last_step(self, words):
        """Starts two ranks whose second step, the last one, is running."""
        port = str(free_port())
        processes = [self.start(rank, 2, words, MASTER_PORT=port) for rank in range(2)]
        first = self.dir / "other/checkpoints/step-000001"
        deadline = time.time() + 90
        while time.time() < deadline and not first.exists():
            time.sleep(0.01)
        time.sleep(0.1)
        return processes

    def goes_on(self, words):
        """Asserts that the same command completes the remaining steps, and then does nothing."""
        self.run_it([HOCKET, *self.words("local", ["dp=2"], *self.SLOW)])
        self.assertIn("resumed from", self.run_it([HOCKET, "launch", "-n", 2, *words]).stdout)
        self.same("local", "other")
        self.assertIn("already finished at step 2 of 2", self.run_it([HOCKET, "launch", "-n", 2, *words]).stdout)

    def test_a_signal_in_the_last_step(self):
        for number, name, code in cases((1, "SIGTERM", 143), (0, "SIGINT", 130)):
            with self.subTest(signal=name, rank=number):
                words = self.words("other", ["dp=2"], *self.SLOW)
                processes = self.in_the_last_step(words)
                processes[number].send_signal(getattr(signal, name))
                told = [process.communicate(timeout=120) for process in processes]
                self.assertEqual([code, code], [process.returncode for process in processes], told)
                log = (self.dir / "other/logs/rank-1.log").read_text()
                self.assertIn(f"{name}: finishing step 2 and saving it", "".join(told[number]) + number * log)
                self.assertIn("stopped after step 2 of 2; the same command goes on from there", told[0][0])
                # Its checkpoint exists, but the evaluation at the end does not.
                self.assertEqual([(1, None), (2, None)], [(row[0], row[3]) for row in losses(self.dir / "other")])
                self.assertTrue((self.dir / "other/checkpoints/step-000002").exists())
                self.goes_on(words)

    def test_a_rank_that_dies_in_the_last_step(self):
        for victim in cases(0, 1):
            with self.subTest(victim=victim):
                words = self.words("other", ["dp=2"], *self.SLOW)
                processes = self.in_the_last_step(words)
                processes[victim].kill()
                told = [process.communicate(timeout=60) for process in processes]
                self.assertEqual(1, processes[1 - victim].returncode, told)
                self.assertIn(f"rank {victim} (on host", told[1 - victim][1])
                self.assertIn("has exited without reporting an error", told[1 - victim][1])
                self.assertEqual(["step-000001"], [p.name for p in (self.dir / "other/checkpoints").glob("step-??????")])
                self.goes_on(words)

    def test_torchrun_starts_again_and_the_run_goes_on(self):
        torchrun = BUILD.parent / ".venv/bin/torchrun"
        if not torchrun.exists():
            self.skipTest("no torchrun")
        words = self.words("other", [], "--set", "train.steps=100", "--set", "train.save_every=10")
        process = subprocess.Popen(
            [str(w) for w in [torchrun, "--no-python", "--nproc-per-node", 2, "--max-restarts", 2, "--master-port",
                              free_port(), HOCKET, *words]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.time() + 90
        while time.time() < deadline and not list((self.dir / "other/checkpoints").glob("step-" + 6 * "[0-9]")):
            time.sleep(0.05)
        ranks = subprocess.run(["pgrep", "-P", str(process.pid)], stdout=subprocess.PIPE, text=True, check=True)
        os.kill(int(ranks.stdout.split()[1]), signal.SIGKILL)
        out, _ = process.communicate(timeout=240)
        self.assertEqual(0, process.returncode, out)
        self.assertIn("resumed from", out)
        self.run_it([HOCKET, *self.words("local", ["dp=2"], "--set", "train.steps=100", "--set", "train.save_every=10")])
        self.assertEqual(set(losses(self.dir / "local")), set(losses(self.dir / "other")))


if __name__ == "__main__":
    unittest.main(verbosity=1)
