#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""The package `openai` uses every feature of `hocket serve`: on a model that recites, and on SmolLM2-135M-Instruct.

`./test peers openai` installs the package in .venv-peers/openai; without it, and without the model, tests are skipped."""
import asyncio
import concurrent.futures
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MODEL = ROOT / ".venv-peers/models/SmolLM2-135M-Instruct.Q4_1.gguf"
PYTHON = ROOT / ".venv-peers/openai/bin/python"
sys.path.insert(0, str(HERE))

if importlib.util.find_spec("openai") is None and PYTHON.exists() and not os.environ.get("HOCKET_PEER"):
    sys.exit(subprocess.run([PYTHON, *sys.argv], env={**os.environ, "HOCKET_PEER": "1"}, check=False).returncode)
HAVE = importlib.util.find_spec("openai") is not None
if HAVE:
    import openai
    import pydantic
import scripted  # noqa: E402
from served import Served  # noqa: E402

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
                                                    "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                   "required": ["city", "days"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {
    "name": "get_time", "strict": True,
    "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
                   "additionalProperties": False}}}
BERN, PARIS = {"city": "Bern \u00e0 \"x\"", "days": 3}, {"city": "P} ]ris", "days": 1}
RECITED = {
    "[plain]": "Good morning, how are you?",
    "[think]": "<think>Let me see what that is</think>\nIt is nothing.",
    "[hermes]": f"Sure.\n<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': BERN})}\n</tool_call>",
    "[two]": f"Both:\n<tool_call> {json.dumps({'arguments': PARIS, 'name': 'get_weather'})}\t</tool_call>"
             f" <tool_call>\r\n{json.dumps({'name': 'get_time', 'arguments': {'zone': 'UTC'}}, indent=1)}</tool_call>  \n",
    "[llama]": json.dumps({"name": "get_weather", "parameters": BERN}),
    "[mistral]": "[TOOL_CALLS]" + json.dumps([{"name": "get_weather", "arguments": BERN}]),
    "[broken]": "A <tool_call> that is none.",
}


def client_of(server, **options):
    return openai.OpenAI(base_url=server.address + "/v1", api_key=options.pop("api_key", "none"),
                         max_retries=options.pop("max_retries", 0), **options)


def say(text):
    return [{"role": "user", "content": text}]


class Case(unittest.TestCase):
    server = client = None

    @classmethod
    def tearDownClass(cls):
        if cls.server is not None:
            cls.server.__exit__()

    def chat(self, messages, **options):
        return self.client.chat.completions.create(model="model", messages=messages, **options)

    def complete(self, prompt, **options):
        return self.client.completions.create(model="model", prompt=prompt, **options)

    def calls(self, message):
        return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


@unittest.skipUnless(HAVE, "no package openai; try ./test peers openai")
class Recited(Case):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.top.cleanup)
        scripted.write(cls.top.name, RECITED)
        cls.server = Served(cls.top.name, "--tool-call-parser", "hermes", "--reasoning-parser", "think").__enter__()
        cls.client = client_of(cls.server)

    def test_streams_begin_with_the_role(self):
        chunks = list(self.chat(say("[plain]"), stream=True, n=2))
        for index in (0, 1):
            deltas = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
            self.assertEqual((deltas[0].delta.role, deltas[0].delta.content, deltas[0].finish_reason), ("assistant", "", None))
            self.assertTrue(all(each.delta.role is None for each in deltas[1:]))
            self.assertEqual("".join(each.delta.content or "" for each in deltas), RECITED["[plain]"])
            self.assertEqual([each.finish_reason for each in deltas if each.finish_reason], ["stop"])
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)

    def test_reasoning(self):
        message = self.chat(say("[think]")).choices[0].message
        self.assertEqual((message.reasoning, message.content), ("Let me see what that is", "It is nothing."))
        reasoning, content = "", ""
        for chunk in self.chat(say("[think]"), stream=True):
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning", None) or ""
            content += delta.content or ""
        self.assertEqual((reasoning, content), ("Let me see what that is", "It is nothing."))
        message = self.chat(say("[think]"), extra_body={"include_reasoning": False}).choices[0].message
        self.assertEqual((getattr(message, "reasoning", None), message.content), (None, "It is nothing."))

    def streamed(self, **options):
        """Returns the message that the package's helper puts together from a stream, and why it ended."""
        with self.client.chat.completions.stream(model="model", **options) as stream:
            for _ in stream:
                pass
            choice = stream.get_final_completion().choices[0]
        return choice.message, choice.finish_reason

    def test_tool_calls(self):
        cases = {"[hermes]": ("Sure.", [("get_weather", BERN)]),
                 "[two]": ("Both:", [("get_weather", PARIS), ("get_time", {"zone": "UTC"})])}
        for title, (content, calls) in cases.items():
            with self.subTest(title):
                options = {"messages": say(title), "tools": [WEATHER, CLOCK], "tool_choice": "auto"}
                choice = self.chat(**options).choices[0]
                self.assertEqual((choice.message.content, self.calls(choice.message), choice.finish_reason),
                                 (content, calls, "tool_calls"))
                self.assertEqual(len({call.id for call in choice.message.tool_calls}), len(calls))
                message, finish = self.streamed(**options)
                self.assertEqual((message.content, self.calls(message), finish), (content, calls, "tool_calls"))
        one = self.chat(say("[two]"), tools=[WEATHER, CLOCK], parallel_tool_calls=False).choices[0].message
        self.assertEqual(self.calls(one), [("get_weather", PARIS)])
        none = self.chat(say("[hermes]"), tools=[WEATHER], tool_choice="none").choices[0]
        self.assertEqual((none.message.content, none.message.tool_calls, none.finish_reason),
                         (RECITED["[hermes]"], None, "stop"))
        broken = self.chat(say("[broken]"), tools=[WEATHER]).choices[0]
        self.assertEqual((broken.message.content, broken.finish_reason), (RECITED["[broken]"], "stop"))

    def test_tools_are_rendered(self):
        with_tools = self.chat(say("[plain]"), tools=[WEATHER, CLOCK], extra_body={"return_prompt_text": True})
        self.assertTrue(with_tools.prompt_text.startswith("get_weather\nget_time\n"))
        self.assertLess(self.chat(say("[plain]"), tools=[WEATHER], tool_choice="none").usage.prompt_tokens,
                        with_tools.usage.prompt_tokens)

    def test_an_answer_goes_on_after_the_results_of_calls(self):
        message = self.chat(say("[hermes]"), tools=[WEATHER]).choices[0].message
        history = say("[hermes]") + [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "[plain]"}]
        self.assertEqual(self.chat(history, tools=[WEATHER]).choices[0].message.content, RECITED["[plain]"])

    def test_the_helper_runs_pydantic_tools(self):
        class GetWeather(pydantic.BaseModel):
            city: str
            days: int
        tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
        made = self.client.chat.completions.parse(model="model", messages=say("[hermes]"), tools=[tool])
        self.assertEqual(made.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather(**BERN))

    def test_other_parsers(self):
        for parser, title in (("llama3_json", "[llama]"), ("mistral", "[mistral]")):
            with self.subTest(parser), Served(self.top.name, "--tool-call-parser", parser) as server:
                self.client = client_of(server)
                options = {"messages": say(title), "tools": [WEATHER]}
                choice = self.chat(**options).choices[0]
                self.assertEqual((self.calls(choice.message), choice.finish_reason), ([("get_weather", BERN)], "tool_calls"))
                self.assertFalse(choice.message.content)
                message, finish = self.streamed(**options)
                self.assertEqual((self.calls(message), finish), ([("get_weather", BERN)], "tool_calls"))
        self.client = client_of(self.server)

    def test_log_probabilities_have_every_token(self):
        made = self.complete("[plain]", max_tokens=64, logprobs=1)
        logprobs = made.choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), made.usage.completion_tokens)
        self.assertEqual(logprobs.tokens[-1], scripted.END)
        self.assertEqual("".join(logprobs.tokens[:-1]), RECITED["[plain]"])
        self.assertLess(max(map(abs, logprobs.token_logprobs)), 1e-6)


