#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""Chat templates against transformers: the texts of tests/data/chat/cases.json, and random templates rendered by both
(HOCKET_SEED=S draws others, HOCKET_LONG=1 more of them)."""
import json
import os
import random
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", ".."))
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
SEED = int(os.environ.get("HOCKET_SEED", "1"))
COUNT = 1500 if os.environ.get("HOCKET_LONG", "0") not in ("", "0") else 120
sys.path.insert(0, HERE)
from chat_templates import Ours, difference, theirs  # noqa: E402

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "x": 1},
            {"role": "tool", "content": ["a"]}]
VARIABLES = {"d": {"k": "v", "b": 2, "z": [1, 2.5, None, True], "A": "q"}, "n": 5, "f": 2.5, "s": "Hello, World",
             "l": [3, 1, 2, "b"], "t": [["a", 1], ["b", 2]], "e": []}
STRINGS = ["''", "'abc'", "'a b  c'", "\"it's\"", "'Größe ß'", "' x\\n y '", "'42.5'", "'<b>&'", "'%s-%d'", "'a,b,c'",
           "'\\t\\x41\\u00e9'"]
NAMES = ["messages", "d", "n", "f", "s", "l", "t", "e", "none", "true", "nothing", "ns.a", "messages[0]", "d.k", "l[0]"]
NUMBERS = ["0", "1", "-1", "3", "10", "1.5", "1e3", "0.1", "1e16", "0x1f"]
FILTERS = ["trim", "length", "upper", "title", "tojson", "string", "int", "float", "list", "first", "last", "join(', ')",
           "default('D', true)", "replace('a', 'X')", "items|list", "dictsort", "sort", "unique|list", "reverse|list",
           "map('upper')|list", "map(attribute='role')|list", "selectattr('content')|list",
           "rejectattr('role', 'in', ['user'])|list", "select('string')|list", "batch(2)|list", "slice(2)|list", "round(1)",
           "sum", "min", "max", "indent(2, true)", "tojson(indent=2)", "safe", "e", "capitalize"]
METHODS = [".strip()", ".split()", ".split(',', 1)", ".rsplit('b', 1)", ".splitlines()", ".startswith('a')", ".title()",
           ".endswith(('c', 'd'))", ".replace('a', 'b', 1)", ".find('b')", ".count('l')", ".get('k')", ".items()",
           ".keys()|list", ".join(['p', 'q'])", ".role", ".nothing", "[0]", "[-1]", "[1:]", "['k']", "[5]", ".lstrip('a')"]
TESTS = ["defined", "none", "string", "mapping", "iterable", "sequence", "number", "odd", "divisibleby(3)", "eq 1",
         "in [1, 2, 'a']", "not none", "true", "boolean"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]


class Draw:
    """Random templates. A constant is never sliced: jinja2 folds that to undefined, and refuses it of a variable."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def expression(self, depth=0):
        r, pick, inner = self.rng.random(), self.rng.choice, lambda: self.expression(depth + 1)
        if depth > 3 or r < 0.3:
            return pick([pick(STRINGS), pick(NAMES), pick(NAMES), pick(NUMBERS)])
        if r < 0.45:
            method = pick(METHODS)
            return (pick(NAMES) if ":" in method else f"({inner()})") + method
        if r < 0.62:
            return f"({inner()})|{pick(FILTERS)}"
        if r < 0.82:
            return f"({inner()} {pick(OPERATORS)} {inner()})"
        if r < 0.9:
            return f"({inner()} is {pick(TESTS)})"
        if r < 0.95:
            return f"({inner()} if {inner()} else {inner()})"
        return pick([f"[{inner()}, {inner()}]", f"(not {inner()})", f"{{'p': {inner()}}}"])

    def tag(self, text):
        return self.rng.choice(["{%", "{%", "{%-", "{%+"]) + f" {text} " + self.rng.choice(["%}", "%}", "-%}"])

    def statements(self, depth=0):
        out, pick, inner = [], self.rng.choice, lambda: self.statements(depth + 1)
        for _ in range(self.rng.randrange(1, 4)):
            out.append(pick(["", "\n", "  ", "\n  "]) + pick(["text", "", " <p>\n", "{# c #}\n"]) + pick(["", "\n", "  "]))
            r = self.rng.random()
            small = pick(["n", "x", "y", "loop.index0", "loop.last", "m.role", "ns.a", "caller()", "mac('q', b=2)", "mac()"])
            if depth > 2 or r < 0.4:
                out.append(pick(["{{ %s }}", "{{- %s -}}"]) % (small if r < 0.3 else self.expression(2)))
            elif r < 0.55:
                out.append(self.tag(f"for m in {pick(['messages', 'l', 'd', 'range(3)', 'nothing'])}") + inner() +
                           pick(["", self.tag("else") + inner()]) + self.tag("endfor"))
            elif r < 0.7:
                out.append(self.tag("if " + small) + inner() + pick(["", self.tag("else") + inner()]) + self.tag("endif"))
            elif r < 0.82:
                out.append(self.tag(f"set {pick(['x', 'y', 'ns.a'])} = {small}"))
            elif r < 0.88:
                out.append(self.tag(f"macro mac({pick(['', 'a, b=2', 'a=1, b=a'])})") + inner() + self.tag("endmacro"))
            elif r < 0.92:
                out.append(self.tag("call mac(1)") + inner() + self.tag("endcall"))
            elif r < 0.96:
                out.append(self.tag("set x") + inner() + self.tag("endset"))
            elif depth == 0:
                out.append(self.tag("generation") + self.expression(4).join(["{{ ", " }}"]) + self.tag("endgeneration"))
        return "".join(out)

    def template(self, number):
        body = self.statements() if number % 2 else "{{ " + self.expression() + " }}"
        return "{% set ns = namespace(a=1) %}" + body


class ChatTemplates(unittest.TestCase):
    def test_the_cases_have_transformers_texts(self):
        with open(os.path.join(ROOT, "tests/data/chat/cases.json"), encoding="utf-8") as f:
            held = json.load(f)
        for case in held["cases"]:
            got = theirs(case["template"], held["messages"], bos_token=held["bos_token"], **held["variables"])
            if "error" in case:
                self.assertTrue(got.get("error", "").startswith(case["error"]), (case, got))
            else:
                want = {"text": case["want"], "generation": case.get("generation", [])}
                self.assertEqual(want, got, case)

    def test_random_templates_render_the_same(self):
        draw, equal, refused = Draw(SEED), 0, 0
        with tempfile.TemporaryDirectory() as folder:
            ours = Ours(HOCKET, folder)
            for number in range(COUNT):
                template = draw.template(number)
                a = ours.render(template, MESSAGES, **VARIABLES)
                b = theirs(template, MESSAGES, **VARIABLES)
                self.assertIsNone(difference(a, b), f"HOCKET_SEED={SEED} template {number}: {template!r}")
                refused += "error" in b
                equal += "text" in b
        print(f"HOCKET_SEED={SEED}: {equal} texts equal, {refused} refused by both")
        self.assertGreater(equal, COUNT // 10)


if __name__ == "__main__":
    unittest.main()
