#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Injects known trouble into training runs and compares the diagnosis of `hocket whatif` with it.

    sudo bench/injected.py [--only KIND] [--steps N] [--json FILE] [--folder DIR]

A what-if analysis estimates from the trace of a slow run alone how fast the run would have been, and names the cause.
Injected trouble shows whether it is right, because its cause and cost are known. There are six kinds of trouble at two
or three levels each, in a cluster in a box (tools/cluster; root). Every level is a run with the trouble between two
runs of the same training without it. `hocket whatif` gets the trace of the troubled run (`hocket bench step
--trace`: all timed steps), and never sees the others.

busy-loop        another process computes on the core of rank 0, for a share of the time        slow worker
link-delay       packets to and from host 3 take longer                                         slow link
heavy-stage      the last of two pipeline stages has more of the 8 layers                       last stage
skewed-lengths   one data-parallel rank has all long documents of a step, in turn; without it
                 the same documents are dealt evenly                                            uneven sequences
pauses           every 1.1 seconds a rank, drawn at random, is stopped (SIGSTOP) and goes on    pauses
pauses-in-step   rank 1 is stopped for 0.4 seconds, once in every step or in every other one    pauses

Busy loops and skewed lengths slow real arithmetic: two ranks, pinned to a core each. The other kinds have four
ranks on four hosts on an emulated device (`emulate`, docs/cluster-in-a-box.md), which does not slow down when ranks
outnumber cores.

measured      mean step with the trouble, over that of the runs before and after it
estimated     the gain that whatif predicts for curing the cause that it names (docs/whatif.md)
points        estimated - measured, in hundredths of a step without trouble
S             T / T_ideal of whatif. The ideal is a mean that includes the slow one of two workers, so S of a slow
              worker is less than the gain of its cure
