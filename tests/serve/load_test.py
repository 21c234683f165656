#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""`hocket serve` with a tiny model under load, faults and signals, and with ranks as processes that die or hang.

HOCKET_SEED draws other clients, HOCKET_LOAD sets how many."""
import json
import os
import signal
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "cli"), HERE]
import cli_util  # noqa: E402
import load_util  # noqa: E402

SEED = os.environ.get("HOCKET_SEED", "1")
CLIENTS = int(os.environ.get("HOCKET_LOAD", "300"))
TIMEOUT_S = 5  # plan.timeout_s
MOST_MIB = 250  # of six requests of 2 MB each, parsed at once: ten times that as JSON values
HAS_PROCESSES = os.path.exists(os.path.join(cli_util.BINARY_DIR, "libhocket_torch.so"))
SMALL = ("--max-num-seqs", "8", "--max-waiting", "24", "--max-streams", "28",
         "--kv-cache-memory", "144KiB", "--max-num-batched-tokens", "64")  # 12 pages: too few for 8 texts of a flood
# A request that takes a second or more with SLOW, where a step makes one token.
LONG = {"prompt": [[1 + i] for i in range(40)], "max_tokens": 120, "ignore_eos": True}
SLOW = ("--max-num-seqs", "1", "--max-num-batched-tokens", "1")


class Streams:
    """Clients in the background that ask again and again until an error; `errors` has each one's last answer."""

    def __init__(self, server, count, prompts=2):
        self.server, self.errors, self.ends = server, [""] * count, [0.0] * count
        self.body = dict(LONG, prompt=LONG["prompt"][:prompts])
        self.threads = [threading.Thread(target=self.ask, args=(number, number % 2 == 0), daemon=True)
                        for number in range(count)]
        for thread in self.threads:
            thread.start()

    def ask(self, number, streaming):
        try:
            while True:
                status, _, text = self.server.post("/v1/completions", stream=streaming, seed=number, **self.body)
                if status != 200 or '"error":' in text:
                    self.errors[number] = text
                    break
        except (OSError, load_util.http.client.HTTPException) as e:
            self.errors[number] = f"no answer: {type(e).__name__} {e}"
        self.ends[number] = time.monotonic()

    def join(self, seconds):
        end = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)


