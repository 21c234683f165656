#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Delays the packets of links where the kernel has no netem: netdelay.py PARENT,PORT,CHILD,DEVICE,SECONDS ...

Each argument is a link: it gets a tap device PORT in the namespace PARENT and one, DEVICE, in CHILD. A packet that
leaves one device enters the other SECONDS later, in order. Large segments pass whole, with the header that says how to
cut them. Prints `ready` once all devices are there; ends when it is killed, and the devices with it. The delay is
reduced by the latency of this process itself, about 40 us."""
import collections
import ctypes
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x2, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x1, 0x2
CLONE_NEWNET = 0x40000000
PR_SET_TIMERSLACK = 29
LARGEST = 70000  # bytes of a frame and its header
OWN = 40e-6  # seconds: this process's own latency, measured
LIBC = ctypes.CDLL(None, use_errno=True)


def enter(namespace):
    """Moves this process into a network namespace, given as an open file."""
    if LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        sys.exit(f"netdelay.py: setns to {namespace.name}: {os.strerror(ctypes.get_errno())}")


def open_tap(namespace, name):
    """Moves this process into a namespace, and returns a new tap device there."""
    with open(f"/run/netns/{namespace}") as f:
        enter(f)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return fd


class Way:
    """One direction of a link: a queue of frames, the first due first."""

    def __init__(self, source, target, delay):
        self.source, self.target, self.delay = source, target, max(0.0, delay - OWN)
        self.waiting = collections.deque()

    def take(self):
        """Queues arrived frames, a few at most, so that all links have their turn."""
        for _ in range(16):
            try:
                frame = os.read(self.source, LARGEST)
            except (BlockingIOError, OSError):
                return
            self.waiting.append((time.monotonic() + self.delay, frame))

    def give(self, now):
        """Sends the frames that are due; a device that is down or full loses them, as a wire would."""
        while self.waiting and self.waiting[0][0] <= now:
            try:
                os.write(self.target, self.waiting.popleft()[1])
            except OSError:
                pass


def main():
    home = open("/proc/self/ns/net")
    ways = {}
    for word in sys.argv[1:]:
        parent, port, child, device, delay = word.split(",")
        a, b = open_tap(parent, port), open_tap(child, device)
        ways[a], ways[b] = Way(a, b, float(delay)), Way(b, a, float(delay))
    enter(home)  # outside the hosts' namespaces, so that killing their processes spares this one
    LIBC.prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # wake on time, not 50 us later
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # a link does not wait for ranks that compute
    print("ready", flush=True)
    sources = list(ways)
    while True:
        due = min((w.waiting[0][0] for w in ways.values() if w.waiting), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        # select has a timeout in microseconds, poll in milliseconds
        for fd in select.select(sources, [], [], wait)[0]:
            ways[fd].take()
        now = time.monotonic()
        for way in ways.values():
            way.give(now)


if __name__ == "__main__":
    main()
