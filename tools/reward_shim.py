#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a reward function of verl or TRL as the command of an exec reward (docs/rewards.md):
reward_shim.py FILE[:FUNCTION] [--style verl|trl]

verl: compute_score(data_source, solution_str, ground_truth, extra_info) -> number, or dict with "score".
TRL: f(prompts, completions, completion_ids, **columns) -> list of numbers or None, called with one completion: it
must not compare completions with one another.
Either may be async. Standard output of the file goes to standard error."""
import argparse
import asyncio
import importlib.util
import inspect
import json
import math
import os
import sys

FIXED = ("request_id", "solution_str", "prompt", "completion_ids")


def load(path):
    if not os.path.isfile(path):
        sys.exit(f"reward_shim: no file {path}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def style_of(function):
    names = inspect.signature(function).parameters
    return "verl" if "solution_str" in names else "trl" if "completions" in names else None


def choose(path, name, style):
    """Returns the function and its style."""
    module = load(path)
    if name:
        function = getattr(module, name, None)
        if not callable(function):
            sys.exit(f"reward_shim: {path} has no function {name}")
    else:
        own = [f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__ and n[0] != "_"]
        found = [module.compute_score] if hasattr(module, "compute_score") else [f for f in own if style_of(f)]
        if len(found) != 1:
            sys.exit(f"reward_shim: {path} has {len(found)} reward functions; try FILE:FUNCTION")
        function = found[0]
    style = style or style_of(function)
    if not style:
        sys.exit(f"reward_shim: {function.__name__} has neither solution_str nor completions; try --style")
    if "trainer_state" in inspect.signature(function).parameters:
        sys.exit(f"reward_shim: {function.__name__} needs trainer_state, which only a TRL trainer has")
    return function, style


def number(value):
    """Returns a Python number, or one of NumPy's or PyTorch's, as a float."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"the score is {value!r}, no number")
    if not math.isfinite(value):
        raise ValueError(f"the score is {value}")
    return float(value)


def numbers_in(values):
    for name, value in values.items():
        try:
            yield name, number(value)
        except (TypeError, ValueError, RuntimeError):
            pass  # a text, or an array


def accepted(function, given):
    """Returns the arguments that a function takes."""
    names = inspect.signature(function).parameters.values()
    if any(p.kind == p.VAR_KEYWORD for p in names):
        return given
    return {p.name: given[p.name] for p in names if p.name in given}


def verl_arguments(function, line):
    return accepted(function, {key: line[key] for key in ("data_source", "solution_str", "ground_truth", "extra_info")})


def read_verl(result):
    if isinstance(result, dict):
        return {**dict(numbers_in(result)), "score": number(result["score"])}
    return {"score": number(result[0] if isinstance(result, (list, tuple)) else result)}


def trl_arguments(function, line, metrics):
    """Returns the arguments for a batch of one; messages are answered with a message."""
    prompt, text = line["prompt"], line["solution_str"]
    given = {key: [value] for key, value in line.items() if key not in FIXED}
    given.update(prompts=[prompt], completion_ids=[line["completion_ids"]], log_metric=metrics.__setitem__,
                 log_extra=lambda name, values: print(name, values, file=sys.stderr),
                 completions=[[{"role": "assistant", "content": text}] if isinstance(prompt, list) else text])
    return accepted(function, given)


def read_trl(result, metrics):
    if len(result) != 1:
        raise ValueError(f"{len(result)} scores for one completion")
    details = dict(numbers_in(metrics))
    # TRL leaves None out of the sum of a sample's rewards.
    return {**details, **({"score": 0, "not_applicable": 1} if result[0] is None else {"score": number(result[0])})}


def score(function, style, line, loop):
    metrics = {}
    arguments = verl_arguments(function, line) if style == "verl" else trl_arguments(function, line, metrics)
    result = function(**arguments)
    if inspect.isawaitable(result):
        result = loop.run_until_complete(result)
    return read_verl(result) if style == "verl" else read_trl(result, metrics)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", metavar="FILE[:FUNCTION]")
    parser.add_argument("--style", choices=("verl", "trl"))
    arguments = parser.parse_args()
    # The protocol's files are kept away from the user's code, C libraries too.
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    path, _, name = arguments.file.partition(":")
    function, style = choose(path, name, arguments.style)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    for text in lines:
        line = json.loads(text)
        try:
            answer = score(function, style, line, loop)
        except Exception as error:  # pylint: disable=broad-except
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.flush()
        try:
            answers.write(json.dumps({"request_id": line["request_id"], **answer}).encode() + b"\n")
            answers.flush()
        except BrokenPipeError:
            os._exit(0)


if __name__ == "__main__":
    main()
