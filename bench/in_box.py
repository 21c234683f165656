# SPDX-License-Identifier: Apache-2.0
"""Helpers of the scripts in this folder that run hocket in a cluster in a box (tools/cluster)."""
import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def options(doc, results=None, keeps=""):
    """Returns a parser with the options that these scripts share.

    `doc` is the script's docstring, `results` and `keeps` describe the output of --json and --folder.
    An empty `keeps` leaves --folder out."""
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    ap.add_argument("--json", metavar="FILE", help=results)
    if keeps:
        ap.add_argument("--folder", help=f"keeps {keeps}")
    return ap


def sets(keys):
    """Returns keys of a run ("KEY=VALUE") as --set options."""
    return [word for key in keys for word in ("--set", key)]


def run(words):
    """Returns the standard output of a command; ends the script if the command fails."""
    ran = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {shlex.join(words)} ended with {ran.returncode}:\n"
                 f"{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


@dataclasses.dataclass
class Network:
    """A box: its hosts, ranks on each, and links (tools/cluster).

    An empty `inside` is the host's loopback. `pinned` binds each rank to a core of its own, as on a machine with a core
    per rank."""
    hosts: int
    per_host: int
    rate: str
    inside: str = ""
    delay: str = ""
    pinned: bool = False

    def ranks(self):
        return self.hosts * self.per_host

    def run(self, command, folder):
        """Returns the output of the command's rank 0."""
        if self.pinned:
            command = ["sh", "-c", 'exec taskset -c {rank} "$@"', "sh", *command]
        return box(command, folder, self.hosts, self.per_host, self.rate, self.inside, self.delay)

    def measure_links(self, hocket, model, folder, name):
        """Returns the link profile ("intra" and "inter") measured between the ranks of the box."""
        out = os.path.join(folder, f"links-{name}.json")
        self.run([hocket, "profile", model, "--seconds", "0", "--out", out, *sets(
            ["train.seq_len=32", "train.global_batch=8", "plan.micro_batch=1", "plan.threads_per_rank=1"])], folder)
        with open(out, encoding="utf-8") as f:
            return json.load(f)["links"]

    def cluster_file(self, links, device, folder, name):
        """Writes the box as a cluster file with its measured links and the lines of `device`; returns the path."""
        inside = links.get("intra", links.get("inter"))
        between = links.get("inter", inside)
        source = f"`hocket profile` between the ranks of {name}"
        lines = [f"name: {name}", f"nodes: {self.hosts}", f"devices_per_node: {self.per_host}", *device, "links:"]
        for of, link in (("intra", inside), ("inter", between)):
            lines += [f"  {of}:", f"    latency: {{value: {link['latency_ns']:.0f}ns, source: \"{source}\"}}",
                      f"    bandwidth: {{value: {link['bytes_per_s']:.0f}B/s, source: \"{source}\"}}", "    direct:",
                      f"      latency: {{value: {link['collective_latency_ns']:.0f}ns, source: \"{source}\"}}",
                      f"      bandwidth: {{value: {link['collective_bytes_per_s']:.0f}B/s, source: \"{source}\"}}"]
        lines += ["topology: {adapters_per_node: 1}"]  # the ranks of a host share its link
        path = os.path.join(folder, f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        return path


def played_profile(hocket, model, keys, folder):
    """Writes a profile of the device of box-4x2.yaml with the measured routing; returns its path. It has no task times,
    so those of the cluster file apply."""
    seen = os.path.join(folder, "routing.json")
    run([hocket, "profile", model, "--seconds", "0", "--out", seen, *sets(keys)])
    with open(seen, encoding="utf-8") as f:
        profile = json.load(f)
    kept = {key: profile[key] for key in ("format", "cores", "threads", "task_overhead_ns", "routing")}
    path = os.path.join(folder, "profile-played.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**kept, "device": "box device", "machine": {}, "links": {}, "tasks": []}, f)
    return path


def box(command, folder, hosts, per_host=1, rate="", inside="", delay="", timeout=1200):
    """Runs a command on every rank of a box and returns rank 0's output; the folder gets the output of all ranks."""
    words = [sys.executable, os.path.join(ROOT, "tools", "cluster"), "--hosts", str(hosts), "--ranks-per-host",
             str(per_host), "--files", folder, "--timeout", str(timeout)]
    for option, value in (("--rate", rate), ("--inside", inside), ("--delay", delay)):
        words += [option, value] if value else []
    return run(words + ["--", *command])
