#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the plan of `hocket plan` with plans that an expert would write down, on many models and clusters.

    bench/planner_experts.py [--only NAME ...] [--seconds N] [--whole] [--out FILE] [--table FILE]

bench/planner_setups.json has the set-ups. Each expert plan is simulated with the least recomputation that fits. Its
step is extrapolated from two numbers of micro-batches, where it has many; the two fastest are simulated in full, and
so is the planner's choice. Results are added to the JSON file after every set-up: a second call goes on.

--whole searches once more, without a limit: its best plan is the best of all, as `tests/planner/search_test.cc` shows
where every plan is simulated.

ratio         step of the planner's choice over the step of the best expert plan: at most 1.02 is good
processor     seconds of processor time of the search, all threads together; its limit is in seconds of a clock"""
import argparse
import json
import os
import resource
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BAR = 1.02
LEAST_EXPERTS = 8
LONG_PASSES = 2048  # layers x micro-batches of a step that is extrapolated
SIMULATION_S = 900


def cluster_text(cluster):
    """Returns a cluster file of identical nodes."""
    device, links = cluster["device"], cluster["links"]
    text = f"""name: {cluster["name"]}
nodes: {cluster["nodes"]}
devices_per_node: {cluster["per_node"]}
device:
  name: {cluster["name"]}
  memory: {{value: {device["memory"]}}}
  memory_bandwidth: {{value: {device["bandwidth"]}}}
  launch: {{value: {device["launch"]}}}
  peak: {{bf16: {{value: {device["bf16"]}}}, f32: {{value: {device["f32"]}}}}}
  efficiency:
    matmul: {{value: {device["efficiency"][0]}}}
    attention: {{value: {device["efficiency"][1]}}}
    memory: {{value: {device["efficiency"][2]}}}
