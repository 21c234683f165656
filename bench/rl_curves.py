#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small models on the tasks of `hocket data task` by reinforcement learning, several seeds each, and draws the curves.

    bench/rl_curves.py                                    # every task, three seeds
    bench/rl_curves.py --mode dapo                        # DAPO's parts, each left out once, on multi_addition
    bench/rl_curves.py --only reverse --minutes 30        # a part; later calls go on where this one ended

Each run is `hocket data task`, `hocket train warmup.yaml` (once for a task and seed) and `hocket rl rl.yaml`. Finished runs
are kept in --work; an interrupted one resumes from its checkpoint. Writes DATE-rl-MODE.md and DATE-rl-MODE.png (.svg without
matplotlib) into --out, from whatever is finished."""
import argparse
import datetime
import fnmatch
import json
import math
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import time
import xml.sax.saxutils

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOCKET = str(pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket")
EVAL = "eval/held_out/pass@1"
STOP_S = 120  # for an interrupted run to save its checkpoint

# Name of a run: words of `hocket data task`, and keys of rl.yaml.
TASKS = {
    "copy": (["copy"], {"train.steps": 100}),
    "reverse": (["reverse"], {}),
    "sort": (["sort"], {}),
    "addition": (["addition", "--reversed"], {}),
    "countdown": (["countdown"], {}),
    "countdown-products": (["countdown", "--operators", "+-*"], {}),
    "multi-addition": (["multi_addition"], {}),
}
# DAPO with four updates a step: with one, every ratio is 1, and none is clipped.
DAPO = {"train.steps": 160, "train.lr": 2e-4, "train.eval_every": 10, "rl.prompts_per_update": 8, "rl.clip_low": 0.2,
        "rl.clip_high": 0.28, "rl.dynamic_sampling.on": True, "rl.aggregation": "token-mean"}
ABLATIONS = {
    "dapo": {},
    "without-clip-higher": {"rl.clip_high": 0.2},
    "without-dynamic-sampling": {"rl.dynamic_sampling.on": False},
    "without-token-level": {"rl.aggregation": "seq-mean-token-mean"},
    "grpo": {"rl.clip_high": 0.2, "rl.dynamic_sampling.on": False, "rl.aggregation": "seq-mean-token-mean"},
}


EXHAUSTED = "samples of different rewards (rl.dynamic_sampling)"  # nothing is left to learn from
SOLVED = "the task is solved"  # likewise, with exit code 0


class Failed(Exception):
    """A command's error; its log."""


class OutOfTime(Exception):
    """The minutes are over; what is not finished resumes in the next call."""


def planned(options):
    """Returns the runs of the mode: dicts with name, seed, words and keys."""
    runs = []
    for seed in options.seeds:
        if options.mode == "tasks":
            named = TASKS.items()
        else:
            words, keys = TASKS[options.task]
            named = [(name, (words, {**keys, **DAPO, **change})) for name, change in ABLATIONS.items()]
        for name, (words, keys) in named:
            if fnmatch.fnmatch(name, options.only):
                runs.append({"name": name, "seed": seed, "words": words,
                             "keys": {**keys, **dict(text.split("=", 1) for text in options.set)}})
    return runs