replay        T over the measured step of the trace, minus one: the error of the replay itself"""
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import typing

import in_box
from in_box import ROOT, box, run, sets

sys.path.insert(0, os.path.join(ROOT, "tools"))
import netbox  # noqa: E402

BAR = 5.0  # points
# Nice value of ranks and busy loops, each a session that the scheduler weighs as one. It keeps other work on the
# machine from being trouble of its own.
FIRST = "-20"
PERIOD = 0.02  # seconds of a busy loop and its rest: shorter than a pass


def compute_on(core, share):
    """Computes on one core for a share of every period, until the process is ended."""
    os.setsid()
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="utf-8") as f:
        f.write(FIRST)
    os.sched_setaffinity(0, {core})
    while True:
        began = time.monotonic()
        while time.monotonic() - began < share * PERIOD:
            pass
        time.sleep((1 - share) * PERIOD)


@contextlib.contextmanager
def busy_loop(core, share):
    process = multiprocessing.Process(target=compute_on, args=(core, share), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def pauses(pid_files, length, every, spread=0.5):
    """Stops a random process for `length` seconds, once in every `every` on average. A `spread` of 0 makes the
    intervals regular, like steps."""
    over = threading.Event()
    rng = random.Random(1)
    processes = {}  # descriptors: the number of an ended process may be reused

    def process(path):
        if path not in processes:
            with open(path, encoding="utf-8") as f:
                processes[path] = os.pidfd_open(int(f.read()))
        return processes[path]

    def pause():
        while not over.wait(rng.uniform(1 - spread, 1 + spread) * (every - length)):
            path = rng.choice(pid_files)
            with contextlib.suppress(OSError, ValueError):  # the process has not begun, or is ending
                signal.pidfd_send_signal(process(path), signal.SIGSTOP)
                over.wait(length)
                signal.pidfd_send_signal(process(path), signal.SIGCONT)

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for descriptor in processes.values():
            os.close(descriptor)


@dataclasses.dataclass
class Setup:
    """A training: the keys and model of the run, its box, and the trouble injected into it."""
    keys: list
    model: str
    hosts: int = 1
    per_host: int = 1
    rate: str = ""
    delay: str = ""
    documents: str = ""  # lengths, assigned to the sequences in turn
    cores: bool = False  # pins each rank to a core of its own
    trouble: typing.Callable = None  # makes a context from the files with the ranks' process ids


def model(folder, name, **keys):
    """Writes the configuration of a small llama, and returns its folder."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128, "hidden_size": 128,
              "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
              "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", **keys}
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    with open(os.path.join(folder, name, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return os.path.join(folder, name)


def played(folder):
    """Returns keys of a run on an emulated device whose steps take a fraction of a second."""
    with open(os.path.join(ROOT, "configs", "clusters", "box-4x2.yaml"), encoding="utf-8") as f:
        text = f.read()
    path = os.path.join(folder, "device.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace("devices_per_node: 2", "devices_per_node: 1").replace("2GFLOP/s", "24GFLOP/s")
                .replace("400us", "100us"))
    return ["train.seq_len=32", "plan.threads_per_rank=1", "plan.ranks_per_node=1", f"emulate.cluster={path}",
            "emulate.set=[train.seq_len=128]"]


def narrow(folder):
    """Writes a model whose attention dominates: it has few parameters, so its gradient all-reduces are short."""
    return model(folder, "narrow", hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                 num_key_value_heads=2)


def busy_cores(folder):
    keys = ["train.seq_len=2048", "train.global_batch=16", "plan.dp=2", "plan.micro_batch=1", "plan.threads_per_rank=1"]
    config = narrow(folder)

    def setup(trouble=None):
        return Setup(keys, config, per_host=2, cores=True, trouble=trouble)

    return [(f"{share:.0%}", setup(), setup(lambda _, share=share: busy_loop(0, share))) for share in (0.6, 0.8, 1.0)]


def link_delays(folder):
    keys = played(folder) + ["train.global_batch=32", "plan.pp=4", "plan.micro_batch=1"]
    dense = model(folder, "dense")

    def setup(delay):
        return Setup(keys, dense, hosts=4, rate="400mbit", delay=f"50us,50us,50us,{delay}")

    return [(delay, setup("50us"), setup(delay)) for delay in ("3ms", "4ms", "5ms")]


def heavy_stages(folder):
    keys = played(folder) + ["train.global_batch=16", "plan.pp=2", "plan.dp=2", "plan.micro_batch=1"]
    dense = model(folder, "dense-8", num_hidden_layers=8)

    def setup(last):
        return Setup(keys + [f"plan.pp_layers=[{8 - last},{last}]"], dense, hosts=4, rate="400mbit")

    return [(f"{last} of 8 layers", setup(4), setup(last)) for last in (5, 6, 7)]


def skewed_lengths(folder):
    seq_len, micro_batches, short = 4096, 4, 64
    keys = [f"train.seq_len={seq_len}", f"train.global_batch={2 * micro_batches}", "plan.dp=2", "plan.micro_batch=1",
            "plan.threads_per_rank=1"]
    config = narrow(folder)

    def setup(long, skewed):
        # A step has one sequence per rank and micro-batch; the pattern repeats after two steps.
        if skewed:
            lengths = [long, short] * micro_batches + [short, long] * micro_batches
        else:
            lengths = [long, long, short, short] * micro_batches
        return Setup(keys, config, per_host=2, documents=",".join(map(str, lengths)), cores=True)

    return [(f"{long} and {short}", setup(long, False), setup(long, True)) for long in (1024, 2048, 4096)]


def replicas(folder, trouble=None):
    keys = played(folder) + ["train.global_batch=16", "plan.dp=4", "plan.micro_batch=1"]
    return Setup(keys, model(folder, "dense"), hosts=4, rate="400mbit", trouble=trouble)


def many_pauses(folder):
    return [(f"{length:g} s", replicas(folder), replicas(folder, lambda pids, length=length: pauses(pids, length, 1.1)))
            for length in (0.15, 0.25, 0.4)]


def pauses_in_step(folder):
    step, length = 0.367, 0.4  # seconds of a step without pauses, and of a pause
    return [(f"every {name}", replicas(folder), replicas(
        folder, lambda pids, every=steps * step + length: pauses(pids[1:2], length, every, spread=0)))
        for name, steps in (("step", 1), ("other step", 2))]


# kind -> (its levels, the true cause, its place)
KINDS = {
    "busy-loop": (busy_cores, "slow worker", "rank 0"),
    "link-delay": (link_delays, "slow link", "rank 2, rank 3"),
    "heavy-stage": (heavy_stages, "last stage", "stage 1"),
    "skewed-lengths": (skewed_lengths, "uneven sequences", ""),
    "pauses": (many_pauses, "pauses", ""),
    "pauses-in-step": (pauses_in_step, "pauses", ""),
}


def train(args, setup, folder, name):
    """Returns a run's mean step in seconds, and the path of its trace."""
    folder = os.path.join(folder, name)
    trace = os.path.join(folder, "trace.json.gz")
    ranks = setup.hosts * setup.per_host
    command = [args.hocket, "bench", "step", "--config", setup.model, "--steps", str(args.steps), "--warmup", "3",
               "--json", "--trace", trace, *sets(setup.keys)]
    command += ["--documents", setup.documents] if setup.documents else []
    pin = "taskset -c {rank} " if setup.cores else ""
    # The shell leads a session; exec makes its process the rank's.
    script = f"echo {FIRST} 2>/dev/null >/proc/self/autogroup; echo $$ >{folder}/pid-{{rank}}; exec {pin}\"$@\""
    os.makedirs(folder, exist_ok=True)
    pids = [os.path.join(folder, f"pid-{rank}") for rank in range(ranks)]
    for path in pids:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)  # left by an earlier run in this folder
    with setup.trouble(pids) if setup.trouble else contextlib.nullcontext():
        printed = box(["sh", "-c", script, "sh", *command], folder, setup.hosts, setup.per_host, setup.rate,
                      delay=setup.delay, timeout=300)
    said = json.loads([line for line in printed.splitlines() if line.startswith("{")][-1])
    return statistics.mean(said["step_ms"]) / 1e3, trace


def examine(args, trace):
    """Returns the diagnosis of whatif for a trace: the named cause (None if none), its place and its gain."""
    said = json.loads(run([args.hocket, "whatif", trace, "--json"]))
    named = said["causes"][0] if said["cause"] else {"gain": 1.0, "where": ""}
    return {"cause": said["cause"], "where": named["where"], "estimated": named["gain"], "S": said["S"], "T": said["T"],
            "T_measured": said["T_measured"], "causes": said["causes"]}


def measure(args, kind, folder):
    """Returns a row per level: a run without trouble, one with it, and one without it again. The last run also is the
    first of the next level where both are the same training."""
    levels, *right = KINDS[kind]
    rows, last, before = [], None, None
    for number, (label, clean, troubled) in enumerate(levels(folder)):
        if clean != last:
            before, _ = train(args, clean, folder, f"{kind}-{number}-before")
        took, trace = train(args, troubled, folder, f"{kind}-{number}")
        after, _ = train(args, clean, folder, f"{kind}-{number}-after")
        row = {"kind": kind, "level": label, "clean_s": [before, after], "step_s": took,
               "measured": took / statistics.mean([before, after]), **examine(args, trace)}
        row["points"] = 100 * (row["estimated"] - row["measured"])
        row["right_cause"] = [row["cause"], row["where"]] == right
        last, before = clean, after
        rows.append(row)
        show(row)
    return rows


def show(row):
    print(f"{row['kind']:16}{row['level']:18}{1e3 * statistics.mean(row['clean_s']):9.1f}{1e3 * row['step_s']:9.1f}"
          f"{row['measured']:10.3f}{row['estimated']:11.3f}{row['points']:+8.1f}{row['S']:8.3f}"
          f"{row['T'] / row['T_measured'] - 1:+9.1%}  {row['cause'] or 'none'}, {row['where'] or 'everywhere'}"
          f"{'' if row['right_cause'] else '  WRONG'}", flush=True)


def options():
    ap = in_box.options(__doc__, "rows, with all causes that whatif weighed", "models, logs and traces")
    ap.add_argument("--only", action="append", default=[], choices=list(KINDS), help="a kind; may be repeated")
    ap.add_argument("--steps", type=int, default=12, help="traced steps of a run")
    return ap


def main():
    args = options().parse_args()
    reason = netbox.why_not()
    if reason:
        sys.exit(f"injected.py: {reason}")
    folder = os.path.abspath(args.folder or tempfile.mkdtemp(prefix="injected-"))
    os.makedirs(folder, exist_ok=True)
    print(f"{'':34}{'clean':>9}{'step, ms':>9}{'measured':>10}{'estimated':>11}{'points':>8}{'S':>8}{'replay':>9}"
          "  cause", flush=True)
    rows = []
    for kind in args.only or KINDS:
        rows += measure(args, kind, folder)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(rows, f, indent=1)
    near = sum(abs(row["points"]) <= BAR for row in rows)
    right = sum(row["right_cause"] for row in rows)
    print(f"of {len(rows)}: {near} within {BAR:g} points, {right} with the right cause; traces in {folder}")


if __name__ == "__main__":
    main()