links:
"""
    for name in ("intra", "inter"):
        latency, bandwidth, efficiency = links[name]
        text += (f"  {name}: {{latency: {{value: {latency}}}, bandwidth: {{value: {bandwidth}}}, "
                 f"efficiency: {{value: {efficiency}}}}}\n")
    if cluster.get("adapters"):
        text += f"topology: {{adapters_per_node: {cluster['adapters']}}}\n"
    if cluster.get("heterogeneous"):
        text += "heterogeneous_nodes:\n" + "".join(
            f"  - {{first: {first}, count: {count}, speed: {speed}, source: \"assumed\"}}\n"
            for first, count, speed in cluster["heterogeneous"])
    return text


def keys_of(plan):
    """Returns the keys of an expert plan, without its recomputation."""
    keys = {f"plan.{axis}": plan[axis] for axis in ("pp", "dp", "cp", "tp", "ep") if plan.get(axis, 1) > 1}
    keys["plan.micro_batch"] = plan["micro_batch"]
    if plan.get("tp", 1) > 1:
        keys["plan.sequence_parallel"] = "true"
    if "layers" in plan:
        keys["plan.pp_layers"] = json.dumps(plan["layers"])
    if plan.get("chunks", 1) > 1:
        keys.update({"plan.pp_schedule": "interleaved", "plan.pp_chunks": plan["chunks"]})
    if plan["zero"] == 1:
        keys["plan.shard.optimizer"] = "all"
    if plan["zero"] >= 2:
        keys["plan.shard.grads"] = "all"
    if plan["zero"] == 3:
        keys["plan.shard.params"] = "all"
    return keys


def words(plan):
    """Returns a plan in one line."""
    mesh = " x ".join(f"{axis} {plan[axis]}" for axis in ("pp", "dp", "cp", "tp", "ep") if plan.get(axis, 1) > 1)
    chunks = f", interleaved of {plan['chunks']}" if plan.get("chunks", 1) > 1 else ""
    layers = f" of {'+'.join(map(str, plan['layers']))} layers" if "layers" in plan else ""
    return f"{mesh}{chunks}{layers}, micro-batches of {plan['micro_batch']}, ZeRO-{plan['zero']}"


class Case:
    """A set-up with its files."""

    def __init__(self, hocket, setup, folder):
        self.hocket, self.setup = hocket, setup
        self.model, self.cluster = os.path.join(folder, "model"), os.path.join(folder, "cluster.yaml")
        os.makedirs(self.model, exist_ok=True)
        with open(os.path.join(self.model, "config.json"), "w", encoding="utf-8") as f:
            json.dump(setup["model"], f)
        with open(self.cluster, "w", encoding="utf-8") as f:
            f.write(cluster_text(setup["cluster"]))

    def keys(self, batch):
        return {"train.global_batch": batch, "train.seq_len": self.setup["seq_len"], "model.dtype": "bf16"}

    def simulate(self, keys, batch):
        """Returns step seconds and whether the plan fits, or None if there is no such program."""
        command = [self.hocket, "simulate", self.model, "--cluster", self.cluster, "--json"]
        per_node = self.setup["cluster"]["per_node"]
        keys = {**self.keys(batch), **keys, "plan.ranks_per_node": per_node}
        for key, value in keys.items():
            command += ["--set", f"{key}={value}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SIMULATION_S, check=False)
        if ran.returncode != 0:
            return None
        said = json.loads(ran.stdout)
        return {"step_s": said["step_s"], "fits": bool(said["fits"]),
                "bytes": max(c["planned"] for c in said["memory"])}

    def extrapolated(self, plan, recompute):
        """Returns the same from two shorter steps, where the step is long."""
        batch, each = self.setup["global_batch"], plan["dp"] * plan["micro_batch"]
        count, step = batch // each, max(2, plan.get("pp", 1))
        keys = {**keys_of(plan), "plan.recompute": recompute}
        if count * self.setup["model"]["num_hidden_layers"] < LONG_PASSES or count < 10 * step:
            return self.simulate(keys, batch)
        one, two = (self.simulate(keys, each * step * times) for times in (2, 3))
        if not one or not two:
            return None
        slope = (two["step_s"] - one["step_s"]) / step
        return {**two, "step_s": two["step_s"] + (count - 3 * step) * slope}

    def expert(self, plan):
        """Returns the plan with the recomputation that it names, or the least that fits."""
        for recompute in [plan["recompute"]] if "recompute" in plan else ("none", "selective", "full"):
            found = self.extrapolated(plan, recompute)
            if found is None:
                return None
            if found["fits"]:
                return {**found, "plan": words(plan), "recompute": recompute,
                        "keys": {**keys_of(plan), "plan.recompute": recompute}}
        return {"fits": False, "plan": words(plan)}

    def search(self, seconds, more=()):
        """Returns the planner's report, its clock time and its processor time. `more`: further arguments."""
        command = [self.hocket, "plan", self.model, "--cluster", self.cluster, "--json", "--threads", "2",
                   "--time-limit", str(seconds), "--global-batch", str(self.setup["global_batch"]), "--seq-len",
                   str(self.setup["seq_len"]), "--set", "model.dtype=bf16", *more]
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        said = json.loads(ran.stdout) if ran.returncode == 0 else {"error": ran.stderr[-600:]}
        return said, time.time() - begun, cpu