def call(words, log, deadline):
    """Runs a command with its output in a file. Interrupts it at the deadline."""
    with open(log, "ab") as out:
        out.write(f"$ {' '.join(words)}\n".encode())
        out.flush()
        begin = time.monotonic()
        # In a session of its own: a second Ctrl-C would end it without a checkpoint.
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout=None if deadline is None else max(0.1, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise OutOfTime from None
    if code != 0:
        with open(log, encoding="utf-8", errors="replace") as text:
            raise Failed(f"{' '.join(words)}: exit code {code}\n{text.read()[-2000:]}")
    return time.monotonic() - begin


def write_json(path, value):
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.rename(path)


def task_folder(options, run, deadline):
    """Returns the folder of a task and seed with its trained warm-up, made if it is not there."""
    folder = options.work / "tasks" / f"{'_'.join(word.strip('-') for word in run['words'])}-{run['seed']}"
    done = folder / "warmup-done.json"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "log"
        call([options.hocket, "data", "task", *run["words"], "--out", str(folder), "--seed", str(run["seed"])], log, deadline)
        seconds = call([options.hocket, "train", str(folder / "warmup.yaml")], log, deadline)
        write_json(done, {"seconds": seconds})
    return folder


def finish(options, run, deadline):
    """Trains a run to its end, or goes on with it. A finished one is left as it is."""
    name = run["name"] if options.mode == "tasks" else f"dapo-{options.task}-{run['name']}"
    folder = options.work / "runs" / f"{name}-{run['seed']}"
    done, plan = folder / "done.json", folder / "plan.json"
    folder.mkdir(parents=True, exist_ok=True)
    if plan.exists() and json.loads(plan.read_text(encoding="utf-8")) != run:
        sys.exit(f"{folder} holds a run with other settings; remove it, or give another --work")
    if not done.exists():
        task = task_folder(options, run, deadline)
        write_json(plan, run)
        keys = {**run["keys"], "train.seed": run["seed"], "output.dir": folder / "rl"}
        exhausted = False
        try:
            call([options.hocket, "rl", str(task / "rl.yaml"),
                  *(word for key, value in keys.items()
                    for word in ("--set", f"{key}={str(value).lower() if value in (True, False) else value}"))],
                 folder / "log", deadline)
            exhausted = SOLVED in (folder / "log").read_text(encoding="utf-8", errors="replace")
        except Failed as error:
            exhausted = EXHAUSTED in str(error)
            if not exhausted:
                raise
        write_json(done, {"exhausted": exhausted,
                          "warm_up_s": json.loads((task / "warmup-done.json").read_text(encoding="utf-8"))["seconds"]})
    return folder


def read_run(folder, run):
    """Returns a finished run with its curves."""
    with open(folder / "rl/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    evaluated = [row for row in rows if EVAL in row]
    trained = [row for row in rows if "reward" in row]
    if not evaluated or not trained:
        sys.exit(f"{folder}/rl/metrics.jsonl has no {EVAL if trained else 'reward'}; it has {sorted(set().union(*rows))}")
    done = json.loads((folder / "done.json").read_text(encoding="utf-8"))
    return {**run, "warm_up_s": done["warm_up_s"], "exhausted": done.get("exhausted", False), "train": trained, "eval": evaluated}


def seconds_at(run, step):
    """Returns the seconds of training up to a step: evaluations have the time of the step before them."""
    times = [row["time_s"] for row in run["train"] if row["step"] <= step and "time_s" in row]
    return times[-1] if times else 0.0


def mean_of(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.fmean(values) if values else math.nan


def summary(run):
    """Returns the figures of a run's row."""
    count = max(1, len(run["train"]) // 10)
    first, last = run["train"][:count], run["train"][-count:]
    reached = next((row for row in run["eval"] if row[EVAL] > 0.9), None)
    return {"from": run["eval"][0][EVAL], "from_step": run["eval"][0]["step"], "to": run["eval"][-1][EVAL],
            "best": max(row[EVAL] for row in run["eval"]), "mean": mean_of(run["eval"], EVAL), "updates": run["train"][-1]["step"],
            "minutes": seconds_at(run, math.inf) / 60, "warm_up_s": run["warm_up_s"],
            "to_90_minutes": seconds_at(run, reached["step"]) / 60 if reached else math.nan,
            **{f"{key}_{part}": mean_of(rows, name) for part, rows in (("first", first), ("last", last))
               for key, name in (("reward", "reward"), ("entropy", "entropy"), ("length", "completions/mean_length"))}}


def shown(value, digits=3):
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def page(options, finished, picture, planned_runs):
    """Returns the page in Markdown."""
    names = list(dict.fromkeys(run["name"] for run in finished))
    title = ("Tasks by reinforcement learning" if options.mode == "tasks"
             else f"Parts of DAPO on {options.task}")
    lines = [f"# {title}, {datetime.date.today().isoformat()}", "",
             f"`bench/rl_curves.py --mode {options.mode}`; {os.cpu_count()} CPUs, {platform.machine()}. "
             f"{len(finished)} of {len(planned_runs)} runs. Held out: greedy answers to problems that no training saw, share of right ones "
             "(pass@1); mean: of all evaluations, the height of the curve. Reward, entropy and length: means of the first and the last tenth "
             "of the updates. Time: of `hocket rl`, without "
             "evaluations. †: ended early, since no round of dynamic sampling had groups of different rewards enough.", "",
             "| run | seed | warm-up s | held out: first | last | best | mean | updates | minutes | to 0.9, minutes | reward | entropy | length |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for name in names:
        for run in sorted((run for run in finished if run["name"] == name), key=lambda run: run["seed"]):
            of = summary(run)
            lines.append(
                f"| {name} | {run['seed']} | {of['warm_up_s']:.0f} | {shown(of['from'])} (update {of['from_step']}) | "
                f"{shown(of['to'])} | {shown(of['best'])} | {shown(of['mean'])} | {of['updates']}{'†' if run['exhausted'] else ''} | {shown(of['minutes'], 1)} | {shown(of['to_90_minutes'], 1)} | "
                f"{shown(of['reward_first'], 2)} → {shown(of['reward_last'], 2)} | {shown(of['entropy_first'], 2)} → "
                f"{shown(of['entropy_last'], 2)} | {shown(of['length_first'], 1)} → {shown(of['length_last'], 1)} |")
    lines += ["", "| run | seeds | held out, mean: median | last: median | lowest | highest | minutes: median |", "|---|---|---|---|---|---|---|"]
    for name in names:
        of = [summary(run) for run in finished if run["name"] == name]
        last = [figures["to"] for figures in of]
        means = statistics.median(figures["mean"] for figures in of)
        lines.append(f"| {name} | {len(of)} | {shown(means)} | {shown(statistics.median(last))} | {shown(min(last))} | {shown(max(last))} | "
                     f"{shown(statistics.median(figures['minutes'] for figures in of), 1)} |")
    lines += ["", f"![Held-out share of right answers by update]({picture})", "", "Settings beside those of `hocket data task`:", ""]
    for name in names:
        run = next(run for run in finished if run["name"] == name)
        keys = ", ".join(f"`{key}: {value}`" for key, value in run["keys"].items())
        lines.append(f"- {name}: `hocket data task {' '.join(run['words'])}`{', ' + keys if keys else ''}")
    return "\n".join(lines) + "\n"


COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf"]


def curves(finished):
    """Returns for each name its colour and the held-out curves of its seeds."""
    names = list(dict.fromkeys(run["name"] for run in finished))
    return [(name, COLOURS[i % len(COLOURS)],
             [[(row["step"], row[EVAL]) for row in run["eval"]] for run in finished if run["name"] == name])
            for i, name in enumerate(names)]


def draw_png(path, drawn):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, colour, lines in drawn:
        for i, points in enumerate(lines):
            axes.plot(*zip(*points), color=colour, alpha=0.8, linewidth=1.3, label=name if i == 0 else None)
    axes.set(xlabel="update", ylabel="held out, right", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def draw_svg(path, drawn):
    width, height, left, top, right, bottom = 800, 450, 60, 20, 620, 400
    most = max(step for _, _, lines in drawn for points in lines for step, _ in points) or 1
    place = lambda step, value: (left + (right - left) * step / most, bottom - (bottom - top) * value)  # noqa: E731
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i in range(6):
        x, y = place(most * i / 5, i / 5)
        out.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/><text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{i / 5:.1f}</text>'
                   f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{most * i / 5:.0f}</text>')
    out.append(f'<text x="{(left + right) / 2}" y="{height - 8}" text-anchor="middle">update</text>'
               f'<text transform="translate(16 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle">held out, right</text>')
    for i, (name, colour, lines) in enumerate(drawn):
        for points in lines:
            places = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
            out.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-opacity="0.8"/>')
        y = top + 10 + 18 * i
        out.append(f'<path d="M{right + 12} {y}h20" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{right + 38}" y="{y + 4}">{xml.sax.saxutils.escape(name)}</text>')
    path.write_text("\n".join([*out, "</svg>"]) + "\n", encoding="utf-8")


def report(options, finished, planned_runs):
    """Writes page and picture of the finished runs."""
    base = f"{datetime.date.today().isoformat()}-rl-{options.mode}"
    options.out.mkdir(parents=True, exist_ok=True)
    drawn = curves(finished)
    try:
        picture = base + ".png"
        draw_png(options.out / picture, drawn)
    except ImportError:
        picture = base + ".svg"
        draw_svg(options.out / picture, drawn)
    (options.out / (base + ".md")).write_text(page(options, finished, picture, planned_runs), encoding="utf-8")
    print(f"{options.out / base}.md: {len(finished)} of {len(planned_runs)} runs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["tasks", "dapo"], default="tasks")
    parser.add_argument("--task", choices=list(TASKS), default="multi-addition",
                        help="of --mode dapo; its answers have different lengths, without which the means of losses are one")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs with such names")
    parser.add_argument("--minutes", type=float, help="end after so many; the next call goes on")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of every rl.yaml")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "runs/rl-curves", help="folder of the runs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results")
    parser.add_argument("--hocket", default=HOCKET)
    options = parser.parse_args()
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    runs, finished = planned(options), []
    if not runs:
        parser.error(f"--only {options.only}: no such run")
    for run in runs:
        try:
            folder = finish(options, run, deadline)
        except OutOfTime:
            print(f"interrupted in {run['name']}, seed {run['seed']}; the same command goes on")
            break
        except Failed as error:
            sys.exit(str(error))
        finished.append(read_run(folder, run))
        of = summary(finished[-1])
        print(f"{run['name']:26} seed {run['seed']}  held out {shown(of['from'])} -> {shown(of['to'])}  {of['updates']} updates, "
              f"{shown(of['minutes'], 1)} min", flush=True)
    if finished:
        report(options, finished, runs)


if __name__ == "__main__":
    main()
