# SPDX-License-Identifier: Apache-2.0
"""Hosts made of network namespaces, joined by a switch, with links of given rates and delays.

    switch  -- link of host 0 --  host 0
            -- link of host 1 --  host 1 ...              ranks of a host talk over its loopback
or, where ranks have links of their own inside a host (`inside`):
    switch  -- link of host 0 --  host 0  -- link of rank 0 --  rank 0
                                          -- link of rank 1 --  rank 1 ...

A link is a pair of veth devices with a token bucket (tc tbf) at both ends, so that it carries its rate
in both directions at once. Large segments pass whole, but the buckets count the headers of every packet
that a wire would have. A delay is netem's where the kernel has it, and a relay's (netdelay.py) where it
has not.

Everything lies in namespaces whose names hold the owner's pid and start time; nothing outside of them is
touched, and clean() removes the boxes of dead owners.
"""
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

PREFIX = "hocket-box-"
NAMESPACES = "/run/netns"
RUN = "/run/hocket-box"  # a folder per box: its hosts file, folders of its own for each host
HEADERS = 66  # bytes of Ethernet, IPv4 and TCP with time stamps around the payload of a packet
QUEUE = 4 << 20  # bytes that wait before a link at most, as in a switch; more is dropped
# The same on every machine: the congestion control that every namespace may have, since one that paces (bbr) costs a
# timer for every few packets. Bridges pass packets on as a switch does, not through filters.
SETTINGS = {
    "ipv4/tcp_congestion_control": "reno",
    "bridge/bridge-nf-call-iptables": 0,
    "bridge/bridge-nf-call-ip6tables": 0,
    "bridge/bridge-nf-call-arptables": 0,
}
BURST_SECONDS = 250e-6  # largest burst: longer makes small messages too fast, shorter costs CPU
LARGEST_SEGMENT = 65536


class BoxError(Exception):
    """Error for a part of the box that could not be made; the text suggests a remedy."""


def run(*command, check=True):
    """Returns the output of a command; raises BoxError with its last words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise BoxError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def start_time(pid):
    """Returns a process's start time in clock ticks since boot, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def why_not():
    """Returns the reason that no box can be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root; call it as root or with sudo"
    for tool in ("ip", "tc", "unshare"):
        if not shutil.which(tool):
            return f"no `{tool}` here; install iproute2 and util-linux (tools/setup.sh --tests)"
    probe = f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}-probe"
    why = None
    # The second command enters the namespace, which takes a root that is a mount of its own: no chroot.
    for words in (["netns", "add", probe], ["-n", probe, "link", "set", "lo", "up"]):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode != 0:
            why = f"`ip {' '.join(words)}` fails: {done.stderr.strip()}"
            break
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return why


def pids_in(namespace):
    return [int(p) for p in run("ip", "netns", "pids", namespace, check=False).split()]


def kill_in(namespaces):
    """Kills every process in these namespaces and waits until they are gone."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        left = [p for n in namespaces for p in pids_in(n)]
        if not left:
            return
        for p in left:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def remove(owner):
    """Kills the processes in the namespaces of an owner, and removes the namespaces and the owner's folder."""
    if not os.path.isdir(NAMESPACES):
        return
    names = [n for n in os.listdir(NAMESPACES) if n.startswith(PREFIX + owner + "-")]
    kill_in(names)
    for n in names:
        run("ip", "netns", "del", n, check=False)
    shutil.rmtree(os.path.join(RUN, owner), ignore_errors=True)


def clean():
    """Removes the boxes whose owners are gone; returns their owners' names, `PID-START`."""
    names = []
    for folder in (NAMESPACES, RUN):
        names += os.listdir(folder) if os.path.isdir(folder) else []
    found = {m[1] for m in (re.match(rf"(?:{PREFIX})?(\d+-\d+)(?:-|$)", n) for n in names) if m}
    dead = sorted(o for o in found if start_time(o.split("-")[0]) != o.split("-")[1])
    for owner in dead:
        remove(owner)
    return dead