class Load(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.box = cli_util.Sandbox(cls.folder.name)
        cls.box.prepare()
        cls.box.train()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def serve(self, *words, launcher=()):
        return load_util.Server(cli_util.HOCKET, "runs/quickstart", self.folder.name, words, launcher,
                                self.box.environment())

    def wait_until(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_clients_of_every_kind(self):
        with self.serve(*SMALL) as server:
            base = load_util.warm_up(server)
            ends, faults = load_util.load(server, SEED, CLIENTS)
            print(f"seed {SEED}: {dict(ends)}")
            self.assertEqual([], faults)
            statuses, faults = load_util.flood(server, 150)
            print(f"flood: {dict(statuses)}")
            self.assertEqual([], faults)
            self.assertEqual({200, 429}, set(statuses))
            self.assertEqual({}, server.wait_idle())
            for _ in range(2):  # the second one finds the first one's pages
                self.assertEqual(200, server.post("/v1/completions", prompt=[5] * 70, max_tokens=1)[0])
            time.sleep(5.5)  # connections idle for 5 s are closed
            use = server.use()
            self.assertLessEqual(use["files"], base["files"])
            self.assertLessEqual(use["threads"], base["threads"])
            metrics = server.metrics()
            self.assertGreater(metrics["num_preemptions_total"], 0)
            self.assertGreater(metrics["prefix_cache_hits_total"], 0)
            self.assertGreater(metrics["hocket:memory_resident_bytes"], 0)
            self.assertLessEqual(metrics["hocket:memory_resident_bytes"], metrics["hocket:memory_planned_bytes"])
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(0, server.process.wait(timeout=60))

    def test_large_requests_take_little_memory(self):
        with self.serve("--max-model-len", "8192", "--max-num-seqs", "2", "--max-waiting", "64") as server:
            load_util.warm_up(server)
            before = server.use()["rss"]
            statuses = load_util.large_requests(server, 6)
            more = server.use()["peak"] - before
            print(f"large requests: {dict(statuses)}, {more:.0f} MiB more at the peak")
            self.assertLessEqual(set(statuses), {0, 429})
            self.assertLess(more, MOST_MIB)
            self.assertEqual({}, server.wait_idle())

    def test_a_signal_lets_requests_end_and_a_second_one_does_not(self):
        with self.serve(*SLOW, "--shutdown-timeout", "200") as server:
            answers = []
            clients = [threading.Thread(target=lambda s=s: answers.append(server.post("/v1/completions", stream=s,
                                                                                      **LONG))) for s in (True, False)]
            for client in clients:
                client.start()
            self.wait_until(lambda: server.metrics()["hocket:http_streams"] == 2)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("stopping: 2 requests", 10)
            status, _, text = server.post("/v1/completions", prompt="x")
            self.assertEqual(503, status)
            self.assertIn("the server is stopping", json.loads(text)["error"]["message"])
            self.assertEqual(503, server.get("/health")[0])
            for client in clients:
                client.join(250)
            self.assertEqual(0, server.process.wait(timeout=30))
            self.assertEqual([200, 200], [status for status, _, _ in answers])
            for _, headers, text in answers:
                whole = "text/event-stream" not in headers["Content-Type"]
                self.assertTrue(len(json.loads(text)["choices"]) == 40 if whole else text.endswith("data: [DONE]\n\n"),
                                text[-200:])
                self.assertNotIn('"error":', text)
        with self.serve(*SLOW) as server:
            clients = Streams(server, 2, prompts=40)
            self.wait_until(lambda: server.metrics()["hocket:http_streams"] == 2)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("stopping: 2 requests", 10)
            time.sleep(0.6)  # the same signal within 0.5 s is no second one
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(-signal.SIGTERM, server.process.wait(timeout=10))
            self.assertTrue(clients.join(10))

    def test_what_takes_too_long_is_cancelled(self):
        with self.serve(*SLOW, "--shutdown-timeout", "0.2") as server:
            clients = Streams(server, 2, prompts=40)
            self.wait_until(lambda: server.metrics()["hocket:http_streams"] == 2)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(0, server.process.wait(timeout=30))
            self.assertTrue(clients.join(10))
            for error in clients.errors:
                self.assertIn("the server is stopping", error)

    def lose(self, send, plan, names_rank=1, idle=False):
        """Sends a signal to a rank; all clients, and the log, name it, and the server ends."""
        words = ["--set", f"plan.timeout_s={TIMEOUT_S}"]
        for key in plan:
            words += ["--set", f"plan.{key}"]
        with self.serve(*words, launcher=("launch", "-n", "2", "--grace", "2")) as server:
            clients = Streams(server, 0 if idle else 8)
            if not idle:
                self.wait_until(lambda: server.metrics()["num_requests_running"] >= 8)
                time.sleep(0.3)
            began = time.monotonic()
            os.kill(server.pids[names_rank], send)
            limit = TIMEOUT_S + 8
            self.assertTrue(clients.join(limit), "a client waits for ever")
            for error in clients.errors:
                self.assertIn(f"rank {names_rank} ", error)
            try:
                code = server.process.wait(timeout=limit)
            finally:
                log = server.log()
            self.assertNotEqual(0, code)
            self.assertIn(f"rank {names_rank} ", log)
            took = max(clients.ends, default=time.monotonic()) - began
            print(f"{signal.Signals(send).name} {plan}: clients were told within {took:.2f} s, exit code {code}")
            self.assertLess(took, limit)

    @unittest.skipUnless(HAS_PROCESSES, "built without PyTorch: ranks are threads")
    def test_a_killed_rank_is_named_to_all_clients(self):
        for plan in (["tp=2"], ["dp=2"], ["pp=2"]):
            with self.subTest(plan):
                self.lose(signal.SIGKILL, plan)

    @unittest.skipUnless(HAS_PROCESSES, "built without PyTorch: ranks are threads")
    def test_a_stopped_rank_is_named_to_all_clients(self):
        self.lose(signal.SIGSTOP, ["tp=2"])

    @unittest.skipUnless(HAS_PROCESSES, "built without PyTorch: ranks are threads")
    def test_a_rank_that_is_lost_while_nobody_asks_ends_the_server(self):
        for send in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(send.name):
                self.lose(send, ["tp=2"], idle=True)

    @unittest.skipUnless(HAS_PROCESSES, "built without PyTorch: ranks are threads")
    def test_a_signal_to_all_ranks_lets_requests_end(self):
        with self.serve("--set", "plan.tp=2", launcher=("launch", "-n", "2")) as server:
            answers = []
            client = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", stream=True,
                                                                                **LONG)))
            client.start()
            self.wait_until(lambda: server.metrics()["num_requests_running"] > 0)
            server.process.send_signal(signal.SIGTERM)
            client.join(60)
            self.assertEqual(0, server.process.wait(timeout=30), server.log())
            self.assertEqual(200, answers[0][0])
            self.assertNotIn('"error":', answers[0][2])
            self.assertTrue(answers[0][2].endswith("data: [DONE]\n\n"))


if __name__ == "__main__":
    unittest.main()
