#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the plan that `hocket plan` chooses with other plans of the same training by running all of them.

    sudo bench/choice.py [--only NAME] [--among N] [--steps N] [--json FILE]

A case is a box (tools/cluster, root), a model and a batch. `hocket plan` gets the link profile that `hocket profile`
measures in the box, and searches every plan for its ranks. The chosen plan runs in turn with the best simulated plan
of every other mesh and sharding, the most promising first, up to N in all. The device is emulated (`emulate`,
docs/cluster-in-a-box.md): lanes are held, all bytes go through the links. A choice is good if no other plan is more
than 3 % faster.

predicted     predicted time of the choice over its measured time, minus one
late          relative delay of the choice's tasks beyond the emulated device. If it is large, the cores cannot emulate
              so fast a device, and the measured step is not the predicted one (see --rate)
behind        time of the choice over that of the fastest plan, minus one (medians of their blocks)"""
import json
import os
import statistics
import sys
import tempfile

import in_box
from in_box import ROOT, Network, played_profile, run, sets

sys.path.insert(0, os.path.join(ROOT, "tools"))
import netbox  # noqa: E402

BAR = 0.03
DENSE, MOE = "configs/models/box-dense", "configs/models/box-moe"
NETWORKS = {
    "2x1-50mbit": Network(2, 1, "50mbit"),
    "2x1-400mbit": Network(2, 1, "400mbit"),
    "4x1-50mbit": Network(4, 1, "50mbit"),
    "4x1-100mbit": Network(4, 1, "100mbit"),
    "4x1-200mbit-2ms": Network(4, 1, "200mbit", delay="1ms"),
    "4x1-400mbit": Network(4, 1, "400mbit"),
    "2x2-50mbit-500mbit": Network(2, 2, "50mbit", "500mbit"),
    "2x2-100mbit-200mbit": Network(2, 2, "100mbit", "200mbit"),
    "2x2-200mbit-1gbit": Network(2, 2, "200mbit", "1gbit"),
    "2x2-400mbit-400mbit": Network(2, 2, "400mbit", "400mbit"),
}
SEQUENCE, BATCH = 256, 16
KEPT = ["plan.threads_per_rank=1", "plan.ranks=gloo"]


def device_file(args, folder):
    """Writes the emulated device as a cluster file; returns its path and its lines."""
    with open(os.path.join(ROOT, "configs", "clusters", "box-4x2.yaml"), encoding="utf-8") as f:
        text = f.read().replace("2GFLOP/s", args.rate)
    path = os.path.join(folder, "device.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path, [text[text.index("device:"):text.index("links:")].rstrip()]


def mesh_of(plan):
    """Returns the keys that distinguish plans here: the mesh and sharding, without the collectives' algorithms."""
    keys = ("pp", "dp", "cp", "tp", "ep", "etp", "sequence_parallel", "shard")
    return tuple((key, value) for key, value in sorted(plan["set"].items())
                 if any(key == f"plan.{name}" or key.startswith(f"plan.{name}.") for name in keys))


def plans_of(args, network, model, cluster, profile):
    """Returns the best plan of every mesh, the choice first, and the planner's output."""
    said = json.loads(run([args.hocket, "plan", model, "--cluster", cluster, "--ranks", str(network.ranks()),
                           "--global-batch", str(BATCH), "--seq-len", str(SEQUENCE), "--profile", profile,
                           "--time-limit", str(args.seconds), "--top", "400", "--json", *sets(KEPT)]))
    among, seen = [], set()
    for plan in said["best"]:
        if mesh_of(plan) not in seen:
            seen.add(mesh_of(plan))
            among.append(plan)
    return among[:args.among], said