@unittest.skipUnless(HAVE, "no package openai; try ./test peers openai")
class Access(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.top.cleanup)
        scripted.write(cls.top.name, RECITED)

    def test_keys(self):
        with Served(self.top.name, "--api-key", "secret") as server:
            with self.assertRaises(openai.AuthenticationError) as caught:
                client_of(server, api_key="other").models.list()
            self.assertEqual((caught.exception.status_code, caught.exception.code), (401, "invalid_api_key"))
            self.assertEqual(client_of(server, api_key="secret").models.list().data[0].id, "model")
            self.assertEqual(server.ask("/health")[0], 200)
            self.assertEqual(server.ask("/tokenize", {"prompt": "a"})[0], 401)
            self.assertNotIn("secret", server.log())

    def test_floods_are_refused_and_come_again(self):
        def one(server, retries):
            client = client_of(server, max_retries=retries)
            try:
                made = client.completions.create(model="model", prompt="a", max_tokens=200, logit_bias={"65": 100},
                                                 extra_body={"ignore_eos": True})
                return made.usage.completion_tokens
            except openai.RateLimitError as error:
                self.assertEqual(error.code, "rate_limit_exceeded")
                self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
                return None
        with Served(self.top.name, "--max-streams", 2, "--max-num-seqs", 1) as server:
            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                made = list(pool.map(lambda _: one(server, 0), range(24)))
                self.assertEqual(set(made), {200, None})
                self.assertGreaterEqual(made.count(200), 2)
                self.assertEqual(set(pool.map(lambda _: one(server, 60), range(12))), {200})

    def test_a_stream_is_cancelled(self):
        with Served(self.top.name) as server:
            client = client_of(server)
            stream = client.completions.create(model="model", prompt="a", max_tokens=500, stream=True,
                                               logit_bias={"65": 100}, extra_body={"ignore_eos": True})
            for _ in range(3):
                next(stream)
            self.assertEqual(server.metric("vllm:num_requests_running"), 1)
            stream.close()
            until = time.time() + 10
            while server.metric("vllm:num_requests_running") and time.time() < until:
                time.sleep(0.05)
            self.assertEqual(server.metric("vllm:num_requests_running"), 0)
            self.assertEqual(server.metric("vllm:request_success_total", finished_reason="abort"), 1)
            self.assertLess(server.metric("vllm:generation_tokens_total"), 500)

    def test_time_limits_are_the_clients(self):
        with Served(self.top.name) as server, self.assertRaises(openai.APITimeoutError):
            client_of(server, timeout=0.05).completions.create(model="model", prompt="a", max_tokens=500,
                                                               logit_bias={"65": 100}, extra_body={"ignore_eos": True})


