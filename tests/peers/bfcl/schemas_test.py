#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=1800
"""SmolLM2 writes values of JSON schemas through `hocket serve`, at temperature 1: texts that end by themselves are valid under
the package jsonschema, texts that max_tokens cuts are the beginning of a valid one.

The schemas are those that make.py wrote (`./test peers bfcl`): 20 of them, 200 with HOCKET_LONG=1. A cut text is read by a
parser of its own and validated without what may still come; of some the same draw is continued, and that whole text is
validated if it ends."""
import concurrent.futures
import contextlib
import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SCHEMAS = ROOT / ".venv-peers/bfcl/schemas.jsonl"
MODEL = ROOT / ".venv-peers/models/SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENS = int(os.environ.get("HOCKET_SCHEMA_TOKENS", "128" if os.environ.get("HOCKET_LONG") else "48"))
RERUN = 4  # one of so many cut texts is drawn again, longer
PYTHON = ROOT / ".venv-peers/bfcl/bin/python"
sys.path.insert(0, str(HERE.parent / "openai"))
from served import Served  # noqa: E402

if importlib.util.find_spec("jsonschema") is None and PYTHON.exists() and not os.environ.get("HOCKET_PEER"):
    sys.exit(subprocess.run([PYTHON, *sys.argv], env={**os.environ, "HOCKET_PEER": "1"}, check=False).returncode)
if importlib.util.find_spec("jsonschema") is not None:
    from jsonschema.validators import Draft202012Validator, validator_for

# A string, perhaps without its end, a number, or a word.
SCALAR = re.compile(r'"(?:[^"\\]|\\.)*(?:(?P<closed>")|\\?$)|[-+.0-9eE]+|[a-z]+', re.DOTALL)
OPEN = object()  # a value of which nothing certain has come
# Keywords that the rest of a text may still satisfy.
LATER = ("required", "minItems", "minProperties", "minContains")


class Cut(Exception):
    """The text ended within a value."""


class Prefix:
    """Reads the beginning of a JSON text: `value` is what is there, without scalars that may go on. ValueError: it is none."""

    def __init__(self, text):
        self.text, self.at, self.whole = text, 0, True
        self.value = self.read()
        if self.whole and self.at != len(text):
            raise ValueError(f"more text behind the value: {text[self.at:]!r}")

    def peek(self):
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1
        if self.at == len(self.text):
            raise Cut
        return self.text[self.at]

    def take(self, character):
        if self.peek() != character:
            raise ValueError(f"{self.text[self.at]!r} at {self.at}; expected {character!r}")
        self.at += 1

    def scalar(self):
        run = SCALAR.match(self.text, self.at)
        if run is None:
            raise ValueError(f"{self.text[self.at:]!r} begins no value")
        self.at = run.end()
        text = run.group()
        if self.at < len(self.text) or (text.startswith('"') and run.group("closed")):
            return json.loads(text)
        ends = (text, text + "0", text + ".0") if text[0] in "-0123456789" else (
            [text + end for end in ('"', 'u0000"', '0"', '00"', '000"', '0000"', 'n"', '\\ud83d"')] if text[0] == '"' else
            [word for word in ("true", "false", "null") if word.startswith(text)])
        for end in ends:
            with contextlib.suppress(ValueError):
                json.loads(end)
                raise Cut
        raise ValueError(f"{text!r} begins no value")

    def read(self):
        try:
            first = self.peek()
            if first not in "{[":
                return self.scalar()
        except Cut:
            self.whole = False
            return OPEN
        self.at += 1
        return self.members({}, "}") if first == "{" else self.members([], "]")

    def members(self, out, close):
        try:
            if self.peek() == close:
                self.at += 1
                return out
            while True:
                key = None
                if close == "}":
                    if self.peek() != '"':
                        raise ValueError(f"no name at {self.at}")
                    key = self.scalar()
                    self.take(":")
                value = self.read()
                if value is not OPEN:
                    out.append(value) if key is None else out.__setitem__(key, value)
                if not self.whole:
                    return out
                if self.peek() == close:
                    self.at += 1
                    return out
                self.take(",")
        except Cut:
            self.whole = False
            return out


