#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""`hocket batch` with real workers: kill -9 of workers and master at random times loses, repeats and changes no row.

HOCKET_SEED draws other rows and times, HOCKET_KILLS sets how many."""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import cli_util  # noqa: E402

SEED = os.environ.get("HOCKET_SEED", "1")
KILLS = int(os.environ.get("HOCKET_KILLS", "6"))
ROWS = max(600, 100 * KILLS)
BAD = ['{"prompt": ', '{"prompt": 5}', '[1]', '{"custom_id": "c", "method": "POST", "url": "/v1/nothing", "body": {}}',
       json.dumps({"prompt": "int " * 500}),
       '{"custom_id": "d", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": -1}}',
       '"\\ud800"']


def make_rows(rng):
    """Returns lines, and the numbers of those that are wrong."""
    lines, wrong = [], set()
    for number in range(1, ROWS + 1):
        kind = rng.random()
        text = " ".join(rng.choices(["int", "x", "=", "return", "{", "}", "std", "template"], k=rng.randint(1, 12)))
        if kind < 0.05:
            lines.append(rng.choice(BAD))
            wrong.add(number)
        elif kind < 0.08:
            lines.append("")
        elif kind < 0.4:
            lines.append(json.dumps(text))
        elif kind < 0.7:
            lines.append(json.dumps({"prompt": text, "custom_id": f"row {number}"}))
        else:
            lines.append(json.dumps({"custom_id": f"row {number}", "method": "POST", "url": "/v1/completions", "body": {
                "prompt": text, "max_tokens": rng.randint(1, 40), "temperature": rng.choice([0, 1])}}))
    return lines, wrong


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False


def without_request_ids(path):
    """Returns the lines of an output without what OpenAI's answers draw anew: ids and times."""
    out = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            if "response" in row:
                row = {"custom_id": row["custom_id"], "status": row["response"]["status_code"],
                       "choices": row["response"]["body"]["choices"], "usage": row["response"]["body"]["usage"]}
                row["usage"].pop("prompt_tokens_details", None)
            out.append(row)
    return out


class BatchFaults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.box = cli_util.Sandbox(cls.folder.name)
        cls.box.prepare()
        cls.box.train()
        cls.rng = random.Random(SEED)
        lines, cls.wrong = make_rows(cls.rng)
        with open(cls.box.path("rows.jsonl"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        cls.blank = {number for number, line in enumerate(lines, 1) if not line}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def command(self, out):
        return [cli_util.HOCKET, "batch", "runs/quickstart", "--input", "rows.jsonl", "--out", out, "--workers", "2",
                "--max-num-seqs", "4",
                "--max-new-tokens", "40", "--shard-seconds", "0.5", "--seed", "3", "--max-losses", "1000",
                "--ignore-eos"]

    def start(self, out, log):
        return subprocess.Popen(self.command(out), cwd=self.folder.name, stdout=log, stderr=subprocess.STDOUT,
                                stdin=subprocess.DEVNULL)

    def test_kills_of_workers_and_master_change_nothing(self):
        begin = time.monotonic()
        done = subprocess.run(self.command("undisturbed"), cwd=self.folder.name, capture_output=True, text=True,
                              timeout=600, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        took = time.monotonic() - begin
        errors = without_request_ids(self.box.path("undisturbed/errors.jsonl"))
        self.assertEqual(sorted(self.wrong), [row["line"] for row in errors])
        outputs = without_request_ids(self.box.path("undisturbed/output.jsonl"))
        self.assertEqual(ROWS - len(self.wrong) - len(self.blank), len(outputs))

        killed = {"worker": 0, "master": 0}
        with open(self.box.path("disturbed.log"), "w+", encoding="utf-8") as log:
            master = self.start("disturbed", log)
            try:
                while sum(killed.values()) < KILLS:
                    time.sleep(self.rng.uniform(0, 1.5 * took / KILLS + 0.3))
                    self.assertIn(master.poll(), (None, 0))
                    if master.poll() == 0:
                        break
                    workers = cli_util.children(master.pid)
                    if self.rng.random() < 0.4:
                        killed["master"] += kill(master.pid)
                        self.assertEqual(-signal.SIGKILL, master.wait(timeout=30))
                        end = time.monotonic() + 30  # local workers end with their master
                        while any(os.path.exists(f"/proc/{pid}") for pid in workers):
                            self.assertLess(time.monotonic(), end, "workers outlive their master")
                            time.sleep(0.02)
                        master = self.start("disturbed", log)
                    elif workers:
                        killed["worker"] += kill(self.rng.choice(workers))
                self.assertEqual(0, master.wait(timeout=600))
            finally:
                if master.poll() is None:
                    master.kill()
                    master.wait()
        print(f"seed {SEED}: killed {killed}; {took:.1f} s undisturbed")
        self.assertGreater(sum(killed.values()), KILLS // 2)
        self.assertEqual(errors, without_request_ids(self.box.path("disturbed/errors.jsonl")))
        self.assertEqual(outputs, without_request_ids(self.box.path("disturbed/output.jsonl")))

    def test_generate_draws_samples_of_a_file(self):
        with open(self.box.path("prompts.jsonl"), "w", encoding="utf-8") as f:
            f.write('"int x"\n{"prompt": "return", "custom_id": 7}\n\n"std"\n')
        words = ("generate", "runs/quickstart", "--prompts", "prompts.jsonl", "--samples", "3", "--max-new-tokens",
                 "6", "--seed", "4", "--json",
                 "--ignore-eos")
        ran = self.box.run(*words)
        self.assertEqual(0, ran.returncode, ran.stderr)
        self.assertRegex(ran.stderr, r"9 texts, 54 tokens in [^:]*: [0-9.e+]+ tokens/s")
        texts = [json.loads(line) for line in ran.stdout.splitlines()]
        self.assertEqual([(prompt, sample) for prompt in ("int x", "return", "std") for sample in range(3)],
                         [(text["prompt"], text["sample"]) for text in texts])
        self.assertEqual(9, len({tuple(text["token_ids"]) for text in texts}))
        alone = [json.loads(line) for line in self.box.good(*words, "--batch", "1").splitlines()]
        self.assertEqual(texts, alone)


if __name__ == "__main__":
    unittest.main()
