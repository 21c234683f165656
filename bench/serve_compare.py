#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `hocket serve` with llama.cpp's server (package xllamacpp) on one model, alternating, two threads each.

Ours computes in f32; theirs has the model in F32, F16 and as it came (Q4_1), with its default KV cache (f16) and flash
attention. Both are warm, answer greedily, and get prompts of random token ids, so that no answer comes from a cache.
A round asks every server for everything, in an order that changes; results are medians over rounds of the values and
of the ratios ours / theirs of one round. Peaks of the machine are measured in every round: two-thread read bandwidth
(a loop of vector additions over 1 GB) and two-thread fp32 products (torch).

    serve_compare.py [--hocket PATH] [--rounds N] [--only ours,F32,F16,Q4_1] [--tests prefill,decode,streams,prefix]

Runs in the environment of tests/peers/llama_cpp/requirements.txt, with torch. Prints a table in Markdown; --json FILE
keeps every value."""
import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import smollm2  # noqa: E402

THREADS = 2
STREAMS = 16
PREFILLS = (512, 2048)
DECODED = 128
PREFIX, TAIL = 1000, 16
PARAMETERS = 134_515_008  # of SmolLM2-135M, whose head is the embedding: every token reads all of them
KV_VALUES = 30 * 2 * 3 * 64  # layers, keys and values, heads, width
IDS = range(1000, 40000)  # of plain text
READ = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
typedef float V __attribute__((vector_size(64)));
enum { kThreads = THREADS, kRounds = 6 };
static const long kBytes = 1L << 30;
static char* data;
static pthread_barrier_t both;
static volatile float sums[kThreads * 16];
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
static void* work(void* arg) {
  const long thread = (long)arg;
  const V* p = (const V*)(data + kBytes / kThreads * thread);
  for (int round = 0; round < kRounds; ++round) {
    pthread_barrier_wait(&both);
    const double begin = now();
    V s[8] = {};
    for (long i = 0; i < kBytes / kThreads / (long)sizeof(V); i += 8)
      for (int j = 0; j < 8; ++j) s[j] += p[i + j];
    for (int j = 1; j < 8; ++j) s[0] += s[j];
    sums[thread * 16] = s[0][0];
    pthread_barrier_wait(&both);
    if (thread == 0) printf("%g\n", kBytes / (now() - begin));
  }
  return 0;
}
int main(void) {
  data = aligned_alloc(1 << 21, kBytes);
  madvise(data, kBytes, MADV_HUGEPAGE);
  memset(data, 0, kBytes);
  pthread_barrier_init(&both, 0, kThreads);
  pthread_t threads[kThreads];
  for (long i = 0; i < kThreads; ++i) pthread_create(&threads[i], 0, work, (void*)i);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], 0);
}
"""
PRODUCT = """
import time, torch
torch.set_num_threads(THREADS)
a, b = torch.rand(2048, 2048), torch.rand(2048, 2048)
for _ in range(6):
    begin = time.perf_counter()
    a @ b
    print(2 * 2048 ** 3 / (time.perf_counter() - begin))
"""


def peaks(folder):
    """Returns the best of six measurements each: (bytes/s read, fp32 operations/s)."""
    program = os.path.join(folder, "read")
    if not os.path.exists(program):
        source = program + ".c"
        with open(source, "w", encoding="utf-8") as f:
            f.write(READ.replace("THREADS", str(THREADS)))
        subprocess.run(["cc", "-O2", "-march=native", "-pthread", "-o", program, source], check=True)
    read = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    product = subprocess.run([sys.executable, "-c", PRODUCT.replace("THREADS", str(THREADS))], capture_output=True,
                             text=True, check=True).stdout.split()
    return max(map(float, read)), max(map(float, product))


def other_load(seconds=1.0):
    """Returns the share of all cores that is in use while all servers wait."""
    def read():
        with open("/proc/stat", encoding="utf-8") as f:
            v = [int(x) for x in f.readline().split()[1:]]
        return sum(v) - v[3] - v[4], sum(v)

    a = read()
    time.sleep(seconds)
    b = read()
    return (b[0] - a[0]) / max(b[1] - a[1], 1)