def relaxed(schema):
    """A schema without what a text that goes on may still satisfy."""
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key in LATER:
            continue
        if key in ("properties", "patternProperties", "$defs", "definitions"):
            out[key] = {name: relaxed(each) for name, each in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            out["anyOf" if key == "oneOf" else key] = [relaxed(each) for each in value]
        elif key in ("items", "additionalProperties", "additionalItems", "propertyNames"):
            out[key] = [relaxed(each) for each in value] if isinstance(value, list) else relaxed(value)
        else:
            out[key] = value
    if any(isinstance(value, (dict, list)) for value in [*out.get("enum", []), out.get("const")]):
        out.pop("enum", None)  # part of such a value is no value
        out.pop("const", None)
    return out


def validator(schema):
    return validator_for(schema, default=Draft202012Validator)(schema)


class PrefixTest(unittest.TestCase):
    def test_reads_beginnings(self):
        whole = '{"a": [1, -2.5e3, "x\\u00e9\\n"], "b": {"c": null, "d": true}}'
        for end in range(len(whole)):
            self.assertFalse(Prefix(whole[:end]).whole, whole[:end])
        self.assertEqual(Prefix(whole).value, json.loads(whole))
        self.assertEqual(Prefix('{"a": [1, 2').value, {"a": [1]})
        for wrong in ('{"a" 1', '[1,, 2', '{a', '"x\n', "[tru1", '{"a": 1} x', "[01"):
            with self.assertRaises(ValueError, msg=wrong):
                Prefix(wrong)


class Schemas(unittest.TestCase):
    def setUp(self):
        for path in (SCHEMAS, MODEL):
            if not path.exists():
                self.skipTest(f"no {path.relative_to(ROOT)}; try ./test peers 'bfcl|llama_cpp'")
        if importlib.util.find_spec("jsonschema") is None:
            self.skipTest("no package jsonschema; try ./test peers bfcl")

    def drawn(self, count):
        with open(SCHEMAS, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        own = [row for row in rows if not row["name"].startswith("bfcl")]
        others = [row for row in rows if row["name"].startswith("bfcl")]
        rng = random.Random(200)
        half = min(len(own), count // 2)
        return rng.sample(own, half) + rng.sample(others, count - half)

    def ask(self, server, row, seed, tokens):
        text = f"Write JSON that this schema describes: {json.dumps(row['schema'])[:300]}"
        form = {"type": "json_schema", "json_schema": {"name": "value", "schema": row["schema"]}}
        status, answer = server.ask("/v1/chat/completions", {
            "messages": [{"role": "user", "content": text}], "response_format": form, "seed": seed, "temperature": 1,
            "max_tokens": tokens})
        if status != 200:
            return None, answer
        choice = json.loads(answer)["choices"][0]
        return choice["finish_reason"], choice["message"]["content"]

    def check(self, server, row, seed, tokens):
        """Returns how the text ended, and a fault or None."""
        finish, text = self.ask(server, row, seed, tokens)
        if finish is None:
            return "refused", f"{row['name']}: {text}"
        try:
            if finish == "stop":
                validator(row["schema"]).validate(json.loads(text))
                return "stop", None
            # A text whose last character is cut has a replacement character in its place.
            prefix = Prefix(text.rstrip("\ufffd"))
            if prefix.value is not OPEN:
                validator(relaxed(row["schema"])).validate(prefix.value)
            if seed % RERUN != 0:
                return "length", None
            longer, more = self.ask(server, row, seed, 3 * tokens)
            if not more.startswith(text.rstrip("\ufffd")):
                return "length", f"{row['name']}: the same seed went on otherwise: {text!r}, {more!r}"
            if longer == "stop":
                validator(row["schema"]).validate(json.loads(more))
                return "length, later stop", None
            return "length", None
        except Exception as error:  # of jsonschema or of a parser
            return finish, f"{row['name']}: {type(error).__name__} {error} in {text!r}"

    def test_texts_are_valid(self):
        rows = self.drawn(200 if os.environ.get("HOCKET_LONG") else 20)
        counts, faults = {}, []
        with Served(MODEL, "--max-num-seqs", 16) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
            for ended, fault in pool.map(lambda pair: self.check(server, pair[1], pair[0], TOKENS), enumerate(rows)):
                counts[ended] = counts.get(ended, 0) + 1
                if fault is not None:
                    faults.append(fault)
        print(f"{len(rows)} schemas: {counts}", flush=True)
        self.assertEqual(faults, [])


if __name__ == "__main__":
    unittest.main()
