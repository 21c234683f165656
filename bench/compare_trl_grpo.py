#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `hocket rl` with TRL's GRPOTrainer on one model and task: updates per hour and memory.

    .venv-peers/tune/bin/python bench/compare_trl_grpo.py --rounds 5

The task is `reverse` (hocket data task; --kind: another), the model its warm-up of 1.3 M parameters, which
transformers opens. Both get the same prompts, by default 32 of them with 16 samples each for an update, temperature 1,
one update a step, GRPO with the mean over tokens, no divergence, AdamW, the same learning rate, fp32, 2 threads. TRL
samples with transformers' generate. The reward is the same rule: TRL's a Python function, ours the built-in `digits`,
or with --python-reward that same function through tools/reward_shim.py. Whole processes alternate, and their order
changes from round to round. An update's time is that between the ends of two updates, so sampling, rewards and all
else count; the first update of a process does not. The result is the median over rounds of the ratio of median times,
and the peak RSS of the processes. Rewards before the first update must agree. Needs torch, transformers and trl in
this Python. Exit code 1 if a bar is missed."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOCKET = str(pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket")
PROMPTS, SAMPLES, LR, BETAS, EPS = 32, 16, 5e-4, (0.9, 0.95), 1e-8
SPEED, MEMORY = 3.0, 0.6  # bars
LIKE = 4  # standard errors by which mean rewards at the start may differ
DEVIATION = 0.1  # of a prompt's mean reward
# Settings of every task: most tokens of an answer, and our reward, whose function has the name of its type.
TASKS = {"reverse": (10, {"type": "digits"}), "multi_addition": (58, {"type": "exact", "extract": "after:="})}
REWARD = '''# The rule `digits`: the share of right places, and 1 more for the whole.
def digits(completions, ground_truth, **kwargs):
    scores = []
    for text, truth in zip(completions, ground_truth):
        text = text.strip()
        right = sum(a == b for a, b in zip(text, truth)) / max(len(text), len(truth))
        scores.append(right + (text == truth))
    return scores


# The rule `exact`, of what stands behind the last "=".
def exact(completions, ground_truth, **kwargs):
    return [float("=" in text and text.rsplit("=", 1)[1].strip() == truth)
            for text, truth in zip(completions, ground_truth)]
'''


def peer(folder, args):
    """Trains with TRL; prints a line of JSON."""
    import runpy
    import datasets
    import torch
    import transformers
    import trl
    torch.set_num_threads(args.threads)
    transformers.set_seed(1)
    ends, cpu = [], []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            ends.append(time.monotonic())
            cpu.append(time.process_time())

    with open(folder / "train.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    data = datasets.Dataset.from_list([{"prompt": row["prompt"], "ground_truth": row["ground_truth"]} for row in rows])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    config = trl.GRPOConfig(
        output_dir=str(folder / "trl"), report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True,
        seed=1, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False, dataloader_num_workers=0,
        max_steps=args.updates, per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.prompts * args.samples // args.batch, num_generations=args.samples,
        max_completion_length=TASKS[args.kind][0], temperature=1.0, top_p=1.0, top_k=0, beta=0.0, num_iterations=1,
        epsilon=0.2, loss_type="dapo", scale_rewards="group", learning_rate=args.lr, lr_scheduler_type="constant",
        warmup_steps=0, adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPS, weight_decay=0.0, max_grad_norm=1.0)
    reward = runpy.run_path(str(folder / "reward.py"))[TASKS[args.kind][1]["type"]]
    trainer = trl.GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=data,
                              processing_class=tokenizer, callbacks=[Watch()])
    trainer.train()
    logged = [row for row in trainer.state.log_history if "reward" in row]
    print(json.dumps({"ends": ends, "cpu": cpu, "rewards": [row["reward"] for row in logged],
                      "lengths": [row["completions/mean_length"] for row in logged], "versions":
                      f"torch {torch.__version__}, transformers {transformers.__version__}, trl {trl.__version__}"}))


def run(command, watched=None):
    """Returns the output of a command, its peak RSS in MiB, and (time, CPU seconds) of each new line of `watched`."""
    times = []
    env = dict(os.environ, OMP_WAIT_POLICY="passive", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=err, env=env)
        ended = threading.Event()
        watch = threading.Thread(target=stamp, args=(watched, process.pid, ended, times)) if watched else None
        if watch:
            watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        if watch:
            watch.join()
        out.seek(0), err.seek(0)
        if process.returncode != 0:
            sys.exit(f"compare_trl_grpo.py: exit code {process.returncode}: {command}\n{err.read()[-3000:]}")
        return out.read(), usage.ru_maxrss / 1024, times


