#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
"""`hocket batch` and `hocket generate`: what makes another job, options and fields of rows, flags of vLLM's server."""
import json
import os
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import cli_util  # noqa: E402

TEMPLATE = "{%% for m in messages %%}{{ m.content }}%s{%% endfor %%}"


class BatchOptions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.box = cli_util.Sandbox(cls.folder.name)
        cls.box.prepare()
        cls.box.train()
        cls.box.good("checkpoint", "import", "runs/quickstart", "--out", "hf")
        for name in "ab":
            cls.write(f"{name}.jinja", TEMPLATE % name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def write(cls, name, text):
        with open(cls.box.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def rows(self, name, *rows):
        self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def batch(self, rows, out, *words, model="runs/quickstart"):
        return self.box.run("batch", model, "--input", rows, "--out", out, "--max-num-seqs", "4", "--ignore-eos", *words)

    def lines(self, name):
        with open(self.box.path(name), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def answers(self, rows, out, *words):
        ran = self.batch(rows, out, *words)
        self.assertEqual(0, ran.returncode, ran.stderr)
        self.assertNotIn("0 ns left", ran.stderr)
        self.assertEqual([], self.lines(out + "/errors.jsonl"))
        return self.lines(out + "/output.jsonl"), ran.stderr

    def test_another_template_window_or_weight_is_another_job(self):
        self.rows("chats.jsonl", {"messages": [{"role": "user", "content": "int"}]})
        words = ["--chat-template", "a.jinja", "--max-model-len", "100", "--max-new-tokens", "2"]

        def ran(model="hf", **changed):
            given = [changed.get(word, word) for word in words]
            return self.batch("chats.jsonl", "job", *given, model=model)

        self.assertEqual(0, ran().returncode)
        again = ran()
        self.assertEqual(0, again.returncode, again.stderr)
        for changed, part in (({"a.jinja": "b.jinja"}, "chat_template"), ({"100": "90"}, '"max_model_len":100'),
                              ({"2": "3"}, '"max_tokens":2')):
            refused = ran(**changed)
            self.assertEqual(2, refused.returncode, changed)
            self.assertIn("a job with other settings", refused.stderr)
            self.assertIn(part, refused.stderr)
            self.assertNotIn("fingerprint", refused.stderr)
        path = self.box.path("hf/model.safetensors")
        size = os.path.getsize(path)
        shutil.copy(path, self.box.path("kept"))
        with open(path, "r+b") as f:
            f.seek(size // 2)
            byte = f.read(1)[0]
            f.seek(size // 2)
            f.write(bytes([byte ^ 1]))
        try:
            refused = ran()
            self.assertEqual(2, refused.returncode)
            self.assertIn('other settings: {"fingerprint"', refused.stderr)
        finally:
            shutil.move(self.box.path("kept"), path)

    def test_options_are_defaults_of_bodies(self):
        body = {"prompt": "int x"}
        self.rows("bodies.jsonl", *({"custom_id": i, "method": "POST", "url": "/v1/completions", "body": dict(body, **more)}
                                    for i, more in enumerate(({}, {"max_tokens": 5}, {"n": 1}))))
        rows, log = self.answers("bodies.jsonl", "bodies", "--temperature", "0", "--max-new-tokens", "3", "--samples", "2")
        self.assertEqual([0, 1, 2], [row["custom_id"] for row in rows])
        bodies = [row["response"]["body"] for row in rows]
        self.assertEqual([6, 10, 3], [b["usage"]["completion_tokens"] for b in bodies])
        self.assertEqual([2, 2, 1], [len(b["choices"]) for b in bodies])
        self.assertEqual(1, len({choice["text"] for choice in bodies[0]["choices"]}))  # temperature 0
        self.assertNotIn("custom_id", log)

    def test_fields_beside_a_prompt_and_repeated_ids(self):
        self.rows("fields.jsonl", {"prompt": "int", "max_tokens": 3, "temperature": 0, "custom_id": 7, "label": "x"},
                  {"prompt": "int", "custom_id": 7}, {"prompt": "int", "n": 2, "custom_id": "7"})
        rows, log = self.answers("fields.jsonl", "fields", "--max-new-tokens", "4", "--logprobs", "1")
        self.assertEqual([7, 7, "7"], [row["custom_id"] for row in rows])
        self.assertEqual([3, 4], [row["tokens"] for row in rows[:2]])
        self.assertEqual(2, len(rows[2]["samples"]))
        self.assertEqual(3, len(rows[0]["token_logprobs"]))
        self.assertIn("a row has a custom_id that an earlier row has; the first one is '7', in line 2", log)
        texts = [json.loads(line) for line in self.box.good(
            "generate", "runs/quickstart", "--prompts", "fields.jsonl", "--max-new-tokens", "4", "--ignore-eos", "--json").splitlines()]
        self.assertEqual([3, 4, 4, 4], [len(text["token_ids"]) for text in texts])
        self.assertEqual(rows[0]["text"], texts[0]["text"])
        self.rows("wrong.jsonl", {"prompt": "int", "response_format": {"type": "json_object"}})
        ran = self.box.run("generate", "runs/quickstart", "--prompts", "wrong.jsonl")
        self.assertEqual(2, ran.returncode)
        self.assertIn("[wrong.jsonl:1] response_format has no meaning beside a prompt's text", ran.stderr)
        self.assertEqual(0, self.batch("wrong.jsonl", "wrong").returncode)
        self.assertIn("response_format", self.lines("wrong/errors.jsonl")[0]["error"]["message"])

    def test_generate_keeps_to_the_window(self):
        ran = self.box.run("generate", "runs/quickstart", "--prompt", "int", "--max-new-tokens", "500")
        self.assertEqual(2, ran.returncode)
        self.assertRegex(ran.stderr, r"prompt 1 has \d tokens, and 500 more are to come; expected at most 128 together")
        ran = self.box.run("generate", "runs/quickstart", "--prompt", "int", "--ignore-eos", "--json")
        self.assertEqual(0, ran.returncode, ran.stderr)
        self.assertIn("as the model's window of 128 tokens lets it", ran.stderr)
        text = json.loads(ran.stdout)
        self.assertEqual(128, text["prompt_tokens"] + len(text["token_ids"]))

    def test_flags_of_vllms_server(self):
        def words(*flags):
            # The last flag is wrong, so that no server starts: an error about it means that the others are accepted.
            ran = self.box.run("serve", *flags, "--tool-call-parser", "nothing")
            self.assertEqual(2, ran.returncode)
            return ran.stderr

        for flags in (["--enable-prefix-caching", "--trust-remote-code", "--disable-log-requests", "--enable-auto-tool-choice"],
                      ["--max-model-len", "8k"], ["--served-model-name", "a", "b"], ["--generation-config", "vllm"],
                      *(["--dtype", dtype] for dtype in ("auto", "bfloat16", "float16", "float32"))):
            self.assertIn("--tool-call-parser is 'nothing'", words("runs/quickstart", *flags), flags)
            self.assertIn("--tool-call-parser is 'nothing'", words(*flags, "--model", "runs/quickstart"), flags)
        for flag, ours in (("--tensor-parallel-size", "--set plan.tp=N"), ("--gpu-memory-utilization", "--kv-cache-memory"),
                           ("--seed", "the field seed"), ("--override-generation-config", "the fields of a request")):
            error = words("runs/quickstart", flag, "2")
            self.assertIn(f"{flag} is a flag of vLLM; the same here: {ours}", error)
            self.assertNotIn("did you mean", error)
        page = self.box.good("serve", "--print-fields")
        self.assertTrue(re.search(r"^\| `-tp` \| --set plan.tp=N \|$", page, flags=re.M))


if __name__ == "__main__":
    unittest.main()