def measure(args, network, model, plans, device, profile, folder):
    """Returns each plan's step in seconds, run in turn, and its tasks' relative delay beyond the emulated device."""
    command = [args.hocket, "bench", "step", "--config", model, "--steps", str(args.steps), "--warmup", "1", "--block",
               "1", *sets([f"emulate.cluster={device}", f"emulate.profile={profile}"])]
    for number, plan in enumerate(plans):
        keys = [f"train.seq_len={SEQUENCE}", f"train.global_batch={BATCH}", "plan.threads_per_rank=1"]
        keys += [f"{key}={value}" for key, value in plan["set"].items()
                 if key.startswith("plan.") and key not in ("plan.ranks", "plan.threads_per_rank")]
        command += ["--variant", f"plan{number}={','.join(keys)}"]
    printed = network.run(command, folder)
    said = json.loads([line for line in printed.splitlines() if line.startswith('{"world"')][-1])
    return [(statistics.median(variant["step_ms"]) / 1e3, variant["over_ms"] / variant["held_ms"])
            for variant in said["variants"]]


def options():
    ap = in_box.options(__doc__, "all plans, predicted and measured", "cluster files and logs")
    ap.add_argument("--only", action="append", default=[], choices=list(NETWORKS), help="a network; may be repeated")
    ap.add_argument("--among", type=int, default=6, help="plans that are run of a case, the choice among them")
    ap.add_argument("--steps", type=int, default=4, help="of each plan")
    ap.add_argument("--seconds", type=float, default=8, help="of `hocket plan`")
    ap.add_argument("--rate", default="3GFLOP/s", help="of the emulated device: the faster, the less can the cores keep up "
                    "with what is really computed")
    return ap


def main():
    args = options().parse_args()
    reason = netbox.why_not()
    if reason:
        sys.exit(f"choice.py: {reason}")
    folder = os.path.abspath(args.folder or tempfile.mkdtemp(prefix="choice-"))
    os.makedirs(folder, exist_ok=True)
    device, lines = device_file(args, folder)
    keys = [f"train.seq_len={SEQUENCE}", f"train.global_batch={BATCH}", "plan.dp=2", "plan.ep=2", "plan.micro_batch=4"]
    profile = played_profile(args.hocket, MOE, keys + ["plan.threads_per_rank=1"], folder)
    print(f"{'':34}{'choice':>28}{'predicted':>11}{'measured':>11}{'error':>8}{'late':>7}{'behind':>8}  fastest", flush=True)
    rows = []
    for name in args.only or NETWORKS:
        network = NETWORKS[name]
        cluster = network.cluster_file(network.measure_links(args.hocket, DENSE, folder, name), lines, folder, name)
        for model in (DENSE, MOE):
            plans, search = plans_of(args, network, model, cluster, profile)
            times = measure(args, network, model, plans, device, profile, folder)
            for plan, (seconds, late) in zip(plans, times):
                plan["measured_s"], plan["late"] = seconds, late
            best = min(plans, key=lambda plan: plan["measured_s"])
            row = {"case": f"{name} {os.path.basename(model)}", "plans": plans, "complete": search["complete"],
                   "counts": search["counts"], "behind": plans[0]["measured_s"] / best["measured_s"] - 1}
            rows.append(row)
            choice = plans[0]
            print(f"{row['case']:34}{choice['plan'][:27]:>28}{choice['step_s'] * 1e3:9.1f}ms"
                  f"{choice['measured_s'] * 1e3:9.1f}ms{choice['step_s'] / choice['measured_s'] - 1:+8.1%}"
                  f"{choice['late']:7.1%}{row['behind']:+8.1%}  {best['plan']}", flush=True)
            if args.json:
                with open(args.json, "w", encoding="utf-8") as f:
                    json.dump(rows, f, indent=1)
    good = sum(row["behind"] <= BAR for row in rows)
    errors = sorted(abs(plan["step_s"] / plan["measured_s"] - 1) for row in rows for plan in row["plans"])
    print(f"of {len(rows)} cases the choice is within {BAR:.0%} of the fastest plan in {good} ({good / len(rows):.0%}); "
          f"error of all {len(errors)} plans: median {statistics.median(errors):.1%}, 90th percentile "
          f"{errors[min(len(errors) - 1, int(0.9 * len(errors)))]:.1%}")


if __name__ == "__main__":
    main()