def peer_main(path, context):
    """Runs llama.cpp's server on a file, prints its address, and waits for the end of standard input."""
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_gpu_layers = 0
    params.verbosity = 0
    params.n_parallel = STREAMS
    params.n_ctx = context * STREAMS
    params.cache_ram_mib = 0
    params.fit_params = params.warmup = False
    params.port = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    server = xllamacpp.Server(params)
    print("address", server.listening_address, flush=True)
    sys.stdin.read()


class Server:
    """A server in a process of its own, which prints its address."""

    def __init__(self, name, command, log, ours=False):
        self.name, self.ours = name, ours
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            log.write(line)
            if "http://" in line:
                self.host, self.port = line.split("http://")[1].split()[0].split("/")[0].split(":")
                break
        else:
            sys.exit(f"serve_compare.py: {name} ended with {self.process.wait()}; --folder keeps its log")
        threading.Thread(target=shutil.copyfileobj, args=(self.process.stdout, log), daemon=True).start()
        while True:
            with contextlib.suppress(OSError):
                if self.get("/health") == 200:
                    break
            time.sleep(0.1)

    def get(self, path):
        connection = http.client.HTTPConnection(self.host, int(self.port), timeout=600)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def stream(self, prompt, tokens, cache=False, on_piece=None):
        """Asks for `tokens` greedy tokens behind ids; returns the times of its pieces since the request was sent, and
        its usage."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        if not self.ours:
            body["cache_prompt"] = cache
        connection = http.client.HTTPConnection(self.host, int(self.port), timeout=600)
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"serve_compare.py: {self.name}: {answer.status} {answer.read()[:300]}")
        times, usage = [], None
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            piece = json.loads(line[6:])
            if "error" in piece:
                sys.exit(f"serve_compare.py: {self.name}: {piece['error']}")
            usage = piece.get("usage") or usage
            if piece["choices"] and (piece["choices"][0].get("finish_reason") is None or not times):
                times.append(time.perf_counter() - begin)
                if on_piece:
                    on_piece()
        if usage is None or usage["prompt_tokens"] != len(prompt) or usage["completion_tokens"] != tokens:
            sys.exit(f"serve_compare.py: {self.name}: usage {usage}; expected {len(prompt)} and {tokens} tokens")
        return times, time.perf_counter() - begin

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def start_ours(binary, path, log, *flags, name="ours"):
    return Server(name, [binary, "serve", path, "--port", "0", "--disable-access-log", *flags], log, ours=True)


def start_peer(name, path, log, context=2304):
    return Server(name, [sys.executable, os.path.abspath(__file__), "--peer", path, "--context", str(context)], log)


def ids(rng, count):
    return rng.choices(IDS, k=count)


def prefill(server, rng, results):
    for count in PREFILLS:
        _, seconds = server.stream(ids(rng, count), 1)
        results[f"prefill {count}, tokens/s"] = count / seconds


def decode(server, rng, results):
    times, _ = server.stream(ids(rng, 128), DECODED)
    # Pieces may hold several tokens, so that the tokens are counted, not the pieces.
    results["decode of one stream, tokens/s"] = (DECODED - 1) / (times[-1] - times[0])


def streams(server, rng, results):
    threads = [threading.Thread(target=server.stream, args=(ids(rng, 128), DECODED)) for _ in range(STREAMS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results[f"{STREAMS} streams, tokens in and out/s"] = STREAMS * (128 + DECODED) / (time.perf_counter() - begin)


def prefix(server, rng, results):
    shared = ids(rng, PREFIX)
    cold = server.stream(shared + ids(rng, TAIL), 1, cache=True)[1]
    warm = [server.stream(shared + ids(rng, TAIL), 1, cache=True)[1] for _ in range(3)]
    results["time to first token behind a shared prefix, warm / cold"] = statistics.median(warm) / cold


TESTS = {"prefill": prefill, "decode": decode, "streams": streams, "prefix": prefix}


def quartiles(values):
    if len(values) < 3:
        return f"{statistics.median(values):.3g}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def report(rounds, names):
    """Prints the medians of the values, and of the ratios of ours to theirs in one round."""
    tests = [key for key in rounds[0][names[0]]]
    others = [name for name in names if name != "ours"]
    print("| | " + " | ".join(names) + " | " + " | ".join(f"ours / {name}" for name in others) + " |")
    print("|" + "---|" * (1 + len(names) + len(others)))
    for test in tests:
        cells = [quartiles([one[name][test] for one in rounds]) for name in names]
        if "ours" in names:
            cells += [quartiles([one["ours"][test] / one[name][test] for one in rounds]) for name in others]
        print(f"| {test} | " + " | ".join(cells) + " |")
    read = [one["peaks"][0] for one in rounds]
    product = [one["peaks"][1] for one in rounds]
    print(f"\npeaks: {quartiles([x / 1e9 for x in read])} GB/s read, {quartiles([x / 1e9 for x in product])} GFLOP/s; "
          f"load of others {quartiles([one['load'] for one in rounds])} of all cores")
    if "ours" not in names:
        return
    decoded = "decode of one stream, tokens/s"
    if decoded in tests:
        size = 4 * (PARAMETERS + KV_VALUES * (128 + DECODED / 2))
        print(f"decode of one stream reads {size / 1e6:.0f} MB a token: "
              f"{quartiles([one['ours'][decoded] * size / one['peaks'][0] for one in rounds])} of the read bandwidth")
    for count in PREFILLS:
        test = f"prefill {count}, tokens/s"
        if test in tests:
            # Products of the layers, and attention to half of the tokens; the head runs for one token.
            work = 2 * (PARAMETERS - 49152 * 576) + 4 * 30 * 576 * count / 2
            print(f"prefill of {count} tokens: "
                  f"{quartiles([one['ours'][test] * work / one['peaks'][1] for one in rounds])} of the peak")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    parser.add_argument("--old", metavar="PATH", help="another hocket in the same rounds, as `old`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="ours,F32,F16,Q4_1")
    parser.add_argument("--tests", default=",".join(TESTS))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", metavar="DIR", help="for the converted files and the servers' log; they stay there")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--context", type=int, default=2304, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer_main(args.peer, args.context)
    model = smollm2.fetch()
    if model is None or shutil.which("cc") is None:
        return 2
    rng = random.Random(args.seed)
    rounds = []
    with contextlib.ExitStack() as stack:
        top = args.folder or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(top, exist_ok=True)
        log = stack.enter_context(open(os.path.join(top, "log"), "w", encoding="utf-8"))
        files = {"Q4_1": model}
        for kind in ("F32", "F16"):
            files[kind] = os.path.join(top, f"{kind}.gguf")
            if os.path.exists(files[kind]):
                continue
            subprocess.run([args.hocket, "checkpoint", "export", model, "--type", kind.lower(), "--out", files[kind]],
                           check=True, capture_output=True)
        servers = {}
        flags = ("--max-model-len", "2304", "--max-num-seqs", str(STREAMS))
        for name in args.only.split(","):
            servers[name] = (start_ours(args.hocket, files["F32"], log, *flags) if name == "ours" else
                             start_peer(name, files[name], log))
            stack.callback(servers[name].stop)
        if args.old:
            servers["old"] = start_ours(args.old, files["F32"], log, *flags, name="old")
            stack.callback(servers["old"].stop)
        for server in servers.values():
            server.stream(ids(rng, 64), 8)
        names = list(servers)
        for i in range(args.rounds):
            one = {"load": other_load(), "peaks": peaks(top), **{name: {} for name in names}}
            for test in args.tests.split(","):
                for name in names[i % len(names):] + names[:i % len(names)]:
                    before = set(one[name])
                    TESTS[test](servers[name], rng, one[name])
                    print(f"  {name}: " + "; ".join(f"{key} {value:.4g}" for key, value in one[name].items()
                                                    if key not in before), flush=True)
            rounds.append(one)
            print(f"round {i + 1} of {args.rounds}, load of others {one['load']:.2f}", flush=True)
            if args.json:
                with open(args.json, "w", encoding="utf-8") as f:
                    json.dump(rounds, f, indent=1)
        report(rounds, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
