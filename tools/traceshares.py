#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints how much of a step the ranks compute, and how much of their communication compute hides, from a trace of
`hocket train` or `hocket simulate`.

    tools/traceshares.py TRACE [--json]

For every rank and step, from the first task of any rank to the last one's end:
    busy     share of the time in which its compute lane works
    bubble   share of the time up to the last backward pass of any rank in which its compute lane is idle: because of
             the pipeline schedule, its messages or other waits (the optimizer's part is no pipeline)
    comm     time in which any of its links is in use, from when the last participant is ready; waiting for
             participants is not communication
    hidden   share of comm in which its compute lane works as well
    exposed  rest of comm, which is not hidden
Printed are means over the steps of the trace; `all` is the mean over ranks, hidden weighted by time."""
import argparse
import collections
import gzip
import json
import sys

LINKS = ("intra", "inter", "intra_tx", "inter_tx", "intra_rx", "inter_rx")


def read(path):
    """Returns the tasks of a trace, and its lanes' names in order."""
    with open(path, "rb") as f:
        packed = f.read(2) == b"\x1f\x8b"
    with (gzip.open if packed else open)(path, "rt", encoding="utf-8") as f:
        trace = json.load(f)
    schema = trace.get("otherData", {}).get("schema", "")
    if not schema.startswith("hocket-trace-"):
        raise ValueError(f"{path} is no trace of hocket: its schema is '{schema}'")
    return [e for e in trace["traceEvents"] if e["ph"] == "X"], trace["otherData"]["lanes"]


def joined(spans):
    """Merges spans; returns disjoint ones in ascending order."""
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return out


def total(spans):
    return sum(end - begin for begin, end in spans)


def common(left, right):
    """Returns the time in which both lists of disjoint, ascending spans overlap."""
    time, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        time += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return time


def ready_times(tasks):
    """Returns, by id of a communication task that waits for others, the time when its last participant began."""
    meetings, counts = collections.defaultdict(list), collections.Counter()
    for task in sorted(tasks, key=lambda t: t["ts"]):
        args = task["args"]
        if args.get("flow"):
            meetings["message", args["flow"]].append(task)
        elif "group" in args:
            # The members of a group meet in the same order on every rank.
            of_rank = task["pid"], args["group"]
            meetings["collective", args["group"], counts[of_rank]].append(task)
            counts[of_rank] += 1
    waits = [(task, max(t["ts"] for t in together)) for together in meetings.values() for task in together]
    return {id(task): ready for task, ready in waits if task["args"].get("end") != "out"}


def shares_of_step(tasks, lanes):
    """Returns {rank: {busy, bubble, comm_ms, hidden_ms, step_ms}}."""
    begin = min(t["ts"] for t in tasks)
    end = max(t["ts"] + t["dur"] for t in tasks)
    passes = [t["ts"] + t["dur"] for t in tasks if t["args"].get("phase") in ("forward", "backward")]
    last_pass = max(passes, default=end)
    ready = ready_times(tasks)
    spans = collections.defaultdict(lambda: {"compute": [], "links": [], "passes": []})
    for t in tasks:
        lane, span = lanes[t["tid"] - 1], (t["ts"], t["ts"] + t["dur"])
        of_rank = spans[t["pid"] - 1]
        if lane == "compute":
            of_rank["compute"].append(span)
            if span[0] < last_pass:
                of_rank["passes"].append((span[0], min(span[1], last_pass)))
        elif lane in LINKS:
            of_rank["links"].append((min(ready.get(id(t), span[0]), span[1]), span[1]))
    result = {}
    for rank, of_rank in sorted(spans.items()):
        compute, links = joined(of_rank["compute"]), joined(of_rank["links"])
        result[rank] = {
            "step_ms": (end - begin) / 1e3,
            "busy": total(compute) / (end - begin),
            "bubble": 1 - total(joined(of_rank["passes"])) / (last_pass - begin),
            "comm_ms": total(links) / 1e3,
            "hidden_ms": common(compute, links) / 1e3,
        }
    return result


def shares(path):
    """Returns {rank: means over the steps}, and under "all" those of all ranks."""
    tasks, lanes = read(path)
    by_step = collections.defaultdict(list)
    for task in tasks:
        by_step[task["args"].get("step")].append(task)
    if not by_step:
        raise ValueError(f"{path} has no tasks")
    steps = [shares_of_step(tasks, lanes) for tasks in by_step.values()]
    ranks = sorted({rank for step in steps for rank in step})

    def mean(values):
        return sum(values) / len(values)

    result = {rank: {key: mean([step[rank][key] for step in steps]) for key in steps[0][rank]} for rank in ranks}
    result["all"] = {key: mean([result[rank][key] for rank in ranks]) for key in result[ranks[0]]}
    for row in result.values():
        row["exposed_ms"] = row["comm_ms"] - row["hidden_ms"]
        row["hidden"] = row["hidden_ms"] / row["comm_ms"] if row["comm_ms"] else None
    return result


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("trace", help="trace.json or trace.json.gz of a run folder, or of `hocket simulate --trace`")
    ap.add_argument("--json", action="store_true", help="an object by rank instead of a table")
    args = ap.parse_args()
    try:
        found = shares(args.trace)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"traceshares.py: {error}")
    if args.json:
        print(json.dumps(found))
        return
    print(f"{'rank':>5}{'step ms':>10}{'busy':>8}{'bubble':>8}{'comm ms':>10}{'hidden':>8}{'exposed ms':>12}")
    for rank, row in found.items():
        hidden = "" if row["hidden"] is None else f"{row['hidden']:.1%}"
        print(f"{rank:>5}{row['step_ms']:10.1f}{row['busy']:8.1%}{row['bubble']:8.1%}{row['comm_ms']:10.1f}{hidden:>8}"
              f"{row['exposed_ms']:12.1f}")


if __name__ == "__main__":
    main()