def compare(case, seconds, whole):
    """Returns the result of a set-up."""
    said, wall_s, cpu_s = case.search(seconds)
    ended = case.search(0) if whole else None
    experts, impossible = [], []
    for plan in case.setup["experts"]:
        found = case.expert(plan)
        (experts if found and found["fits"] else impossible).append(found or {"plan": words(plan)})
    experts.sort(key=lambda found: found["step_s"])
    for found in experts[:2]:
        found["full_s"] = case.simulate(found["keys"], case.setup["global_batch"])["step_s"]
    result = {"name": case.setup["name"], "what": case.setup["what"], "wall_s": wall_s, "processor_s": cpu_s,
              "experts": experts, "do_not_fit": [found["plan"] for found in impossible]}
    if "error" in said:
        return {**result, "error": said["error"]}
    best = said["best"][0]
    result.update({"step_s": best["step_s"], "fits": True, "plan": best["plan"], "extrapolated": best["extrapolated"],
                   "counts": said["counts"], "gains": said["gains_of_ten_percent"]})
    if best["extrapolated"]:
        result["extrapolated_s"] = best["step_s"]
        full = case.simulate(best["set"], case.setup["global_batch"])
        result.update({"step_s": full["step_s"], "fits": full["fits"]})
    if ended and "error" not in ended[0]:
        result.update({"whole_s": ended[0]["best"][0]["step_s"], "whole_plan": ended[0]["best"][0]["plan"],
                       "whole_processor_s": ended[2], "whole_counts": ended[0]["counts"]})
    if experts and result["fits"]:
        result["expert_s"] = min(found["full_s"] for found in experts[:2])
        result["ratio"] = result["step_s"] / result["expert_s"]
    return result


def table(results):
    """Returns a Markdown table."""
    lines = ["| set-up | planner | best expert plan | ratio | clock, processor | simulated, too large |",
             "|---|---|---|---|---|---|"]
    for r in results:
        if "step_s" not in r:
            lines.append(f"| {r['name']}: {r['what']} | {r['error'].strip().splitlines()[-1]} | | | "
                         f"{r['wall_s']:.0f} s, {r['processor_s']:.0f} s | |")
            continue
        expert = r["experts"][0] if r["experts"] else None
        said = "none fits"
        if expert:
            full_s = min(e["full_s"] for e in r["experts"][:2])
            said = f"{full_s:.4g} s: {expert['plan']}, recompute {expert['recompute']}"
        misfit = "" if r["fits"] else ", does not fit"
        lines.append(f"| {r['name']}: {r['what']} | {r['step_s']:.4g} s{misfit}: {r['plan']} | {said} | "
                     f"{r.get('ratio', 0):.3f} | {r['wall_s']:.0f} s, {r['processor_s']:.0f} s | "
                     f"{r['counts']['simulated']}, {r['counts']['over_memory']} |")
    ratios = [r["ratio"] for r in results if "ratio" in r]
    good = sum(ratio <= BAR for ratio in ratios)
    for r in results:
        if "whole_s" in r:
            lines.append(f"\n{r['name']}, searched to its end ({r['whole_processor_s']:.0f} s of processor time, "
                         f"{r['whole_counts']['simulated']} simulated): {r['whole_s']:.4g} s, {r['whole_plan']}; the search with "
                         f"a limit has {r['step_s'] / r['whole_s']:.4f} of it.")
    end = f"{good} of {len(ratios)} at most {BAR}; the largest is {max(ratios, default=0):.3f}."
    return "\n".join(lines + ["", end])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    parser.add_argument("--setups", default=os.path.join(ROOT, "bench", "planner_setups.json"))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=55, help="limit of a search")
    parser.add_argument("--whole", action="store_true", help="search to the end as well")
    parser.add_argument("--out", default="planner_experts.json")
    parser.add_argument("--table", help="write the results as Markdown here")
    args = parser.parse_args()
    results = []
    if os.path.exists(args.out):
        with open(args.out, encoding="utf-8") as f:
            results = json.load(f)
    with open(args.setups, encoding="utf-8") as f:
        setups = json.load(f)
    for setup in setups:
        assert len(setup["experts"]) >= LEAST_EXPERTS, setup["name"]
        if any(r["name"] == setup["name"] for r in results) or (args.only and setup["name"] not in args.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = compare(Case(args.hocket, setup, folder), args.seconds, args.whole)
        results.append(result)
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
        print(table([result]).splitlines()[2], flush=True)
    if args.table:
        with open(args.table, "w", encoding="utf-8") as f:
            f.write(table(results) + "\n")


if __name__ == "__main__":
    main()
