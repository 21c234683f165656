#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what scoring beside generation saves: `hocket rl` with a judge behind HTTP that is as slow as the
generation.

    bench/judge_overlap.py --rounds 5

The judge is a server in this script with a few places: a sample occupies one for a fixed time, without CPU. In every
round a run with a judge that answers at once gives the seconds of generation, and so the time of a sample that makes
the judge alone take as long. Then two judges alternate, in whole processes: one scores samples as they come, the other
holds all of them until the last one of the step is there, and scores them then. Every sample is sent as soon as it
ends in both, and both give the same scores, so losses must be equal to the bit. The model is that of `hocket data task
reverse` with random weights, whose answers have different lengths. Seconds are medians over the steps of a process but
the first, ratios those of one round. Exit code 1 if the bar is missed: seconds from the first prompt to the last
score, after the batch / beside it, >= 1.5."""
import argparse
import http.server
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOCKET = str(pathlib.Path(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build")) / "hocket")
BAR = 1.5


class Judge(http.server.ThreadingHTTPServer):
    """Answers as an OpenAI server: the share of differing characters of the message's second line."""
    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, seconds, places, held):
        """held: samples of a step that are waited for before the first is scored; 0: none."""
        super().__init__(("127.0.0.1", 0), Answer)
        self.seconds, self.places, self.held = seconds, places, held
        self.free = threading.Semaphore(places)
        self.arrived, self.asked, self.whole = threading.Condition(), 0, 0

    def score(self, text):
        with self.arrived:
            self.asked += 1
            if self.held:
                step = (self.asked - 1) // self.held
                if self.asked % self.held == 0:
                    self.whole = step + 1
                    self.arrived.notify_all()
                self.arrived.wait_for(lambda: self.whole > step)
        with self.free:
            time.sleep(self.seconds)
        return len(set(text)) / max(len(text), 1)


class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = asked["messages"][-1]["content"].split("\n", 1)[1]
        said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"{self.server.score(text):.6f}"},
                             "finish_reason": "stop"}]}
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def write_run(args, folder):
    subprocess.run([HOCKET, "data", "task", "reverse", "--out", str(folder / "task"), "--train", "1024",
                    "--held-out", "8", "--warmup", "8"], check=True, stdout=subprocess.DEVNULL)
    task = folder / "task"
    config = {
        "objective": "rl", "model": {"config": json.loads((task / "config.json").read_text(encoding="utf-8"))},
        "data": {"tokenizer": str(task), "sources": [{"path": str(task / "train.jsonl")}], "valid_fraction": 0},
        "train": {"steps": args.steps, "seq_len": 256, "lr": 1e-5, "schedule": "constant", "warmup_steps": 0,
                  "eval_every": 0, "save_every": args.steps, "save_minutes": 0, "seed": 1},
        "plan": {"micro_batch": 4, "threads_per_rank": args.threads},
        "rl": {"prompts_per_step": args.prompts, "samples_per_prompt": args.samples, "max_new_tokens": args.tokens,
               "max_num_seqs": args.at_once,
               "rewards": [{"type": "http", "judge_model": "judge", "judge_prompt": "Rate this:\n{answer}",
                            "timeout_s": 3600, "retries": 0, "url": "to be given"}]},
        "output": {"report": False, "trace": False}}
    (folder / "run.json").write_text(json.dumps(config), encoding="utf-8")


