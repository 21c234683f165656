#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares hocket whatif with the truth of simulated PyTorch profiles (tests/whatif/known_truth.py).

Usage: bench/whatif_known.py [--seed N] [--hocket FILE] [--rows]"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "whatif"))
from known_truth import cases  # noqa: E402
from profile_sim import profiles  # noqa: E402


def analyse(hocket, job, folder):
    paths = []
    for rank, profile in enumerate(profiles(job)):
        paths.append(os.path.join(folder, f"rank{rank}.json"))
        with open(paths[-1], "w", encoding="utf-8") as f:
            json.dump(profile, f)
    done = subprocess.run([hocket, "whatif", *paths, "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr}


def judge(case, found):
    """Returns the relative errors of the measured, the replayed and the cured step, and whether the cause is right."""
    if "error" in found:
        return None, None, None, False
    errors = [found[key] / case.seconds - 1 for key in ("T_measured", "T")]
    named = found["causes"][0] if found["cause"] else {"where": "", "T_fixed": found["T"]}
    right = (found["cause"] or "") == case.cause and (not case.where or named["where"] == case.where)
    return *errors, named["T_fixed"] / case.mended - 1, right


def percent(value):
    return "failed" if value is None else f"{100 * value:+.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    parser.add_argument("--rows", action="store_true", help="print every case")
    parser.add_argument("--keep", default="", help="folder for the files")
    words = parser.parse_args()
    summary = {}
    for number, case in enumerate(cases(words.seed)):
        with tempfile.TemporaryDirectory() as folder:
            if words.keep:
                folder = os.path.join(words.keep, str(number))
                os.makedirs(folder, exist_ok=True)
            found = analyse(words.hocket, case.job, folder)
        measured, replayed, cured, right = judge(case, found)
        good = measured is not None and abs(measured) <= 0.01 and abs(replayed) <= 0.01
        summary.setdefault(case.kind, []).append((good, right, measured, replayed, cured))
        if words.rows or not (good and right):
            job = case.job
            print(f"{number:3} {case.kind:<16} ranks {job.ranks} steps {job.steps} {'cold' if job.cold else 'warm'} "
                  f"{job.graph or '-':<6} {job.wait or '-':<6} truth {case.seconds * 1e3:8.3f} ms, {percent(measured)} %, "
                  f"replayed {percent(replayed)} %, cured {percent(cured)} %, {case.cause or 'none'}: "
                  f"{found.get('cause') or found.get('error', 'none')[:300]} "
                  f"{found['causes'][0]['where'] if found.get('cause') else ''} {'' if right else 'WRONG'}", flush=True)
    for kind, rows in summary.items():
        worst = max((max(abs(r[2]), abs(r[3])) for r in rows if r[2] is not None), default=0)
        print(f"{kind:<16} {len(rows):3} cases: step within 1 % {sum(r[0] for r in rows):3}, cause right "
              f"{sum(r[1] for r in rows):3}, worst step {100 * worst:.2f} %")


if __name__ == "__main__":
    main()
