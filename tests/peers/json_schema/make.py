#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts that `jsonschema` calls valid or invalid, for the schemas of schemas.py: fixtures/instances.json, which
tests/serve/grammar/instances_test.cc reads. Valid ones have their properties in the order of the schema, and none that the
schema does not name where additionalProperties is absent."""
import copy
import json
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from jsonschema import FormatChecker  # noqa: E402
from jsonschema.validators import validator_for  # noqa: E402
from schemas import SCHEMAS  # noqa: E402

VALID, INVALID = 8, 14
TEXTS = ["", "a", "ab", "abc", "hello world", "é", "\"quoted\"\\", "tab\there", "日本語", "😀 ok", "/path", "a-b", "s_x", "i_1"]
INTEGERS = [0, 1, -1, 2, 3, 4, 5, 7, 9, 10, 12, 18, 21, 42, -3, -17, 99, 100, 1000, 123456789]
NUMBERS = [0.5, -1.25, 0.25, 0.3, 2.2, 1.0, 3.75, 100.125, 0.1, 0.15]
WIDE = [1e-07, 1e+22, -2.5e-10]


class Drawing:
    """Instances of one schema, drawn at random."""

    def __init__(self, schema, seed):
        self.root, self.rng = schema, random.Random(seed)

    def resolved(self, ref):
        at = self.root
        for key in ref.split("/")[1:]:
            at = at[key.replace("%20", " ").replace("~1", "/").replace("~0", "~")]
        return at

    def merged(self, parts):
        out = {}
        for part in parts:
            for key, value in part.items():
                if key == "properties":
                    properties = out.setdefault("properties", {})
                    for name, schema in value.items():
                        properties[name] = {**properties[name], **schema} if isinstance(properties.get(name), dict) else schema
                elif key == "required":
                    out[key] = out.get(key, []) + value
                else:
                    out[key] = value
        return out

    def draw(self, schema, depth=0):
        if schema is True or schema == {}:
            return self.rng.choice([None, True, 3, 0.5, "x", [1, "y"], {"k": None}, {}, []])
        if schema is False:
            return 0
        if "examples" in schema:
            return self.rng.choice(schema["examples"])
        if "const" in schema:
            return copy.deepcopy(schema["const"])
        if "enum" in schema:
            return copy.deepcopy(self.rng.choice(schema["enum"]))
        rest = {k: v for k, v in schema.items() if k not in ("$ref", "allOf", "anyOf", "oneOf", "$defs")}
        parts = [rest]
        if "$ref" in schema:
            parts.append(self.resolved(schema["$ref"]))
        parts += schema.get("allOf", [])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                parts.append(schema[key][-1] if depth > 6 else self.rng.choice(schema[key]))
        if len(parts) > 1:
            return self.draw(self.merged(parts), depth + 1)
        return self.typed(schema, depth)

    def typed(self, schema, depth):
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self.rng.choice(kind)
        if kind is None:
            kind = ("object" if "properties" in schema or "required" in schema else "array" if "items" in schema else
                    "integer" if "minimum" in schema or "maximum" in schema else "string")
        if kind == "object":
            return self.object(schema, depth)
        if kind == "array":
            return self.array(schema, depth)
        bounded = any(k in schema for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
        choices = {"null": [None], "boolean": [True, False], "string": TEXTS, "integer": INTEGERS,
                   "number": NUMBERS + INTEGERS + ([] if bounded else WIDE)}[kind]
        return self.rng.choice(choices)

    def object(self, schema, depth):
        out = {}
        required = schema.get("required", [])
        properties = schema.get("properties", {})
        for name, value in properties.items():
            if name in required or self.rng.random() < (0.5 if depth < 6 else 0.1):
                out[name] = self.draw(value, depth + 1)
        for name in required:
            if name not in properties:
                out[name] = self.draw(schema.get("additionalProperties", True), depth + 1)
        others = schema.get("additionalProperties", not {"properties", "required", "patternProperties"} & set(schema))
        for pattern, value in schema.get("patternProperties", {}).items():
            for i in range(self.rng.randrange(3)):
                out[pattern[1:] + str(i)] = self.draw(value, depth + 1)
        if others is not False:
            for name in self.rng.sample(["x", "id2", "zz", "é", "i", "abc"], self.rng.randrange(3)):
                out[name] = self.draw(others, depth + 1)
        return out

    def array(self, schema, depth):
        items, prefix = schema.get("items", True), schema.get("prefixItems", [])
        if isinstance(items, list):
            items, prefix = schema.get("additionalItems", True), items
        size = self.rng.randrange(4 if depth < 5 else 1) + schema.get("minItems", 0)
        if "maxItems" in schema:
            size = min(size, schema["maxItems"])
        if prefix and (items is False or "items" not in schema) and schema.get("minItems", 0) <= len(prefix):
            size = min(size, len(prefix))
        return [self.draw(prefix[i] if i < len(prefix) else items, depth + 1) for i in range(size)]

    def places(self, value, path=()):
        yield path
        for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
            yield from self.places(each, path + (key,))

    def changed(self, value):
        """The instance with one place changed."""
        value = copy.deepcopy(value)
        path = self.rng.choice(list(self.places(value)))
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        at = holder[path[-1]] if path else value
        new = self.rng.choice([None, True, "x", 17, -4, 0.5, 2.26, [], {}, [1], "zz-9"])
        if isinstance(at, dict) and self.rng.random() < 0.7:
            new = dict(at)
            if new and self.rng.random() < 0.5:
                del new[self.rng.choice(list(new))]
            else:
                new["extra"] = self.rng.choice([1, "x", None])
        elif isinstance(at, list) and self.rng.random() < 0.6:
            new = at + [self.rng.choice([1, "x", None])] if self.rng.random() < 0.5 else at[1:]
        elif isinstance(at, str) and self.rng.random() < 0.7:
            new = self.rng.choice([at + "!", at[1:], at * 2, at[::-1], "é" + at])
        elif isinstance(at, (int, float)) and not isinstance(at, bool) and self.rng.random() < 0.7:
            new = self.rng.choice([at + 1, -at, at * 10, at + 0.25, at - 3])
        if not path:
            return new
        holder[path[-1]] = new
        return value


def texts_of(value, number):
    """The instance as an encoder writes it: each in another way."""
    return [json.dumps(value, separators=(",", ":"), ensure_ascii=False), json.dumps(value),
            json.dumps(value, ensure_ascii=False), json.dumps(value, indent=2)][number % 4]


def instances(name, schema):
    kind = validator_for(schema, default=validator_for({"$schema": "https://json-schema.org/draft/2020-12/schema"}))
    kind.check_schema(schema)
    plain, formats = kind(schema), kind(schema, format_checker=FormatChecker())
    drawing = Drawing(schema, name)
    valid, invalid = {}, {}
    for i in range(400):
        value = drawing.draw(schema)
        if formats.is_valid(value) and len(valid) < VALID:
            valid.setdefault(json.dumps(value), texts_of(value, i))
        value = drawing.changed(value)
        if not plain.is_valid(value) and len(invalid) < INVALID:
            invalid.setdefault(json.dumps(value), texts_of(value, i))
    return {"name": name, "schema": schema, "valid": list(valid.values()), "invalid": list(invalid.values())}


def main():
    out = [instances(name, schema) for name, schema in SCHEMAS.items()]
    with open(HERE / "fixtures/instances.json", "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in out) + "\n]\n")
    for each in out:
        if not each["valid"] or (not each["invalid"] and each["name"] not in ("any",)):
            print(f"[peers] {each['name']}: {len(each['valid'])} valid and {len(each['invalid'])} invalid texts", file=sys.stderr)


if __name__ == "__main__":
    main()