def measure(folder, name, judge):
    """Trains with a judge. Returns median seconds of generation, of waiting after it and of the update, and losses."""
    server = threading.Thread(target=judge.serve_forever, daemon=True)
    server.start()
    config = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    config["rl"]["rewards"][0]["url"] = f"http://127.0.0.1:{judge.server_address[1]}"
    # Held answers keep a thread each.
    config["rl"]["reward_workers"] = judge.held or judge.places
    config["output"]["dir"] = str(folder / name)
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    done = subprocess.run([HOCKET, "rl", str(path)], capture_output=True, text=True, check=False)
    judge.shutdown()
    judge.server_close()
    if done.returncode != 0:
        sys.exit(f"judge_overlap.py: exit code {done.returncode}\n{done.stderr[-2000:]}")
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if any(row["rewards/failed"] for row in rows):
        sys.exit("judge_overlap.py: some samples were not scored")

    def middle(*keys):
        return statistics.median(sum(row[key] for key in keys) for row in rows[1:])
    return {"sampling": middle("timing_s/gen"), "wait": middle("timing_s/reward"),
            "update": middle("perf/step_s"), "scored": middle("timing_s/gen", "timing_s/reward"),
            "losses": [row["train/loss"] for row in rows],
            "length": statistics.fmean(row["completions/mean_length"] for row in rows)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--steps", type=int, default=5, help="of each process; the first is not timed")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--prompts", type=int, default=32, help="of a step")
    ap.add_argument("--samples", type=int, default=8, help="of a prompt")
    ap.add_argument("--tokens", type=int, default=48, help="most of a sample")
    ap.add_argument("--at-once", type=int, default=8, help="samples that are drawn at a time")
    ap.add_argument("--places", type=int, default=8, help="samples that the judge scores at a time")
    ap.add_argument("--json", type=pathlib.Path, help="file for every value")
    args = ap.parse_args()
    if args.steps < 2 or args.rounds < 1:
        ap.error("at least 2 steps and 1 round")
    count = args.prompts * args.samples
    with tempfile.TemporaryDirectory(prefix="judge-overlap.") as top:
        folder = pathlib.Path(top)
        write_run(args, folder)
        found, losses = {"alone": [], "beside": [], "after": []}, None
        for number in range(args.rounds):
            for side in ("alone", "beside", "after") if number % 2 == 0 else ("alone", "after", "beside"):
                seconds = found["alone"][-1]["sampling"] * args.places / count if side != "alone" else 0
                judge = Judge(seconds, args.places, count if side == "after" else 0)
                found[side].append(measure(folder, f"{side}-{number}", judge))
                losses = losses or found[side][-1]["losses"]
                if found[side][-1]["losses"] != losses:
                    sys.exit(f"judge_overlap.py: losses {side}: {found[side][-1]['losses']}; before: {losses}")
            alone, beside, after = (found[side][-1] for side in ("alone", "beside", "after"))
            print(f"round {number + 1}: generation alone {alone['sampling']:.2f} s a step, {alone['length']:.1f} "
                  f"tokens a sample; judge {1e3 * seconds:.1f} ms a sample; beside {beside['sampling']:.2f} + "
                  f"{beside['wait']:.2f} s; after {after['sampling']:.2f} + {after['wait']:.2f} s; ratio "
                  f"{after['scored'] / beside['scored']:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
    pairs = list(zip(found["after"], found["beside"]))
    scored = [after["scored"] / beside["scored"] for after, beside in pairs]
    whole = [(after["scored"] + after["update"]) / (beside["scored"] + beside["update"]) for after, beside in pairs]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def middle(side, key):
        return statistics.median(one[key] for one in found[side])
    print(f"\n{args.threads} threads, {args.prompts} × {args.samples} samples a step, {args.at_once} drawn at a time; "
          f"medians of {args.rounds} rounds of {args.steps} steps; losses equal\n")
    print("| judge | generation s | waiting s after it | both s | with the update s |\n|---|---|---|---|---|")
    for side, name in (("alone", "answers at once"), ("after", "after the batch"), ("beside", "beside generation")):
        print(f"| {name} | {middle(side, 'sampling'):.2f} | {middle(side, 'wait'):.2f} | "
              f"{middle(side, 'scored'):.2f} | {middle(side, 'scored') + middle(side, 'update'):.2f} |")
    print(f"| ratio (bar {BAR:g}) | | | {statistics.median(scored):.2f} ({min(scored):.2f} to {max(scored):.2f}) | "
          f"{statistics.median(whole):.2f} ({min(whole):.2f} to {max(whole):.2f}) |")
    summed = [2 * alone["sampling"] / beside["scored"] for alone, beside in zip(found["alone"], found["beside"])]
    print(f"\nGeneration alone + judge alone, over both beside one another: {statistics.median(summed):.2f} "
          f"({min(summed):.2f} to {max(summed):.2f})")
    return 0 if statistics.median(scored) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