def die_with_parent():
    """Makes this process get SIGKILL when its parent dies. Called in a child."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Link:
    """A link between a port of `parent`'s bridge and `device` of `child`: bit/s or None, seconds."""

    def __init__(self, parent, port, child, device, rate, delay):
        self.parent, self.port, self.child, self.device = parent, port, child, device
        self.rate, self.delay = rate, delay
        self.ends = {"out": (child, device), "in": (parent, port)}  # "out" leaves the child

    def segment(self):
        """Returns the bytes that may be handed over as one segment: those of BURST_SECONDS at the rate."""
        if self.rate is None:
            return LARGEST_SEGMENT
        return max(3000, min(LARGEST_SEGMENT, int(self.rate * BURST_SECONDS / 8)))

    def shape(self, netem):
        """Puts the queues on both ends; with `netem` they delay too."""
        for namespace, device in self.ends.values():
            run("ip", "-n", namespace, "link", "set", device, "gso_max_size", str(self.segment()))
            at = ["tc", "-n", namespace, "qdisc", "add", "dev", device]
            if self.rate is None:
                run(*at, "root", "handle", "1:", "tbf", "rate", "1tbit", "burst", "16mb", "limit", str(QUEUE))
            else:
                burst = max(int(self.rate * BURST_SECONDS / 8), self.segment())
                run(*at, "root", "handle", "1:", "tbf", "rate", f"{int(self.rate)}bit",
                    "burst", str(burst + HEADERS * (burst // 1448 + 1)), "limit", str(QUEUE))
            if self.delay and netem:
                run(*at, "parent", "1:1", "netem", "delay", f"{self.delay * 1e6:.0f}us", "limit", "100000")

    def counters(self):
        """Returns {"out"|"in": {bytes, payload, dropped}}: the traffic of both ends since the link was made.

        `bytes` is the queue's count, with the Ethernet, IP and TCP headers of every packet. `payload` is without headers
        if all is TCP: the device counts large segments whole, with one header each."""
        counts = {}
        for way, (namespace, device) in self.ends.items():
            queue = json.loads(run("tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device, "root"))[0]
            sent = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", "dev", device))[0][
                "stats64"
            ]["tx"]
            counts[way] = {"bytes": queue["bytes"], "payload": max(0, sent["bytes"] - HEADERS * sent["packets"]),
                           "dropped": queue["drops"] + sent["dropped"]}
        return counts


class Endpoint:
    """The place of a rank: a namespace with an address."""

    def __init__(self, namespace, host, address):
        self.namespace, self.host, self.address = namespace, host, address


class Box:
    """Hosts, their links and their processes. As a context manager it removes everything at its end.

    `rates` in bit/s (None: as fast as the machine) and `delays` in seconds have one entry per host;
    `inside` is the rate of each rank's own link inside its host, or None: one namespace for all ranks of a
    host. `private` is a path where every host sees a folder of its own. Throws BoxError."""

    def __init__(self, rates, delays, ranks_per_host=1, inside=None, inside_delay=0.0, mtu=1500, private=None):
        self.hosts, self.ranks_per_host, self.mtu, self.private = len(rates), ranks_per_host, mtu, private
        self.owner = f"{os.getpid()}-{start_time(os.getpid())}"
        self.folder = os.path.join(RUN, self.owner)
        self.uplinks, self.inner, self.endpoints, self.ranks = [], [], [], []
        self.relay = None
        switch = self._name("switch")
        self.bridges = [switch]
        for h in range(self.hosts):
            namespace = self._name(f"h{h}")
            self.uplinks.append(Link(switch, f"h{h}", namespace, "eth0", rates[h], delays[h]))
            if inside is None:
                self.endpoints.append(Endpoint(namespace, h, f"10.97.{h}.1"))
                self.ranks += [self.endpoints[-1]] * ranks_per_host
                continue
            self.bridges.append(namespace)
            for r in range(ranks_per_host):
                own = self._name(f"h{h}r{r}")
                self.inner.append(Link(namespace, f"r{r}", own, "eth0", inside, inside_delay))
                self.endpoints.append(Endpoint(own, h, f"10.97.{h}.{r + 1}"))
                self.ranks.append(self.endpoints[-1])

    def _name(self, part):
        return f"{PREFIX}{self.owner}-{part}"

    def __enter__(self):
        clean()
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        remove(self.owner)
        if self.relay:
            self.relay.kill()
            self.relay.wait()

    def _make(self):
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, "hosts"), "w") as f:
            f.write("127.0.0.1 localhost\n")
            firsts = [e for i, e in enumerate(self.endpoints) if i == 0 or self.endpoints[i - 1].host != e.host]
            # The second form is an IPv6 socket's name of the address, which PyTorch looks up.
            f.writelines(f"{form}{e.address} host{e.host}\n" for e in firsts for form in ("", "::ffff:"))
        self._write_rsh()
        for namespace in dict.fromkeys(self.bridges + [e.namespace for e in self.endpoints]):
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
            for key, value in SETTINGS.items():
                run("ip", "netns", "exec", namespace, "sh", "-c",
                    f"! [ -e /proc/sys/net/{key} ] || echo {value} > /proc/sys/net/{key}")
        for namespace in self.bridges:
            run(
                "ip",
                "-n",
                namespace,
                "link",
                "add",
                "hub",
                "type",
                "bridge",
                "forward_delay",
                "0",
                "mcast_snooping",
                "0",
            )
            run("ip", "-n", namespace, "link", "set", "hub", "addrgenmode", "none", "mtu", str(self.mtu), "up")
        links = self.uplinks + self.inner
        netem = any(x.delay for x in links) and self._has_netem()
        relayed = [x for x in links if x.delay and not netem]
        for link in links:
            if link not in relayed:
                run("ip", "link", "add", link.port, "netns", link.parent, "type", "veth",
                    "peer", "name", link.device, "netns", link.child)
        if relayed:
            self._start_relay(relayed)
        self.delayed_by = "netem" if netem else "a relay" if relayed else None
        for link in links:
            self._connect(link, netem)
        for e in self.endpoints:
            run("ip", "-n", e.namespace, "addr", "add", e.address + "/16", "dev", "eth0")

    def _write_rsh(self):
        """Writes a remote shell of the box for launchers that start their own ranks: RSH host1 COMMAND ..."""
        self.rsh = os.path.join(self.folder, "rsh")
        with open(self.rsh, "w") as f:
            f.write(
                f'#!/bin/sh\nhost=$1; shift\nexec ip netns exec {self._name("h")}"${{host#host}}" unshare --uts sh -c \\\n'
                f'  "hostname $host && mount --bind {self.folder}/hosts /etc/hosts && $*"\n'
            )
        os.chmod(self.rsh, 0o755)

    def _connect(self, link, netem):
        for namespace, device in link.ends.values():
            run("ip", "-n", namespace, "link", "set", device, "addrgenmode", "none", "mtu", str(self.mtu))
        link.shape(netem)
        run("ip", "-n", link.parent, "link", "set", link.port, "master", "hub", "up")
        run("ip", "-n", link.child, "link", "set", link.device, "up")
        if link.child in self.bridges:
            run("ip", "-n", link.child, "link", "set", link.device, "master", "hub")

    def _has_netem(self):
        done = subprocess.run(
            ["tc", "-n", self.bridges[0], "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"],
            capture_output=True,
        )
        return done.returncode == 0

    def _start_relay(self, links):
        here = os.path.dirname(os.path.abspath(__file__))
        words = [f"{x.parent},{x.port},{x.child},{x.device},{x.delay}" for x in links]
        self.relay = subprocess.Popen([sys.executable, os.path.join(here, "netdelay.py"), *words],
                                      stdout=subprocess.PIPE, preexec_fn=die_with_parent, start_new_session=True)
        if self.relay.stdout.readline() != b"ready\n":
            raise BoxError(f"the relay that delays packets ended with exit code {self.relay.wait()}")

    def start(self, command, rank=None, host=None, variables=None, **popen):
        """Starts a command on a rank, or once on a host, with the variables of a launcher (those of
        torchrun) and `variables`. {rank}, {local_rank} and {host} in the command are replaced. Returns
        the Popen; the command is its process itself."""
        world = len(self.ranks)
        place = self.ranks[rank] if host is None else self.endpoints[host]
        known = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": self.ranks_per_host, "NODE_RANK": place.host,
                 "NNODES": self.hosts, "MASTER_ADDR": self.endpoints[0].address, "MASTER_PORT": 29500,
                 "GLOO_SOCKET_IFNAME": "eth0", "CLUSTER_RSH": self.rsh}
        local = None if rank is None else rank % self.ranks_per_host
        if rank is not None:
            known.update(RANK=rank, LOCAL_RANK=local)
        env = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK")}
        env.update({k: str(v) for k, v in {**known, **(variables or {})}.items()})
        for name, value in (("rank", rank), ("local_rank", local), ("host", place.host)):
            command = [word.replace("{" + name + "}", str(value)) for word in command]
        setup = f"hostname host{place.host} && mount --bind {self.folder}/hosts /etc/hosts"
        if self.private:
            own = os.path.join(self.folder, f"host{place.host}")
            os.makedirs(own, exist_ok=True)
            os.makedirs(self.private, exist_ok=True)
            setup += f" && mount --bind '{own}' '{self.private}'"
        return subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                place.namespace,
                "unshare",
                "--uts",
                "sh",
                "-c",
                setup + ' && exec "$@"',
                "sh",
                *command,
            ],
            env=env,
            preexec_fn=die_with_parent,
            start_new_session=True,
            **popen,
        )

    def kill_host(self, host):
        kill_in({e.namespace for e in self.endpoints if e.host == host})

    def cut(self, host):
        """Takes the link of a host down: its packets are silently lost from now on."""
        link = self.uplinks[host]
        run("ip", "-n", link.parent, "link", "set", link.port, "down")

    def kill_all(self):
        kill_in({e.namespace for e in self.endpoints})