@unittest.skipUnless(HAVE and MODEL.exists(), "no package openai or no SmolLM2; try ./test peers 'openai|llama_cpp'")
class SmolLM2(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Served(MODEL).__enter__()
        cls.client = client_of(cls.server)

    def test_models(self):
        models = self.client.models.list()
        self.assertEqual([(model.id, model.object, model.max_model_len) for model in models], [("model", "model", 8192)])
        self.assertEqual(self.client.models.retrieve("model").id, "model")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_prompts_of_every_form(self):
        text = "The capital of France is"
        ids = json.loads(self.server.ask("/tokenize", {"prompt": text})[1])["tokens"]
        want = self.complete(text, max_tokens=6, temperature=0)
        self.assertIn("Paris", want.choices[0].text)
        self.assertEqual((want.usage.prompt_tokens, want.usage.completion_tokens), (len(ids), 6))
        for prompt, count in ((ids, 1), ([text], 1), ([text, "1, 2, 3,"], 2), ([ids, [1, 2]], 2)):
            with self.subTest(prompt=prompt):
                made = self.complete(prompt, max_tokens=6, temperature=0)
                self.assertEqual([choice.index for choice in made.choices], list(range(count)))
                self.assertEqual(made.choices[0].text, want.choices[0].text)

    def test_texts_of_one_prompt_differ_and_seeds_repeat_them(self):
        options = {"max_tokens": 12, "n": 3, "temperature": 1, "seed": 5}
        first, second = ([choice.text for choice in self.complete("Once upon a time", **options).choices] for _ in range(2))
        self.assertEqual(first, second)
        self.assertEqual(len(set(first)), 3)
        other = [choice.text for choice in self.complete("Once upon a time", **{**options, "seed": 6}).choices]
        self.assertFalse(set(first) & set(other))

    def test_echo_and_prompt_logprobs(self):
        text = "Water boils at 100 degrees."
        made = self.complete(text, max_tokens=1, echo=True, logprobs=2, temperature=0, extra_body={"prompt_logprobs": 2})
        choice = made.choices[0]
        logprobs = choice.logprobs
        self.assertTrue(choice.text.startswith(text))
        self.assertEqual("".join(logprobs.tokens), choice.text)
        for offset, token in zip(logprobs.text_offset, logprobs.tokens):
            self.assertEqual(choice.text[offset:offset + len(token)], token)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertIsNone(choice.prompt_logprobs[0])
        for i in range(1, made.usage.prompt_tokens):
            own = [row for row in choice.prompt_logprobs[i].values() if row["decoded_token"] == logprobs.tokens[i]]
            self.assertEqual([row["logprob"] for row in own], [logprobs.token_logprobs[i]])
            self.assertLessEqual(sum(math.exp(value) for value in logprobs.top_logprobs[i].values()), 1 + 1e-9)
            self.assertIn(logprobs.tokens[i], logprobs.top_logprobs[i])
        alone = self.complete(text, max_tokens=0, echo=True, logprobs=0)
        self.assertEqual(alone.choices[0].text, text)
        self.assertEqual(alone.choices[0].logprobs.token_logprobs[1:], logprobs.token_logprobs[1:made.usage.prompt_tokens])

    def test_stops(self):
        whole = self.complete("1, 2, 3, 4,", max_tokens=24, temperature=0).choices[0].text
        self.assertIn("7", whole)
        cut = self.complete("1, 2, 3, 4,", max_tokens=24, temperature=0, stop=["x", " 7"]).choices[0]
        self.assertEqual((cut.text, cut.finish_reason, cut.stop_reason), (whole[:whole.index(" 7")], "stop", " 7"))
        kept = self.complete("1, 2, 3, 4,", max_tokens=24, temperature=0, stop=" 7",
                             extra_body={"include_stop_str_in_output": True}).choices[0]
        self.assertEqual(kept.text, whole[:whole.index(" 7") + 2])
        comma = json.loads(self.server.ask("/tokenize", {"prompt": ","})[1])["tokens"][0]
        first = self.complete("1, 2, 3, 4,", max_tokens=24, temperature=0, extra_body={"stop_token_ids": [comma]}).choices[0]
        self.assertEqual((first.text, first.finish_reason, first.stop_reason), (whole[:whole.index(",")], "stop", comma))

    def test_completions_stream(self):
        options = {"max_tokens": 12, "temperature": 0, "logprobs": 1}
        want = self.complete("def fibonacci(n):", **options)
        chunks = list(self.complete("def fibonacci(n):", stream=True, stream_options={"include_usage": True}, **options))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks[:-1]), want.choices[0].text)
        values = [value for chunk in chunks[:-1] for value in chunk.choices[0].logprobs.token_logprobs]
        self.assertEqual(values, want.choices[0].logprobs.token_logprobs)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, want.usage.completion_tokens)
        self.assertEqual(chunks[-2].choices[0].finish_reason, want.choices[0].finish_reason)

    def test_chat(self):
        options = {"max_tokens": 16, "temperature": 0}
        made = self.chat(say("What is the capital of France?"), **options)
        text = made.choices[0].message.content
        self.assertIn("Paris", text)
        self.assertEqual(made.choices[0].message.role, "assistant")
        self.assertEqual(made.object, "chat.completion")
        chunks = list(self.chat(say("What is the capital of France?"), stream=True,
                                stream_options={"include_usage": True}, **options))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), text)
        self.assertEqual(chunks[-1].usage.total_tokens, made.usage.total_tokens)
        parts = [{"type": "text", "text": "What is the capital of"}, {"type": "text", "text": "France?"}]
        self.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}], **options)
        shorter = self.chat(say("What is the capital of France?"), max_completion_tokens=3, temperature=0)
        self.assertEqual((shorter.usage.completion_tokens, shorter.choices[0].finish_reason), (3, "length"))

    def test_chat_log_probabilities(self):
        made = self.chat(say("Say yes."), max_tokens=30, temperature=0, logprobs=True, top_logprobs=3)
        rows = made.choices[0].logprobs.content
        self.assertEqual(len(rows), made.usage.completion_tokens)
        own = rows if made.choices[0].finish_reason == "length" else rows[:-1]
        self.assertEqual(b"".join(bytes(row.bytes) for row in own).decode(), made.choices[0].message.content)
        for row in rows:
            top = [each.logprob for each in row.top_logprobs]
            self.assertEqual(top, sorted(top, reverse=True))
            self.assertEqual((row.token, row.logprob), (row.top_logprobs[0].token, top[0]))
        chunks = list(self.chat(say("Say yes."), max_tokens=30, temperature=0, logprobs=True, top_logprobs=3, stream=True))
        streamed = [row for chunk in chunks if chunk.choices[0].logprobs for row in chunk.choices[0].logprobs.content]
        self.assertEqual(streamed, rows)

    def test_sampling_fields(self):
        red = json.loads(self.server.ask("/tokenize", {"prompt": "Red"})[1])["tokens"]
        self.assertEqual(len(red), 1)
        made = self.chat(say("Name a colour."), max_tokens=2, logit_bias={str(red[0]): 100})
        self.assertEqual(made.choices[0].message.content, "RedRed")
        greedy = self.chat(say("Name a colour."), max_tokens=8, temperature=0).choices[0].message.content
        for extra in ({"top_k": 1}, {"min_p": 1.0}):
            self.assertEqual(self.chat(say("Name a colour."), max_tokens=8, extra_body=extra).choices[0].message.content, greedy)
        one, two = (self.chat(say("Tell a joke."), max_tokens=20, seed=7, n=2) for _ in range(2))
        texts = [choice.message.content for choice in one.choices]
        self.assertEqual(texts, [choice.message.content for choice in two.choices])
        self.assertNotEqual(*texts)

    def test_formats(self):
        for seed in range(4):
            made = self.chat(say("Describe a cat in JSON."), max_tokens=60, seed=seed, response_format={"type": "json_object"})
            if made.choices[0].finish_reason == "stop":
                self.assertIsInstance(json.loads(made.choices[0].message.content), dict)
        schema = {"type": "object", "properties": {"name": {"enum": ["Tom", "Kit"]},
                                                   "age": {"type": "integer", "minimum": 0, "maximum": 30}},
                  "required": ["name", "age"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "cat", "strict": True, "schema": schema}}
        for seed in range(4):
            choice = self.chat(say("Describe a cat."), max_tokens=100, seed=seed, response_format=form).choices[0]
            self.assertEqual(choice.finish_reason, "stop")
            value = json.loads(choice.message.content)
            self.assertEqual(sorted(value), ["age", "name"])
            self.assertTrue(value["name"] in ("Tom", "Kit") and 0 <= value["age"] <= 30)

    def test_pydantic(self):
        class Mood(pydantic.BaseModel):
            happy: bool
            score: int = pydantic.Field(ge=0, le=10)

        class Cat(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=12)
            mood: Mood
            colours: list[bool] = pydantic.Field(max_length=3)
        options = {"model": "model", "messages": say("Describe a cat."), "response_format": Cat, "max_tokens": 200}
        for parse in (self.client.chat.completions.parse, self.client.beta.chat.completions.parse):
            for seed in range(2):
                cat = parse(seed=seed, **options).choices[0].message.parsed
                self.assertIsInstance(cat, Cat)
        with self.client.chat.completions.stream(seed=0, **options) as stream:
            deltas = [event for event in stream if event.type == "content.delta"]
            self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Cat)
        self.assertTrue(deltas)
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(**{**options, "max_tokens": 2})

    def test_forced_tool_calls(self):
        options = {"messages": say("What is the weather in Bern?"), "tools": [WEATHER, CLOCK], "max_tokens": 200, "seed": 3}
        choice = self.chat(tool_choice="required", parallel_tool_calls=False, **options).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        for name, arguments in self.calls(choice.message):
            self.assertEqual(sorted(arguments), {"get_weather": ["city", "days"], "get_time": ["zone"]}[name])
        named = {"type": "function", "function": {"name": "get_time"}}
        choice = self.chat(tool_choice=named, **options).choices[0]
        self.assertEqual(([name for name, _ in self.calls(choice.message)], choice.finish_reason), (["get_time"], "stop"))
        with self.client.chat.completions.stream(model="model", tool_choice="required", parallel_tool_calls=False,
                                                 **options) as stream:
            message = stream.get_final_completion().choices[0].message
        self.assertTrue(self.calls(message))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tool_choice={"type": "function", "function": {"name": "other"}}, **options)
        self.assertIn("tool_choice", caught.exception.param)

    def test_bad_requests(self):
        for options, param in (({"max_tokens": -1}, "max_tokens"), ({"temperature": -1}, "temperature"),
                           ({"extra_body": {"temprature": 1}}, "temprature"), ({"logprobs": 1000}, "logprobs"),
                           ({"extra_body": {"suffix": "x"}}, "suffix"), ({"max_tokens": 9000}, "max_tokens")):
            with self.subTest(options), self.assertRaises(openai.BadRequestError) as caught:
                self.complete("a", **options)
            self.assertEqual((caught.exception.param, caught.exception.type), (param, "invalid_request_error"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete("word " * 9000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="gpt-4", prompt="a")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_absent_endpoints_say_so(self):
        for ask in (lambda: self.client.responses.create(model="model", input="a"),
                    lambda: self.client.embeddings.create(model="model", input="a")):
            with self.assertRaises(openai.NotFoundError) as caught:
                ask()
            self.assertIn("not supported", caught.exception.message)
            self.assertIn("/v1/chat/completions", caught.exception.message)

    def test_other_endpoints(self):
        text = "H\u00e9llo, \u4e16\u754c!"
        made = json.loads(self.server.ask("/tokenize", {"prompt": text, "return_token_strs": True})[1])
        self.assertEqual((made["count"], made["max_model_len"]), (len(made["tokens"]), 8192))
        self.assertEqual(json.loads(self.server.ask("/detokenize", {"tokens": made["tokens"]})[1]), {"prompt": text})
        chat = json.loads(self.server.ask("/tokenize", {"messages": say("Hi")})[1])
        self.assertEqual(self.chat(say("Hi"), max_tokens=1).usage.prompt_tokens, chat["count"])
        self.assertEqual(self.server.ask("/health")[0], 200)
        self.assertIn("vllm:e2e_request_latency_seconds_bucket", self.server.ask("/metrics")[1])
        self.assertIn("eos_token", json.loads(self.server.ask("/tokenizer_info")[1]))

    def test_many_at_a_time(self):
        async def all_of_them():
            client = openai.AsyncOpenAI(base_url=self.server.address + "/v1", api_key="none", max_retries=0)
            made = await asyncio.gather(*(client.chat.completions.create(
                model="model", messages=say(f"Count to {i}."), max_tokens=8, temperature=0) for i in range(8)))
            await client.close()
            return [each.choices[0].message.content for each in made]
        together = asyncio.run(all_of_them())
        self.assertEqual(together[3], self.chat(say("Count to 3."), max_tokens=8, temperature=0).choices[0].message.content)

    def test_raw_answers(self):
        raw = self.client.chat.completions.with_raw_response.create(model="model", messages=say("Hi"), max_tokens=2,
                                                                    extra_body={"request_id": "mine"})
        self.assertEqual(raw.headers["content-type"], "application/json")
        self.assertEqual(raw.parse().id, "chatcmpl-mine")


if __name__ == "__main__":
    unittest.main()
