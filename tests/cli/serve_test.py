#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
"""`hocket serve` with a tiny trained model, over its port: streams, log-probabilities, metrics, refusals, stopping."""
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import cli_util


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.box = cli_util.Sandbox(cls.folder.name)
        cls.box.prepare()
        cls.box.train()
        cls.log = open(os.path.join(cls.folder.name, "serve.log"), "w+", encoding="utf-8")
        cls.server = subprocess.Popen(
            [cli_util.HOCKET, "serve", "runs/quickstart", "--port", "0", "--served-model-name", "tiny", "--max-num-seqs", "4"],
            cwd=cls.folder.name, env=cls.box.environment(), stdout=cls.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while True:
            with open(cls.log.name, encoding="utf-8") as f:
                text = f.read()
            found = re.search(r"serving tiny at (http://127\.0\.0\.1:\d+)", text)
            if found:
                break
            if cls.server.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the server did not start:\n{text}")
            time.sleep(0.05)
        cls.url = found.group(1)

    @classmethod
    def tearDownClass(cls):
        if cls.server.poll() is None:
            cls.server.kill()
        cls.server.wait()
        cls.log.close()
        cls.folder.cleanup()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def post(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def refused(self, status, path, **body):
        with self.assertRaises(urllib.error.HTTPError) as raised:
            self.post(path, **body)
        self.assertEqual(status, raised.exception.code)
        return json.loads(raised.exception.read())["error"]

    def test_a_seed_is_a_text_in_any_batch_and_as_a_stream(self):
        body = {"prompt": "template <", "max_tokens": 12, "seed": 5, "temperature": 0.8}
        alone = json.loads(self.post("/v1/completions", **body))["choices"][0]["text"]
        both = json.loads(self.post("/v1/completions", **dict(body, prompt=["int", "template <"])))
        self.assertEqual(alone, both["choices"][1]["text"])
        events = self.post("/v1/completions", **dict(body, stream=True)).split("\n\n")
        self.assertEqual("data: [DONE]", events[-2])
        self.assertEqual(alone, "".join(json.loads(e[6:])["choices"][0]["text"] for e in events[:-2]))

    def test_log_probabilities_of_a_prompt(self):
        ids = json.loads(self.post("/tokenize", prompt="int main"))["tokens"]
        choice = json.loads(self.post("/v1/completions", prompt=ids, echo=True, logprobs=2, max_tokens=1))["choices"][0]
        values = choice["logprobs"]["token_logprobs"]
        self.assertEqual(len(ids) + 1, len(values))
        self.assertIsNone(values[0])
        self.assertTrue(all(v < 0 for v in values[1:]))
        for value, top in list(zip(values, choice["logprobs"]["top_logprobs"]))[1:]:
            self.assertIn(value, top.values())

    def test_json_is_valid_or_its_beginning(self):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
        choice = json.loads(self.post("/v1/completions", prompt="x", max_tokens=60, seed=1, structured_outputs={"json": schema}))["choices"][0]
        if choice["finish_reason"] == "stop":
            self.assertEqual(["a"], list(json.loads(choice["text"])))
        else:
            self.assertRegex(choice["text"], r"^\s*\{")

    def test_min_tokens_beyond_a_complete_value(self):
        for temperature in 0, 1:
            choice = json.loads(self.post("/v1/completions", prompt="x", max_tokens=60, min_tokens=40, temperature=temperature,
                                          structured_outputs={"json": {"const": 12}}))["choices"][0]
            self.assertEqual(("12", "stop"), (choice["text"], choice["finish_reason"]))
        self.assertIn("ok", self.get("/health"))

    def test_a_batch_makes_calls_that_a_row_demands(self):
        with open(self.box.path("chat.jinja"), "w", encoding="utf-8") as f:
            f.write("{% if tools %}{{ tools[0].function.name }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}")
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"const": 1}},
                                                                             "required": ["a"]}}}
        with open(self.box.path("calls.jsonl"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"custom_id": "c", "url": "/v1/chat/completions", "body": {
                "messages": [{"role": "user", "content": "int"}], "tools": [tool], "tool_choice": "required",
                "parallel_tool_calls": False, "max_tokens": 100}}) + "\n")
        ran = self.box.run("batch", "runs/quickstart", "--input", "calls.jsonl", "--out", "calls", "--chat-template", "chat.jinja",
                           "--max-model-len", "200")
        self.assertEqual(0, ran.returncode, ran.stderr)
        self.assertIn("--max-model-len has 200 tokens, but the model's max_position_embeddings is 128", ran.stderr)
        with open(self.box.path("calls/output.jsonl"), encoding="utf-8") as f:
            [row] = [json.loads(line) for line in f]
        self.assertEqual(200, row["response"]["status_code"])
        choice = row["response"]["body"]["choices"][0]
        if choice["finish_reason"] != "length":  # the model may write many blanks
            [call] = choice["message"]["tool_calls"]
            self.assertEqual(("f", {"a": 1}), (call["function"]["name"], json.loads(call["function"]["arguments"])))

    def test_refusals_and_metrics(self):
        self.assertEqual("suffix", self.refused(400, "/v1/completions", prompt="x", suffix="y")["param"])
        self.assertEqual("model_not_found", self.refused(404, "/v1/completions", prompt="x", model="y")["code"])
        self.assertEqual("context_length_exceeded", self.refused(400, "/v1/completions", prompt="x", max_tokens=9999)["code"])
        self.refused(404, "/v1/responses", input="x")
        self.assertEqual("tiny", json.loads(self.get("/v1/models"))["data"][0]["id"])
        self.post("/v1/completions", prompt="x", max_tokens=1)
        self.assertRegex(self.get("/metrics"), r'vllm:request_success_total\{engine="0",model_name="tiny",finished_reason="length"\} [1-9]')
        self.assertIn("<title>hocket chat</title>", self.get("/"))

    def test_z_a_signal_ends_it(self):
        self.server.send_signal(signal.SIGTERM)
        self.assertEqual(0, self.server.wait(timeout=60))
        with open(self.log.name, encoding="utf-8") as f:
            self.assertIn("stopping: 0 requests", f.read())


if __name__ == "__main__":
    unittest.main()
