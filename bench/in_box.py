# SPDX-License-Identifier: Apache-2.0
"""Runs of hocket in a cluster in a box (tools/cluster), for the scripts beside this file."""
import os
import shlex
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def sets(keys):
    """Keys of a run, "KEY=VALUE" each, as options."""
    return [word for key in keys for word in ("--set", key)]


def run(words):
    """What the command prints; the script ends where it fails."""
    ran = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {shlex.join(words)} ended with {ran.returncode}:\n"
                 f"{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


def box(command, folder, hosts, per_host=1, rate="", inside="", delay="", timeout=1200):
    """What rank 0 of the command prints, run on every rank of a box; outputs of all ranks go to the folder."""
    words = [sys.executable, os.path.join(ROOT, "tools", "cluster"), "--hosts", str(hosts), "--ranks-per-host",
             str(per_host), "--files", folder, "--timeout", str(timeout)]
    for option, value in (("--rate", rate), ("--inside", inside), ("--delay", delay)):
        words += [option, value] if value else []
    return run(words + ["--", *command])
