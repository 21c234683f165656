#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the wheel bfcl-eval (Berkeley's function calling leaderboard) and writes, into .venv-peers/bfcl:
schemas.jsonl: parameters of its functions as JSON Schema, every one that differs, and the schemas of tests/peers/json_schema.
calls.jsonl:   texts of its calls in the forms of the parsers, with their names and arguments, and the tools of the request.

Nothing of it is committed. tests/serve/real_calls_test.cc and schemas_test.py read these files."""
import json
import pathlib
import random
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parents[2] / ".venv-peers/bfcl"
WHEEL = "bfcl-eval==2026.3.23"
sys.path.insert(0, str(HERE.parent / "json_schema"))
from jsonschema import Draft202012Validator  # noqa: E402
from schemas import SCHEMAS  # noqa: E402

DATA = "bfcl_eval/data/"
# Names of types in the data, those of Python, Java and JavaScript among them; others stand for any value.
TYPES = {"dict": "object", "object": "object", "hashmap": "object", "float": "number", "double": "number", "number": "number",
         "integer": "integer", "int": "integer", "long": "integer", "short": "integer", "byte": "integer", "bigint": "integer",
         "string": "string", "char": "string", "boolean": "boolean", "bool": "boolean", "array": "array", "list": "array",
         "tuple": "array", "arraylist": "array"}
KEPT = ("description", "enum", "required", "format", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength",
        "pattern")


def wheel():
    found = sorted(OUT.glob("*.whl"))
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", OUT,
                        WHEEL], check=True)
        found = sorted(OUT.glob("*.whl"))
    return zipfile.ZipFile(found[-1])


def rows(archive, name):
    try:
        lines = archive.read(DATA + name).decode().splitlines()
    except KeyError:
        return []
    return [json.loads(line) for line in lines if line.strip()]


def converted(schema):
    """A type of the data as JSON Schema."""
    out = {key: schema[key] for key in KEPT if key in schema}
    kind = TYPES.get(str(schema.get("type")).lower())
    if kind is not None:
        out["type"] = kind
    if isinstance(schema.get("properties"), dict) and kind == "object":
        out["properties"] = {name: converted(value) for name, value in schema["properties"].items()}
        out["required"] = [name for name in schema.get("required") or [] if name in out["properties"]]
    if isinstance(schema.get("additionalProperties"), dict):
        out["additionalProperties"] = converted(schema["additionalProperties"])
    if isinstance(schema.get("items"), dict) and kind == "array":
        out["items"] = converted(schema["items"])
    # Some enums are those of a list's items, or have values of another type.
    values = out.pop("enum", None)
    if isinstance(values, list):
        fitting = [value for value in values if Draft202012Validator(out).is_valid(value)]
        if fitting:
            out["enum"] = fitting
    return out


def tool_of(function):
    return {"type": "function", "function": {"name": function["name"], "description": function.get("description", ""),
                                             "parameters": converted(function.get("parameters") or {"type": "dict"})}}


def truth(call):
    """The name and the arguments of an accepted answer: of every argument the first value that is given."""
    (name, accepted), = call.items()
    first = lambda value: ({key: first(inner[0] if isinstance(inner, list) and inner else inner)
                            for key, inner in value.items()} if isinstance(value, dict) else
                           [first(each) for each in value] if isinstance(value, list) else value)
    return name, {key: first(values[0]) for key, values in accepted.items() if values and values[0] != ""}


def ordered(arguments, schema):
    """Arguments in the order of their schema, as grammars write them."""
    if isinstance(arguments, dict) and isinstance(schema.get("properties"), dict):
        known = [key for key in schema["properties"] if key in arguments]
        others = {key: value for key, value in arguments.items() if key not in known}
        return {key: ordered(arguments[key], schema["properties"][key]) for key in known} | others
    if isinstance(arguments, list) and isinstance(schema.get("items"), dict):
        return [ordered(each, schema["items"]) for each in arguments]
    return arguments


def closed(schema):
    """A schema in which objects with properties have no others, as grammars read it."""
    if isinstance(schema, dict):
        out = {key: closed(value) for key, value in schema.items()}
        if isinstance(schema.get("properties"), dict):
            out["properties"] = {name: closed(value) for name, value in schema["properties"].items()}
            out.setdefault("additionalProperties", False)
        return out
    return schema


def written(calls, parser, style):
    """Calls as a model writes them."""
    dump = lambda value: json.dumps(value, **style)
    if parser == "hermes":
        return "\n".join(f"<tool_call>\n{dump({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls)
    if parser == "llama3_json":
        return "; ".join(dump({"name": n, "parameters": a}) for n, a in calls)
    return "[TOOL_CALLS]" + dump([{"name": n, "arguments": a} for n, a in calls])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    archive = wheel()
    names = sorted(pathlib.PurePath(name).name for name in archive.namelist()
                   if name.startswith(DATA + "BFCL_") and name.endswith(".json"))
    rng = random.Random(29)
    schemas, lines, counts = {}, [], {"calls": 0, "valid": 0}
    styles = [{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 2, "ensure_ascii": False}]
    for name in names:
        if "format_sensitivity" in name:
            continue
        answers = {row["id"]: row["ground_truth"] for row in rows(archive, "possible_answer/" + name)}
        for row in rows(archive, name):
            functions = row.get("function")
            if not isinstance(functions, list):
                continue
            tools = [tool_of(function) for function in functions]
            for tool in tools:
                schemas.setdefault(json.dumps(tool["function"]["parameters"], sort_keys=True), tool["function"]["parameters"])
            accepted = answers.get(row["id"], [])
            if not accepted or not all(isinstance(call, dict) and len(call) == 1 for call in accepted):
                continue
            parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
            calls = [(call, ordered(arguments, parameters.get(call, {}))) for call, arguments in map(truth, accepted)]
            valid = all(call in parameters and Draft202012Validator(closed(parameters[call])).is_valid(arguments)
                        for call, arguments in calls)
            counts["calls"] += len(calls)
            counts["valid"] += len(calls) if valid else 0
            for parser in ("hermes", "llama3_json", "mistral"):
                style = rng.choice(styles)
                lines.append({"id": row["id"], "parser": parser, "text": written(calls, parser, style), "valid": valid,
                              "calls": [[call, arguments] for call, arguments in calls], "tools": tools})
    drawn = [{"name": name, "schema": schema} for name, schema in SCHEMAS.items()]
    drawn += [{"name": f"bfcl {i}", "schema": schema} for i, schema in enumerate(schemas.values())]
    for name, values in (("schemas", drawn), ("calls", lines)):
        with open(OUT / f"{name}.jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    print(f"{WHEEL}: {len(schemas)} schemas that differ; {counts['calls']} calls of {len(lines) // 3} requests, "
          f"{counts['valid']} of them valid under their schemas; {len(lines)} texts")


if __name__ == "__main__":
    main()
