#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Teaches SmolLM2-135M-Instruct one rule of form by `hocket rl` with LoRA: the reward before and after, on held-out
prompts.

    bench/rl_smollm2.py --model .venv-peers/models/SmolLM2-135M-Instruct.Q4_1.gguf
    bench/rl_smollm2.py --minutes 10           # a part; the same command goes on where it ended

The reward is the rule `regex` alone: 1 if the whole answer is one sentence of 6 to 16 words, with a capital at its
beginning, a full stop at its end and none before, else 0. Prompts are chats that ask for such a sentence, made here
from templates and things; no thing of a held-out prompt is in one that is trained on. Evaluations draw the most likely
tokens. Everything lies in --work: a finished run is read again, an interrupted one resumes from its checkpoint. Exit
code 0 if the start lies from 0.05 to 0.4 and the held-out reward rises by 0.3 or more, 1 if not, 3 if interrupted."""
import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOCKET = str(pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket")
PATTERN = r"\A[A-Z][^\s.!?]*(?: [^\s.!?]+){5,15}\.\z"
NAME, EVAL = "one_sentence", "eval/held_out/reward"
START, GAIN, UPDATES, STOP_S = (0.05, 0.4), 0.3, 36, 180
HELD_OUT = 200

TEMPLATES = [
    "In one short sentence, what is {} for?",
    "Tell a child in a single short sentence what {} is.",
    "Answer with one short sentence: why do people like {}?",
    "Please describe {} in one short sentence.",
    "One short sentence only: where would I find {}?",
    "What should I know about {}? Keep it to one short sentence.",
    "Write one short sentence about {}.",
    "How would you sum up {} in one brief sentence?",
    "Say something true about {}, in one short sentence.",
    "Who needs {}, and why? One short sentence, please.",
]
THINGS = [
    "a bridge", "a lighthouse", "a bicycle", "an umbrella", "a violin", "a garden", "a kettle", "a map", "a lantern",
    "a ladder", "a library", "a compass", "a pillow", "a market", "a river", "a winter coat", "a wooden spoon",
    "a post office", "a clock", "a camera", "a beehive", "a forest path", "a hammer", "a train station", "a mirror",
    "a candle", "a telescope", "a soup", "a school bus", "a sailing boat", "a lemon", "a blanket", "a pencil",
    "a museum", "a windmill", "a football", "a keyboard", "a bakery", "a tent", "a snowman", "a fountain",
    "a bus ticket", "a shoe", "a harbour", "a piano", "a newspaper", "a well", "a hospital", "a diary", "a scarf",
    "a dictionary", "a goldfish", "a picnic", "a key", "a calendar", "a barn", "a kite", "a waterfall", "a passport",
    "a broom", "an island ferry", "a potato", "a magnet", "a tunnel",
]


def make_prompts(folder):
    """Writes train.jsonl and held_out.jsonl: chats about different things. Returns their numbers."""
    draw = random.Random(1)
    things = draw.sample(THINGS, len(THINGS))
    few = HELD_OUT // len(TEMPLATES) + 4
    sets = {"held_out": things[:few], "train": things[few:]}
    counts = {}
    for name, of in sets.items():
        chats = [template.format(thing) for thing in of for template in TEMPLATES]
        draw.shuffle(chats)
        chats = chats[:HELD_OUT] if name == "held_out" else chats
        rows = [json.dumps({"prompt": [{"role": "user", "content": chat}], "data_source": NAME}) for chat in chats]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        counts[name] = len(rows)
    return counts


def write_run(args, folder):
    config = {
        "objective": "rl", "model": {"path": os.path.abspath(args.model), "dtype": "f32"},
        "adapter": {"type": "lora", "r": 16, "alpha": 32, "targets": ["all-linear"]},
        "data": {"sources": [{"path": str(folder / "train.jsonl")}],
                 "evaluation": [{"name": "held_out", "path": str(folder / "held_out.jsonl")}]},
        "train": {"steps": args.updates, "seq_len": 256, "lr": args.lr, "schedule": "constant", "warmup_steps": 2,
                  "max_grad_norm": 1, "eval_every": 0, "save_every": 4, "seed": args.seed},
        "optimizer": {"weight_decay": 0}, "plan": {"threads_per_rank": args.threads},
        "rl": {"prompts_per_step": args.prompts, "samples_per_prompt": args.samples, "max_new_tokens": 40,
               "advantage": "grpo", "eval_prompts": 0, "trajectories": True, "max_num_seqs": 64,
               "max_num_batched_tokens": 256, "rewards": [{"type": "regex", "name": NAME, "pattern": PATTERN}]},
        "output": {"dir": str(folder / "rl"), "trace": False}}
    text = json.dumps(config, indent=1) + "\n"
    path = folder / "run.yaml"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        sys.exit(f"rl_smollm2.py: {folder} holds a run with other settings; remove it, or give another --work")
    path.write_text(text, encoding="utf-8")
    return path


def train(run, minutes):
    """Runs it to its end. Returns False if it was interrupted."""
    # In a session of its own: Ctrl-C here becomes one signal there, and a checkpoint.
    process = subprocess.Popen([HOCKET, "rl", run], start_new_session=True)
    try:
        code = process.wait(timeout=60 * minutes if minutes else None)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return False
    if code != 0:
        sys.exit(f"rl_smollm2.py: hocket rl: exit code {code}")
    return True


def shown(folder, number, count=5):
    """Returns answers of an evaluation to the first prompts."""
    path = folder / "rl" / "trajectories" / f"eval-held_out-{number:06d}.jsonl"
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f][:count]


def print_result(args, folder, counts):
    """Prints the result; returns the exit code."""
    with open(folder / "rl" / "metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    evaluated, trained = [row for row in rows if EVAL in row], [row for row in rows if "train/loss" in row]
    first, last = evaluated[0], evaluated[-1]
    if first["step"] != 0 or last["step"] != args.updates or len(trained) != args.updates:
        sys.exit(f"rl_smollm2.py: {folder}/rl has evaluations at {[row['step'] for row in evaluated]} and "
                 f"{len(trained)} updates")
    for before, after in zip(shown(folder, 0), shown(folder, args.updates)):
        print(f"  {before['prompt'].split('user')[-1].split('<')[0].strip()}\n"
              f"    before ({before['reward']:.0f}): {before['response']!r}\n"
              f"    after  ({after['reward']:.0f}): {after['response']!r}")
    gain = last[EVAL] - first[EVAL]
    difference = max(row["sampling/sampling_logp_difference/max"] for row in trained)
    minutes = sum(row["timing_s/gen"] + row["timing_s/reward"] + row["perf/step_s"] for row in trained) / 60
    seconds = statistics.median(row["timing_s/gen"] + row["perf/step_s"] for row in trained)
    print("\n| reward | held-out prompts | before | after | gain (bar 0.3) | updates | samples an update | "
          "minutes of updates | seconds an update, median | sampled reward, first and last five | "
          "log-probabilities differ at most |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|")
    ends = [statistics.fmean(row["reward"] for row in part) for part in (trained[:5], trained[-5:])]
    print(f"| `regex`, one sentence of 6 to 16 words | {counts['held_out']} | {first[EVAL]:.3f} | {last[EVAL]:.3f} | "
          f"{gain:+.3f} | {args.updates} | {args.prompts} × {args.samples} | {minutes:.1f} | {seconds:.1f} | "
          f"{ends[0]:.2f}, {ends[1]:.2f} | "
          f"{difference:.1e} |")
    return 0 if gain >= GAIN and START[0] <= first[EVAL] <= START[1] and args.updates <= UPDATES else 1


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default=str(ROOT / ".venv-peers/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    ap.add_argument("--work", type=pathlib.Path, default=ROOT / "runs/rl-smollm2", help="folder of prompts and run")
    ap.add_argument("--updates", type=int, default=24)
    ap.add_argument("--prompts", type=int, default=8, help="of an update")
    ap.add_argument("--samples", type=int, default=8, help="of a prompt")
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--minutes", type=float, help="interrupt the run after as many; the same command goes on")
    args = ap.parse_args()
    folder = args.work.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    counts = make_prompts(folder)
    print(f"{counts['train']} prompts to train on, {counts['held_out']} held out, in {folder}", flush=True)
    if not train(write_run(args, folder), args.minutes):
        print("rl_smollm2.py: interrupted; the same command goes on")
        return 3
    return print_result(args, folder, counts)


if __name__ == "__main__":
    sys.exit(main())
