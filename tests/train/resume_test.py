#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: serial
# ctest: slow, without sanitizers
# ctest: timeout=600
"""kill -9 at random instants of a training run, 6 or with HOCKET_LONG=1 20.

After each, every loss written so far equals, to the bit, that of the undisturbed run; the same command then resumes from
the last complete checkpoint."""
import json, os, pathlib, random, shutil, signal, subprocess, sys, tempfile, time

ROOT = pathlib.Path(os.environ.get("HOCKET_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
HOCKET = pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket"
LONG = os.environ.get("HOCKET_LONG", "0") not in ("", "0")
SEED, KILLS, STEPS = 7, 20 if LONG else 6, 60

CONFIG = """
model:
  config: {model_type: qwen3_moe, vocab_size: 400, hidden_size: 32, num_hidden_layers: 2,
           num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16, intermediate_size: 48,
           moe_intermediate_size: 24, num_experts: 4, num_experts_per_tok: 2, norm_topk_prob: true,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 128, hidden_act: silu,
           router_aux_loss_coef: 0.01, tie_word_embeddings: true}
data: {files: ["%(dir)s/text/*.txt"], dir: "%(dir)s/data", tokenizer: "%(dir)s/tok", vocab_size: 400,
       valid_fraction: 0.2}
train: {steps: %(steps)d, global_batch: 4, seq_len: 64, save_every: 3, eval_every: 20,
        eval_sequences: 2, warmup_steps: 5}
plan: {micro_batch: 1, dp: 2, ep: 2, threads_per_rank: 1}
output: {dir: "%(dir)s/run", report: false, trace: false}
"""


def losses(folder):
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut by a kill
        if "train/loss" in row:
            found.setdefault(row["step"], set()).add((row["train/loss"], row["train/grad_norm"]))
    return found


def compare(folder, want):
    """Asserts the loss and gradient norm of every step written so far; returns the number of steps."""
    got = losses(folder) if (folder / "metrics.jsonl").exists() else {}
    for step, values in got.items():
        assert values == want[step], f"step {step}: {values} against {want[step]}"
    return len(got)


def times(folder):
    """Returns the seconds of a run's steps, by its own clock."""
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["time_s"]


def wait_for_step(path, process):
    """Returns when the process has written one more line of metrics, or has ended."""
    size = lambda: path.stat().st_size if path.exists() else 0
    before = size()
    while size() <= before and process.poll() is None:
        before = min(before, size())  # a new run begins with an empty file
        time.sleep(0.002)


def main():
    print(f"seed {SEED}, {KILLS} kills" + ("" if LONG else "; HOCKET_LONG=1 takes 20"), flush=True)
    random.seed(SEED)
    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)
        (top / "text").mkdir()
        words = ["alpha", "beta", "gamma", "int", "return", "{", "}", ";", "\n", "template", "std"]
        for i in range(40):
            (top / "text" / f"{i}.txt").write_text(" ".join(random.choice(words) for _ in range(400)))
        config = top / "run.yaml"
        config.write_text(CONFIG % {"dir": top, "steps": STEPS})
        run = lambda *a: subprocess.run([HOCKET, *a], check=True, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE)
        run("data", "train-tokenizer", config)
        run("data", "prepare", config)
        whole = ["--set", f"output.dir={top}/whole"]
        run("train", config, *whole)
        want = losses(top / "whole")
        assert sorted(want) == list(range(1, STEPS + 1)), sorted(want)
        training_s = times(top / "whole")
        compared = resumed = runs = 0
        while compared < KILLS:
            runs += 1
            assert runs <= 10 * KILLS, f"only {compared} of {runs} runs were killed after a step"
            p = subprocess.Popen([HOCKET, "train", config], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
            # A quarter of the instants fall anywhere from the start of the process on, the others after its first step:
            # in steps, evaluations and checkpoints.
            if random.random() > 0.25:
                wait_for_step(top / "run" / "metrics.jsonl", p)
            try:
                out, _ = p.communicate(timeout=random.uniform(0, training_s))
            except subprocess.TimeoutExpired:
                p.send_signal(signal.SIGKILL)
                out, _ = p.communicate()
                compared += compare(top / "run", want) > 0
            else:
                assert p.returncode == 0, p.returncode
                assert compare(top / "run", want) == STEPS
                # Finished: start over for the remaining kills.
                shutil.rmtree(top / "run" / "checkpoints")
            resumed += b"resumed from" in out
        run("train", config)
        assert compare(top / "run", want) == STEPS
        assert compared == KILLS and resumed > 0, (compared, resumed)
        print(f"{compared} kills of {runs} runs, {resumed} resumed: losses bit-identical after each")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    sys.exit(main())
