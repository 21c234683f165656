#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the real rates and round trips of links; run on every rank by `tools/cluster --measure`.

Rank 0 asks one rank after the other to measure its link to each of the others, then all to send to their next at once.
It prints one JSON line: {"pairs": [{from, to, mbit, rtt_us}], "together": [{from, to, mbit}]}.

A rate is TCP payload at the receiver. It counts after the first fifth of the time, to leave out the start of a
connection and the content of queues. A round trip is the median of 100 of 1 byte."""
import json
import os
import socket
import statistics
import struct
import sys
import threading
import time

PORT = 29400
BLOCK = bytes(1 << 18)
ROUND_TRIPS = 100


def read_exact(sock, count):
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("the other side ended early")
        data += more
    return data


def connect(address, mode):
    """Returns a connection to the server of a rank, which may not be there yet."""
    end = time.monotonic() + 20
    while True:
        try:
            sock = socket.create_connection((address, PORT + int(mode[1:])), timeout=20)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(mode[:1].encode())
    return sock


def sink(sock, seconds):
    """Reads to the end; answers with the rate in bit/s after the first fifth of `seconds`."""
    buffer = bytearray(1 << 18)
    first = sock.recv_into(buffer)
    began = time.monotonic()
    total, start, last = 0, None, began
    while first:
        count = sock.recv_into(buffer)
        now = time.monotonic()
        if not count:
            break
        if start is None and now - began >= seconds / 5:
            start = now
        elif start is not None:
            total, last = total + count, now
    rate = total * 8 / (last - start) if start is not None and last > start else 0.0
    sock.sendall(struct.pack("d", rate))


def serve(sock, seconds, addresses):
    """Serves one connection: echo, sink, or an order of rank 0."""
    mode = read_exact(sock, 1)
    if mode == b"e":
        for _ in range(ROUND_TRIPS):
            sock.sendall(read_exact(sock, 1))
    elif mode == b"s":
        sink(sock, seconds)
    elif mode == b"o":
        to, with_trips = struct.unpack("ii", read_exact(sock, 8))
        sock.sendall(struct.pack("dd", *measure(addresses, to, seconds, with_trips)))
    sock.close()


def measure(addresses, to, seconds, with_trips):
    """Returns (bit/s, seconds of a round trip) from here to a rank."""
    trip = 0.0
    if with_trips:
        with connect(addresses[to], f"e{to}") as sock:
            times = []
            for _ in range(ROUND_TRIPS):
                began = time.perf_counter()
                sock.sendall(b"x")
                read_exact(sock, 1)
                times.append(time.perf_counter() - began)
            trip = statistics.median(times)
    with connect(addresses[to], f"s{to}") as sock:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sock.sendall(BLOCK)
        sock.shutdown(socket.SHUT_WR)
        rate = struct.unpack("d", read_exact(sock, 8))[0]
    return rate, trip


def order(addresses, source, to, with_trips):
    """Orders `source` to measure its link to `to`."""
    with connect(addresses[source], f"o{source}") as sock:
        sock.sendall(struct.pack("ii", to, with_trips))
        rate, trip = struct.unpack("dd", read_exact(sock, 16))
    row = {"from": source, "to": to, "mbit": round(rate / 1e6, 2)}
    if with_trips:
        row["rtt_us"] = round(trip * 1e6, 1)
    return row


def all_together(addresses):
    rows = [None] * len(addresses)

    def one(i):
        rows[i] = order(addresses, i, (i + 1) % len(addresses), False)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(addresses))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return rows


def main():
    addresses, seconds = sys.argv[1].split(","), float(sys.argv[2])
    rank = int(os.environ["RANK"])
    server = socket.create_server((addresses[rank], PORT + rank), backlog=64)

    def accept():
        while True:
            sock = server.accept()[0]
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(sock, seconds, addresses), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    if rank != 0:
        sys.stdin.read()  # until everything is measured
        return
    n = len(addresses)
    pairs = [order(addresses, i, j, True) for i in range(n) for j in range(n) if i != j]
    print(json.dumps({"pairs": pairs, "together": all_together(addresses)}), flush=True)


if __name__ == "__main__":
    main()
