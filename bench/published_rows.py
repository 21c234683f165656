#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares published training rates (bench/published_tables.py, bench/published_others.py) with `hocket simulate`, by cluster file.

    bench/published_rows.py [--machine mosaic-h100 ...] [--cluster FILE] [--json FILE] [--hocket build/hocket]

error      the predicted time of a step over the published one, minus one: negative if the prediction is too fast
inside     whether the published step lies inside of the prediction's interval
memory     the predicted peak over the published one, minus one, where it is published: planned memory and logits, with the
           fragmentation of the file. Published is what PyTorch's allocator reserved, without context and communicators.

--memory prints the rows that have a peak: planned, that of the allocator, with all of the reserve, published, and the error."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import published_others
import published_tables
import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLUSTERS = os.path.join(ROOT, "configs", "clusters")
# machine -> cluster files that stand for it: its own, if there is one, and the datasheet's
MACHINES = {"mosaic-h100": ["mosaic-h100", "h100-64x8"], "mosaic-a100": ["mosaic-a100", "a100-16x8"],
            "torchtitan-h100": ["grand-teton-h100"], "torchtitan-a100": ["a100-16x8"], "trainy-h200": ["h200-ethernet-3to1"],
            "selene": ["selene-a100"], "modelzoo": ["modelzoo-h100"], "nemo-h100": ["nemo-h100", "dgx-h100-superpod"],
            "dgx2-v100": ["aws-p3dn-v100"], "dgxc-h100": ["nemo-h100", "dgx-h100-superpod"], "b200": ["dgx-b200"],
            "llama3-h100": ["dgx-h100-superpod"], "mosaic-h100-large": ["mosaic-h100", "h100-64x8"],
            "mosaic-a100-40": ["mosaic-a100", "azure-nd-a100-v4"], "a100-80": ["a100-16x8"], "a100-40": ["azure-nd-a100-v4"],
            "jean-zay": ["aws-p4de-a100"]}


def all_rows():
    return published_tables.all_rows() + published_others.all_rows()


def enlarged(cluster, row, folder):
    """Returns the path of the cluster file with as many nodes as the row needs, and the row's own device keys."""
    with open(cluster, encoding="utf-8") as f:
        lines = f.read().split("\n")
    for i, line in enumerate(lines):
        if line.startswith("nodes:"):
            lines[i] = f"nodes: {max(int(line.split()[1]), (row.ranks() + 7) // 8)}"
    begin = lines.index("  efficiency:")
    has = {line.split(":")[0].strip() for line in lines[:begin] if line.startswith("  ") and not line.startswith("   ")}
    more = [f"  {key}: {json.dumps(value)}" for key, value in row.device.items() if key not in has]
    lines[begin:begin] = more
    path = os.path.join(folder, os.path.basename(cluster))
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    return path


def outside_of_allocator(cluster):
    """Returns the bytes of the file's reserve that PyTorch's allocator does not know: context and communicators."""
    with open(cluster, encoding="utf-8") as f:
        reserve = yaml.safe_load(f)["device"].get("reserve", {})
    units = {"MiB": 2**20, "GiB": 2**30, "GB": 1e9, "MB": 1e6}
    total = 0
    for key in ("context", "communicators"):
        value = str(reserve.get(key, {}).get("value", "0GiB"))
        unit = next(unit for unit in units if value.endswith(unit))
        total += float(value.removesuffix(unit)) * units[unit]
    return total


def peak_of(found, cluster):
    """Returns, of the class of ranks that takes most, planned memory, that of the allocator, and all with the reserve, in GiB."""
    most = max(found["memory"], key=lambda rank: rank.get("with_reserve", rank["planned"]))
    full = most.get("with_reserve", most["planned"])
    return [x / 2**30 for x in (most["planned"], full - outside_of_allocator(cluster), full)]


def run_of(row):
    return {"model": {"config": row.model, "dtype": "bf16", "float8": row.float8},
            "train": {"global_batch": row.batch, "seq_len": row.seq_len, "dropout": row.dropout, "grad_dtype": row.grad_dtype},
            "plan": {"ranks_per_node": 8, **row.plan}}


def published_step_s(row, found):
    """Returns the seconds of the published step."""
    if row.unit == "s":
        return row.figure
    if row.unit == "TFLOP/s":
        return row.flops / (row.figure * 1e12 * row.ranks())
    if row.unit == "MFU, %":
        return found["model_flops"] / (row.figure / 100 * found["peak_flops_per_device"] * row.ranks())
    return row.batch * row.seq_len / (row.figure * row.ranks())