def cpu_seconds(pid):
    """Returns those of a process so far; 0 once it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            words = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def stamp(path, pid, ended, times):
    """Notes time and CPU seconds of the process at each new line of a file, to 10 ms."""
    at = 0
    while True:
        last = ended.is_set()
        if path.exists() and path.stat().st_size > at:
            with open(path, "rb") as f:
                f.seek(at)
                news = f.read()
            at += len(news)
            times.extend([(time.monotonic(), cpu_seconds(pid))] * news.count(b"\n"))
        if last:
            return
        ended.wait(0.01)


def prepare(folder, args):
    """Writes task and reward, and trains the warm-up that both begin with, or takes that of --task."""
    task = folder / "task"
    if args.task:
        task = args.task.resolve()
    else:
        print("training the warm-up", flush=True)
        run([HOCKET, "data", "task", args.kind, "--out", task])
        run([HOCKET, "train", task / "warmup.yaml", "--set", f"plan.threads_per_rank={args.threads}"])
    checkpoints = sorted((task / "warmup/checkpoints").iterdir())
    (folder / "model").symlink_to(checkpoints[-1])
    (folder / "train.jsonl").symlink_to(task / "train.jsonl")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    tokens, reward = TASKS[args.kind]
    if args.python_reward:
        command = f"{sys.executable} {ROOT}/tools/reward_shim.py {folder}/reward.py:{reward['type']}"
        reward = {"type": "exec", "command": command, "processes": 1}
    config = {
        "objective": "rl", "model": {"path": str(folder / "model"), "dtype": "f32"},
        "data": {"sources": [{"path": str(folder / "train.jsonl")}], "valid_fraction": 0},
        "train": {"steps": args.updates, "seq_len": 256, "lr": args.lr, "schedule": "constant", "warmup_steps": 0,
                  "max_grad_norm": 1, "eval_every": 0, "save_every": args.updates, "save_minutes": 0, "seed": 1},
        "optimizer": {"weight_decay": 0, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS}, 
        "plan": {"micro_batch": 4, "threads_per_rank": args.threads},
        "rl": {"prompts_per_step": args.prompts, "samples_per_prompt": args.samples, "max_new_tokens": tokens,
               "rewards": [reward], "max_num_seqs": 512, "max_num_batched_tokens": 1024},
        "output": {"report": False, "trace": False}}
    (folder / "run.yaml").write_text(json.dumps(config), encoding="utf-8")


def ours(folder, name, keys):
    """Trains with Hocket; returns ends of updates, rewards and lengths, and the peak RSS."""
    out = folder / name
    _, peak, seen = run([HOCKET, "rl", folder / "run.yaml", "--set", f"output.dir={out}",
                         *(word for key in keys for word in ("--set", key))], out / "metrics.jsonl")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if len(seen) != len(rows) or any("reward" not in row for row in rows):
        sys.exit(f"compare_trl_grpo.py: {len(seen)} lines seen of {len(rows)}, which should be updates alone")
    return {"ends": [time for time, _ in seen], "cpu": [cpu for _, cpu in seen],
            "rewards": [row["reward"] for row in rows],
            "lengths": [row["completions/mean_length"] for row in rows]}, peak


def between(ends):
    """Median of what passes from one update's end to the next one's."""
    return statistics.median(b - a for a, b in zip(ends, ends[1:]))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--updates", type=int, default=12, help="of each process; the first is not timed")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--lr", type=float, default=LR, help="a small one keeps lengths as they are at the start")
    ap.add_argument("--batch", type=int, help="TRL's per_device_train_batch_size, in samples; default: all of an "
                    "update's. Generation is of all of them in any case")
    ap.add_argument("--prompts", type=int, default=PROMPTS, help="of an update")
    ap.add_argument("--samples", type=int, default=SAMPLES, help="of a prompt")
    ap.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides a key of our run")
    ap.add_argument("--kind", choices=TASKS, default="reverse",
                    help="task; answers of multi_addition have different lengths")
    ap.add_argument("--task", type=pathlib.Path, help="folder of that task with its trained warm-up")
    ap.add_argument("--python-reward", action="store_true", help="our reward, too, is the Python function")
    ap.add_argument("--peer", help=argparse.SUPPRESS)
    args = ap.parse_args()
    args.batch = args.batch or args.prompts * args.samples
    if args.prompts * args.samples % args.batch != 0 or args.updates < 3 or args.rounds < 1:
        ap.error("--batch must divide prompts x samples; at least 3 updates and 1 round")
    if args.peer:
        peer(pathlib.Path(args.peer), args)
        return 0
    with tempfile.TemporaryDirectory(prefix="compare-trl.") as top:
        folder = pathlib.Path(top)
        prepare(folder, args)
        sides = ("trl", "hocket")
        peaks, times, cpu, starts, lengths = ({side: [] for side in sides} for _ in range(5))
        ratios, versions = [], ""
        for number in range(args.rounds):
            found = {}
            for side in sides if number % 2 == 0 else sides[::-1]:
                if side == "trl":
                    said, peak, _ = run([sys.executable, __file__, "--peer", folder, "--updates", args.updates,
                                         "--threads", args.threads, "--batch", args.batch, "--prompts", args.prompts,
                                         "--samples", args.samples, "--kind", args.kind, "--lr", args.lr])
                    found[side] = json.loads(said.splitlines()[-1])
                    versions = found[side]["versions"]
                else:
                    found[side], peak = ours(folder, f"out-{number}", args.set)
                peaks[side].append(peak)
                times[side].append(between(found[side]["ends"]))
                cpu[side].append(between(found[side]["cpu"]))
                lengths[side].append(statistics.fmean(found[side]["lengths"][1:]))
                starts[side].append(found[side]["rewards"][0])
            ratios.append(times["trl"][-1] / times["hocket"][-1])
            print(f"round {number + 1}: " + "; ".join(
                f"{side} {times[side][-1]:.3f} s/update ({cpu[side][-1]:.3f} s CPU), {peaks[side][-1]:.0f} MiB, reward "
                f"{found[side]['rewards'][0]:.3f} to {found[side]['rewards'][-1]:.3f}, {found[side]['lengths'][0]:.1f} "
                f"to {found[side]['lengths'][-1]:.1f} tokens" for side in sides)
                  + f"; speed ratio {ratios[-1]:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
    middle = {side: statistics.median(times[side]) for side in sides}
    peak = {side: statistics.median(peaks[side]) for side in sides}
    start = {side: statistics.median(starts[side]) for side in sides}
    speed, memory = statistics.median(ratios), peak["hocket"] / peak["trl"]
    print(f"{versions}; {args.kind}, {args.threads} threads, {args.prompts} x {args.samples} samples of at most "
          f"{TASKS[args.kind][0]} tokens, fp32, per-device batch {args.batch}, our reward "
          f"{'Python' if args.python_reward else 'built in'}, "
          f"{args.rounds} rounds of {args.updates} updates\n")
    print("| | TRL GRPOTrainer | here | ratio | bar |\n|---|---|---|---|---|")
    print(f"| updates per hour | {3600 / middle['trl']:.0f} | {3600 / middle['hocket']:.0f} | {speed:.2f} "
          f"({min(ratios):.2f} to {max(ratios):.2f}) | ≥ {SPEED:g} |")
    spent = {side: statistics.median(cpu[side]) for side in sides}
    print(f"| CPU seconds per update | {spent['trl']:.2f} | {spent['hocket']:.2f} | "
          f"{spent['trl'] / spent['hocket']:.2f} | |")
    print(f"| peak RSS, MiB | {peak['trl']:.0f} | {peak['hocket']:.0f} | {memory:.2f} | ≤ {MEMORY:g} |")
    length = {side: statistics.median(lengths[side]) for side in sides}
    print(f"| tokens of a sample, of the timed updates | {length['trl']:.1f} | {length['hocket']:.1f} | | |")
    print(f"| reward before the first update | {start['trl']:.3f} | {start['hocket']:.3f} | | |")
    # Samples of a prompt resemble one another, so the error is that of the prompts' means.
    if abs(start["trl"] - start["hocket"]) > LIKE * DEVIATION * (2 / args.prompts) ** 0.5:
        sys.exit("compare_trl_grpo.py: rewards at the start differ: not the same task")
    return 0 if speed >= SPEED and memory <= MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
