#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts steps in a cluster in a box, then measures them.

    sudo bench/predicted.py [--only real|timed|NETWORK] [--rounds 6] [--json FILE] [--predict-only]

Every network of the table below is a box of its own (tools/cluster). The machine is calibrated once: `hocket profile`
times the tasks of the plans with real arithmetic on one idle core, and the links between the ranks of each box. From
these, `hocket simulate` predicts every plan; the predictions are written (--json, or a file beside the
temporary ones) before anything is run. Then each box runs its plans in turn, blocks of steps.

Plans with real arithmetic have no more ranks than the machine has cores, and each rank is pinned to one. For larger
plans the device is emulated (`emulate`, docs/cluster-in-a-box.md): its lanes are held for the durations that
configs/clusters/box-4x2.yaml gives, and all bytes go through the links.

error         predicted over measured, minus one; measured is the median block
equal speed   real arithmetic alone: the predicted compute time is scaled by the machine's speed when it was profiled
              over its speed right before each block (the probe of `hocket train`, one fixed product)"""
import datetime
import json
import os
import statistics
import sys
import tempfile

import in_box
from in_box import ROOT, Network, played_profile, run, sets

sys.path.insert(0, os.path.join(ROOT, "tools"))
import netbox  # noqa: E402

DENSE, MOE = "configs/models/box-dense", "configs/models/box-moe"
NETWORKS = {
    "2x1-100mbit": Network(2, 1, "100mbit", pinned=True),
    "2x1-300mbit-1ms": Network(2, 1, "300mbit", delay="500us", pinned=True),
    "2x1-1gbit": Network(2, 1, "1gbit", pinned=True),
    "1x2-unlimited": Network(1, 2, "1gbit", pinned=True),
    "4x1-100mbit": Network(4, 1, "100mbit"),
    "4x1-400mbit": Network(4, 1, "400mbit"),
    "2x2-100mbit-1gbit": Network(2, 2, "100mbit", "1gbit"),
    "4x2-100mbit-400mbit": Network(4, 2, "100mbit", "400mbit"),
    "1x4-unlimited": Network(1, 4, "1gbit"),
}
REAL = ["train.seq_len=512", "train.global_batch=8", "plan.threads_per_rank=1"]
PLAYED = ["train.seq_len=256", "train.global_batch=16", "plan.threads_per_rank=1"]
REAL_PLANS = {
    "dp2": (DENSE, "dp=2 micro_batch=4"),
    "dp2-zero3": (DENSE, "dp=2 micro_batch=2 shard.params=all shard.grads=all"),
    "tp2-sp": (DENSE, "tp=2 micro_batch=4 sequence_parallel=true"),
    "pp2-1f1b": (DENSE, "pp=2 micro_batch=1"),
    "cp2": (DENSE, "cp=2 micro_batch=4"),
    # Routers keep their profiled weights: the routing that they would learn is not predicted.
    "dp2-ep2": (MOE, "dp=2 ep=2 micro_batch=4 train.lr=0 train.min_lr=0"),
}
TIMED_PLANS = {
    4: {
        "dp4": (DENSE, "dp=4 micro_batch=2"),
        "dp4-zero3": (DENSE, "dp=4 micro_batch=2 shard.params=all shard.grads=all"),
        "pp4-1f1b": (DENSE, "pp=4 micro_batch=2"),
        "pp4-zb-h1": (DENSE, "pp=4 micro_batch=2 pp_schedule=zb-h1"),
        "tp2-dp2": (DENSE, "tp=2 dp=2 micro_batch=4 sequence_parallel=true"),
        "tp2-pp2": (DENSE, "tp=2 pp=2 micro_batch=4 sequence_parallel=true"),
        "cp2-dp2": (DENSE, "cp=2 dp=2 micro_batch=4"),
        "ep4": (MOE, "dp=4 ep=4 micro_batch=2"),
    },
    8: {
        "dp8": (DENSE, "dp=8 micro_batch=2"),
        "dp8-hsdp": (DENSE, "dp=8 micro_batch=2 shard.params=group shard.grads=group shard.group=2"),
        "tp2-dp4": (DENSE, "tp=2 dp=4 micro_batch=4 sequence_parallel=true"),
        "tp2-pp2-dp2": (DENSE, "tp=2 pp=2 dp=2 micro_batch=2 sequence_parallel=true"),
        "pp4-dp2": (DENSE, "pp=4 dp=2 micro_batch=2"),
        "pp2-dp4-ep4": (MOE, "pp=2 dp=4 ep=4 micro_batch=2"),
        "cp2-dp4-ep2": (MOE, "cp=2 dp=4 ep=2 micro_batch=2"),
        "dp8-ep8": (MOE, "dp=8 ep=8 micro_batch=2"),
    },
}


class Case:
    def __init__(self, network, name, model, plan):
        self.network, self.name, self.model = network, name, model
        per_host = NETWORKS[network].per_host
        self.ranks = NETWORKS[network].ranks()
        self.real = self.ranks <= 2
        self.keys = [key if key.startswith("train.") else f"plan.{key}" for key in plan.split()]
        self.keys += REAL if self.real else PLAYED
        if per_host < self.ranks:
            self.keys.append(f"plan.ranks_per_node={per_host}")

    def full_name(self):
        return f"{self.network} {self.name}"


def all_cases(only):
    cases = []
    for network, box in NETWORKS.items():
        ranks = box.ranks()
        plans = REAL_PLANS if ranks <= 2 else TIMED_PLANS[ranks]
        cases += [Case(network, name, *plan) for name, plan in plans.items()]
    kind = {"real": True, "timed": False}
    return [case for case in cases if not only or case.network in only or
            any(word in kind and kind[word] == case.real for word in only)]


def profile_tasks(args, cases, folder):
    """Profiles the tasks of all plans with real arithmetic on threads, and merges them into one profile."""
    whole, known, speeds = None, set(), []
    for name in dict.fromkeys(case.name for case in cases if case.real):
        case = next(case for case in cases if case.real and case.name == name)
        out = os.path.join(folder, f"tasks-{name}.json")
        keys = [key for key in case.keys if not key.startswith("plan.ranks_per_node")]
        run([args.hocket, "profile", case.model, "--seconds", str(args.seconds), "--out", out, *sets(keys)])
        with open(out, encoding="utf-8") as f:
            profile = json.load(f)
        whole = whole or {**profile, "tasks": []}
        speeds.append(profile["probe_flops"])
        if profile.get("routing"):
            whole["routing"] = profile["routing"]
        for task in profile["tasks"]:
            if task["kind"] not in known:
                known.add(task["kind"])
                whole["tasks"].append(task)
    if whole:
        whole["probe_flops"] = statistics.median(speeds)
    return whole


def profile_of(network, profile, links, folder):
    """Writes the machine's profile with the links of one box; returns its path."""
    path = os.path.join(folder, f"profile-{network}.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**profile, "links": links}, f)
    return path


def device_of(network):
    """Returns the device lines of a cluster file: a core of this machine, or the emulated device."""
    if network.ranks() <= 2:
        return [f"cores_per_node: {network.per_host}", "device:", "  name: a core", "  memory: {value: 1GiB}",
                "  memory_bandwidth: {value: 10GB/s}", "  launch: {value: 0us}", "  peak: {f32: {value: 50GFLOP/s}}"]
    with open(os.path.join(ROOT, "configs", "clusters", "box-4x2.yaml"), encoding="utf-8") as f:
        text = f.read()
    return [text[text.index("device:"):text.index("links:")].rstrip()]


def predict(args, case, clusters, profiles):
    words = [args.hocket, "simulate", case.model, "--cluster", clusters[case.network], "--json",
             *sets(case.keys + ["plan.ranks=gloo"] + args.set)]
    words += ["--profile", profiles[case.network]] if case.network in profiles else []
    return json.loads(run(words))


def measure(args, network, cases, played, folder):
    """Returns, by name of the case, the blocks' times in seconds, the probe before each, and the delay of emulated
    tasks."""
    found = {}
    for model in dict.fromkeys(case.model for case in cases):
        among = [case for case in cases if case.model == model]
        command = [args.hocket, "bench", "step", "--config", model, "--steps", str(args.rounds), "--warmup", "2",
                   "--block", str(args.block), *sets(args.set)]
        if not among[0].real:
            device = os.path.join(ROOT, "configs", "clusters", "box-4x2.yaml")
            command += sets([f"emulate.cluster={device}"])
            command += sets([f"emulate.profile={played}"]) if played else []
        for case in among:
            command += ["--variant", f"{case.name}={','.join(case.keys)}"]
        printed = NETWORKS[network].run(command, folder)
        lines = [line for line in printed.splitlines() if line.startswith('{"world"')]
        for variant in json.loads(lines[-1])["variants"]:
            found[variant["name"]] = variant
    return found


def at_equal_speed(case, row, profile):
    """Returns the median error of the prediction with its compute scaled to the machine's speed before each block."""
    if not case.real:
        return None
    compute = row["compute_s"]
    ratios = []
    for ms, probe in zip(row["step_ms"], row["probe_flops"]):
        scaled = row["predicted_s"] + compute * (profile["probe_flops"] / probe - 1)
        ratios.append(scaled * 1e3 / ms - 1)
    return statistics.median(ratios)


def summary(rows, key):
    errors = sorted(abs(row[key]) for row in rows if row[key] is not None)
    if not errors:
        return "none"
    ninth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return f"median {statistics.median(errors):.1%}, 90th percentile {ninth:.1%} of {len(errors)}"


def options():
    ap = in_box.options(__doc__, "predictions, and then what was measured beside them", "cluster files, profiles and logs")
    ap.add_argument("--only", action="append", default=[], help="real, timed, or a network; may be repeated")
    ap.add_argument("--set", action="append", default=[], help="keys of all runs")
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--block", type=int, default=2, help="steps of a block")
    ap.add_argument("--seconds", type=float, default=2.0, help="of `hocket profile`, per stage")
    ap.add_argument("--predict-only", action="store_true")
    return ap


def main():
    args = options().parse_args()
    reason = netbox.why_not()
    if reason:
        sys.exit(f"predicted.py: {reason}")
    cases = all_cases(args.only)
    folder = args.folder or tempfile.mkdtemp(prefix="predicted-")
    os.makedirs(folder, exist_ok=True)
    networks = list(dict.fromkeys(case.network for case in cases))
    profile = profile_tasks(args, cases, folder)
    links = {network: NETWORKS[network].measure_links(args.hocket, DENSE, folder, network) for network in networks}
    for network, found in links.items():
        for name, link in found.items():
            print(f"{network} {name}: messages {link['latency_ns'] / 1e3:.0f} us, {link['bytes_per_s'] * 8e-6:.1f} "
                  f"Mbit/s; collectives {link['collective_latency_ns'] / 1e3:.0f} us, "
                  f"{link['collective_bytes_per_s'] * 8e-6:.1f} Mbit/s; beside each other work takes "
                  f"{link.get('compute_slowdown', 1):.2f}, collectives {link.get('collective_slowdown', 1):.2f} times as long",
                  flush=True)
    real = {network: NETWORKS[network].ranks() <= 2 for network in networks}
    moe = next((case for case in cases if not case.real and case.model == MOE), None)
    played = moe and played_profile(
        args.hocket, MOE, [key for key in moe.keys if not key.startswith("plan.ranks_per_node")], folder)
    profiles = {network: profile_of(network, profile, links[network], folder) if real[network] else played
                for network in networks if real[network] or played}
    clusters = {network: NETWORKS[network].cluster_file(links[network], device_of(NETWORKS[network]), folder, network)
                for network in networks}
    rows = {}
    for case in cases:
        said = predict(args, case, clusters, profiles)
        rows[case.full_name()] = {"predicted_s": said["step_s"],
                                  "compute_s": max(rank["compute_s"] for rank in said["breakdown"])}
    store = args.json or os.path.join(folder, "predicted.json")

    def write():
        with open(store, "w", encoding="utf-8") as f:
            json.dump({"predicted_at": began, "links": links, "rows": rows}, f, indent=1)

    began = datetime.datetime.now().isoformat(timespec="seconds")
    write()
    print(f"{len(rows)} predictions written to {store}", flush=True)
    if args.predict_only:
        return
    print(f"{'':36}{'predicted':>11}{'measured':>11}{'error':>8}{'equal speed':>13}{'late':>7}")
    for network in networks:
        among = [case for case in cases if case.network == network]
        measured = measure(args, network, among, played, folder)
        for case in among:
            row, found = rows[case.full_name()], measured[case.name]
            row["step_ms"], row["probe_flops"] = found["step_ms"], found["probe_flops"]
            row["measured_s"] = statistics.median(found["step_ms"]) / 1e3
            row["error"] = row["predicted_s"] / row["measured_s"] - 1
            row["equal_speed"] = at_equal_speed(case, row, profile)
            row["late"] = found["over_ms"] / found["held_ms"] if found.get("held_ms") else None
            row["real"] = case.real
            shown = [f"{row[key]:+.1%}" if row[key] is not None else "" for key in ("equal_speed", "late")]
            print(f"{case.full_name():36}{row['predicted_s'] * 1e3:9.1f}ms{row['measured_s'] * 1e3:9.1f}ms"
                  f"{row['error']:+8.1%}{shown[0]:>13}{shown[1]:>7}", flush=True)
            write()
    for name, among in (("real arithmetic", [r for r in rows.values() if r["real"]]),
                        ("played", [r for r in rows.values() if not r["real"]]), ("all", list(rows.values()))):
        if among:
            print(f"{name}: raw {summary(among, 'error')}; at equal speed {summary(among, 'equal_speed')}")


if __name__ == "__main__":
    main()