def predict(hocket, row, cluster, folder, more=()):
    """Returns a line of the table, or the refusal of a row that this version cannot simulate. `more`: arguments, such as
    --what-if, whose answers are the line's "what_if"."""
    run_file = os.path.join(folder, "run.yaml")
    with open(run_file, "w", encoding="utf-8") as f:
        json.dump(run_of(row), f)
    words = [hocket, "simulate", run_file, "--cluster", enlarged(cluster, row, folder), "--json", *more]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        return {"machine": row.machine, "row": row.what, "refused": ran.stderr.strip()[-300:]}
    found = json.loads(ran.stdout)
    step, published = found["step_s"], published_step_s(row, found)
    interval = found.get("interval", {})
    line = {"machine": row.machine, "cluster": os.path.basename(cluster).removesuffix(".yaml"), "row": row.what,
            "unit": row.unit, "published": row.figure, "published_step_s": published, "step_s": step,
            "error": step / published - 1, "fits": found["fits"], "fitted": row.fitted}
    if more:
        line["what_if"] = {answer["what"]: answer["step_s"] for answer in found.get("what_if", [])}
    if interval:
        line["interval"] = [interval["low_s"], interval["high_s"]]
        line["inside"] = interval["low_s"] <= published <= interval["high_s"]
    if row.memory_gib:
        line["planned_gib"], peak, line["with_reserve_gib"] = peak_of(found, cluster)
        line["memory_gib"], line["memory_error"] = peak, peak / row.memory_gib - 1
        line["published_memory_gib"] = row.memory_gib
    return line


def show(line):
    if "refused" in line:
        print(f"{line['row']:<52} refused: {line['refused'].splitlines()[-1]}", flush=True)
        return
    memory = f"  {line['memory_gib']:5.1f} of {line['published_memory_gib']:.1f} GiB" if "memory_gib" in line else ""
    inside = {True: "inside", False: "OUTSIDE"}.get(line.get("inside"), "")
    print(f"{line['row']:<52} {line['published']:>8g} {line['published_step_s']:>9.3f} s {line['step_s']:>9.3f} s "
          f"{100 * line['error']:>+7.1f} % {'' if line['fits'] else 'misfit '}{inside}{memory}", flush=True)


def show_memory(line):
    if "refused" in line:
        print(f"{line['row']:<52} refused: {line['refused'].splitlines()[-1]}", flush=True)
        return
    print(f"{line['row']:<52} {line['planned_gib']:>8.1f} {line['memory_gib']:>10.1f} {line['with_reserve_gib']:>13.1f} "
          f"{line['published_memory_gib']:>10.1f} {100 * line['memory_error']:>+7.1f} %", flush=True)


def summary(lines):
    """Returns the figures of lines of one cluster file."""
    good = [line for line in lines if "error" in line]
    if not good:
        return {}
    mean = sum(abs(line["error"]) for line in good) / len(good)
    found = {"rows": len(good), "mean": mean, "bias": sum(line["error"] for line in good) / len(good),
             "worst": max(abs(line["error"]) for line in good)}
    inside = [line["inside"] for line in good if "inside" in line]
    if inside:
        found["inside"] = sum(inside) / len(inside)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    parser.add_argument("--machine", action="append", choices=MACHINES)
    parser.add_argument("--cluster", action="append", help="files in place of the machine's")
    parser.add_argument("--every", type=int, default=1, help="only every Nth row of a machine (default: %(default)s)")
    parser.add_argument("--memory", action="store_true", help="peaks of memory in place of steps")
    parser.add_argument("--json", help="write the table here")
    args = parser.parse_args()
    all_lines = []
    with tempfile.TemporaryDirectory() as folder:
        for machine in args.machine or MACHINES:
            rows = [row for row in all_rows() if row.machine == machine][::args.every]
            rows = [row for row in rows if row.memory_gib or not args.memory]
            for name in args.cluster or MACHINES[machine]:
                path = name if name.endswith(".yaml") else os.path.join(CLUSTERS, name + ".yaml")
                if not os.path.exists(path) or not rows:
                    continue
                print(f"== {machine} by {os.path.basename(path)}", flush=True)
                if args.memory:
                    print(f"{'GiB':<52} {'planned':>8} {'allocator':>10} {'with reserve':>13} {'published':>10} {'error':>9}")
                lines = []
                for row in rows:
                    lines.append(predict(args.hocket, row, path, folder))
                    (show_memory if args.memory else show)(lines[-1])
                if args.memory:
                    all_lines += lines
                    continue
                for kind, chosen in (("fitted", [x for x in lines if x.get("fitted")]),
                                     ("others", [x for x in lines if not x.get("fitted")])):
                    if figures := summary(chosen):
                        print(f"   {kind}: " + ", ".join(f"{k} {v if k == 'rows' else f'{100 * v:+.1f} %'}"
                                                          for k, v in figures.items()), flush=True)
                all_lines += lines
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(all_lines, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    sys.exit(main())
