#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts `hocket serve` with a tiny model under load and faults, as long as wanted.

    bench/serve_soak.py --minutes 30
    bench/serve_soak.py --requests 300 --hocket build-asan/hocket --sanitized
    bench/serve_soak.py --minutes 5 --model FOLDER

Clients of tests/serve/load_util.py come 32 at a time: some read their answers, some vanish before or in the body, while
they wait, in the prefill or in the stream, some read or write slowly, some send malformed JSON, HTTP or UTF-8, or
10 MB.
At the end floods come, beyond the queue and beyond the streams. Prints a line per round, with memory, files and
threads, then how clients ended. Exits with 1 after a fault: an answer that is neither whole nor an error of OpenAI's
form, a server that ends, texts or pages in use that do not come to 0, memory, files or threads that grow."""
import argparse
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/serve"), str(ROOT / "tests/cli")]
import cli_util  # noqa: E402
import load_util  # noqa: E402

FLAGS = ["--max-num-seqs", "8", "--max-waiting", "24", "--max-streams", "28", "--kv-cache-memory", "2MiB",
         "--max-num-batched-tokens", "64",
         "--disable-access-log"]
GROWTH_MIB = 24  # allowed between a round after the warm-up and the last one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="in place of --requests")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-a-time", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10, help="of which the first third warms up")
    parser.add_argument("--seed", default=str(int(time.time())))
    parser.add_argument("--hocket", default=cli_util.HOCKET)
    parser.add_argument("--model", help="in place of a tiny one that is trained first")
    parser.add_argument("--sanitized", action="store_true", help="do not judge memory")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            box = cli_util.Sandbox(folder)
            box.prepare()
            box.train()
            model = "runs/quickstart"
        with load_util.Server(os.path.abspath(options.hocket), model, folder, FLAGS) as server:
            base = load_util.warm_up(server)
            print(f"start: {base}; {server.pages} pages", flush=True)
            ends, uses = load_util.collections.Counter(), []
            for number in range(options.rounds):
                began = time.monotonic()
                came, wrong = load_util.load(server, f"{options.seed} {number}", options.requests // options.rounds,
                                             options.at_a_time,
                                             options.minutes and options.minutes * 60 / options.rounds)
                ends += came
                faults += wrong
                for fault in wrong[:20]:
                    print(f"FAULT {fault}", flush=True)
                if server.process.poll() is not None:
                    break
                left = server.wait_idle()
                if left:
                    faults.append(f"round {number}: {left}")
                    print(f"FAULT {faults[-1]}", flush=True)
                time.sleep(5.5)  # idle connections are closed after 5 s
                uses.append(server.use())
                took = time.monotonic() - began
                print(f"round {number}: {came.total()} clients in {took:.1f} s, {len(wrong)} faults; " +
                      ", ".join(f"{k} {v:.0f}" for k, v in uses[-1].items()), flush=True)
            if server.process.poll() is None:
                for requests in (26, 300):
                    statuses, wrong = load_util.flood(server, requests)
                    print(f"flood of {requests}: {dict(statuses)}", flush=True)
                    faults += wrong
                    for fault in wrong[:5]:
                        print(f"FAULT {fault}", flush=True)
                left = server.wait_idle()
                time.sleep(5.5)
                uses.append(server.use())
                print(f"end: {uses[-1]}", flush=True)
                warm, last = uses[options.rounds // 3], uses[-1]
                for key, most in (("rss", warm["rss"] + GROWTH_MIB), ("files", base["files"]),
                                  ("threads", base["threads"])):
                    if last[key] > most and not (key == "rss" and options.sanitized):
                        faults.append(f"{key} at the end: {last[key]:.0f}; expected at most {most:.0f}")
                if left:
                    faults.append(f"at the end: {left}")
                server.process.send_signal(15)
                code = server.process.wait(timeout=60)
                if code != 0:
                    faults.append(f"exit code {code} after SIGTERM:\n{server.log()[-6000:]}")
            else:
                print(server.log()[-6000:])
    for ended, count in sorted(ends.items()):
        print(f"{count:7} {ended}")
    print(f"{ends.total()} clients, {len(faults)} faults")
    for fault in faults[-3:]:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
