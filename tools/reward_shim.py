#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a reward function of verl or TRL as the command of an exec reward (docs/rewards.md):
reward_shim.py FILE|MODULE[:FUNCTION] [--style verl|trl] [--kwargs JSON]

verl: compute_score(data_source, solution_str, ground_truth, extra_info) -> number, or dict with "score"; or of a batch,
compute_score(data_sources, solution_strs, ground_truths, extra_infos) -> list of them, called with a batch of one.
TRL: f(prompts, completions, completion_ids, **columns) -> list of numbers or None, called with one completion: it
must not compare completions with one another.
Either may be async. Standard output of the file goes to standard error."""
import argparse
import asyncio
import importlib
import importlib.util
import inspect
import json
import math
import os
import sys

FIXED = ("request_id", "solution_str", "prompt", "completion_ids")
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")


def load(path):
    """Returns the module of a file, or of a name."""
    if not os.path.isfile(path):
        if path.endswith(".py") or os.sep in path:
            sys.exit(f"reward_shim: no file {path}")
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(path)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        sys.exit(f"reward_shim: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def parameters_of(function):
    return inspect.signature(function).parameters


def style_of(function):
    names = parameters_of(function)
    return "verl" if "solution_str" in names or "solution_strs" in names else "trl" if "completions" in names else None


def name_of(function):
    return getattr(function, "__name__", type(function).__name__)


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
        sys.exit(f"reward_shim: {name_of(function)} has neither solution_str nor completions; try --style")
    return function, style


def check(function, style, more):
    """Refuses a function that can never be called: it needs what there is not, or does not take what is given."""
    parameters = parameters_of(function)
    if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
        for name in more:
            if name not in parameters:
                sys.exit(f"reward_shim: {name_of(function)} takes no {name}, which --kwargs gives")
    for p in parameters.values():
        needed = p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in more
        if needed and p.name == "trainer_state":
            sys.exit(f"reward_shim: {name_of(function)} needs trainer_state, which only a TRL trainer has")
        # A parameter of TRL's functions may be a column of the data.
        if needed and style == "verl" and p.name.removesuffix("s" if is_batched(function) else "") not in VERL:
            sys.exit(f"reward_shim: {name_of(function)} needs {p.name}, which verl does not give; try --kwargs")


def is_batched(function):
    """Returns whether it is one of verl's that take a batch."""
    return "solution_strs" in parameters_of(function)


def number(value):
    """Returns a Python number, or one of NumPy's or PyTorch's, as a float."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"the score is {value!r}, no number")
    if not math.isfinite(value):
        raise ValueError(f"the score is {value}")
    return float(value)


RESERVED = ("request_id", "error", "not_applicable")  # of the protocol


def numbers_in(values):
    for name, value in values.items():
        if name in RESERVED:
            continue
        try:
            yield name, number(value)
        except (TypeError, ValueError, RuntimeError):
            pass  # a text, or an array


def accepted(function, given):
    """Returns the arguments that a function takes."""
    names = parameters_of(function).values()
    if any(p.kind == p.VAR_KEYWORD for p in names):
        return given
    return {p.name: given[p.name] for p in names if p.name in given}


def verl_arguments(function, line):
    given = {**{name: line[name] for name in VERL}, "extra_info": line["extra_info"] or {}}
    if is_batched(function):
        given = {name + "s": [value] for name, value in given.items()}
    return accepted(function, given)


def read_verl(result, is_batch):
    if is_batch:
        result = only(result)
    if isinstance(result, dict):
        return {**dict(numbers_in(result)), "score": number(result["score"])}
    return {"score": number(result[0] if isinstance(result, (list, tuple)) else result)}


def only(results):
    if len(results) != 1:
        raise ValueError(f"{len(results)} scores for one completion")
    return results[0]


def trl_arguments(function, line, metrics):
    """Returns the arguments for a batch of one; messages are answered with a message."""
    prompt, text = line["prompt"], line["solution_str"]
    given = {key: [value] for key, value in line.items() if key not in FIXED}
    given.update(prompts=[prompt], completion_ids=[line["completion_ids"]], log_metric=metrics.__setitem__,
                 log_extra=lambda name, values: print(name, values, file=sys.stderr),
                 completions=[[{"role": "assistant", "content": text}] if isinstance(prompt, list) else text])
    return accepted(function, given)


def read_trl(result, metrics):
    value, details = only(result), dict(numbers_in(metrics))
    # TRL leaves None out of the sum of a sample's rewards.
    return {**details, **({"score": 0, "not_applicable": 1} if value is None else {"score": number(value)})}


def score(function, style, more, line, loop):
    metrics = {}
    arguments = verl_arguments(function, line) if style == "verl" else trl_arguments(function, line, metrics)
    result = function(**{**arguments, **more})
    if inspect.isawaitable(result):
        result = loop.run_until_complete(result)
    return read_verl(result, is_batched(function)) if style == "verl" else read_trl(result, metrics)


def keywords(text):
    try:
        values = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON ({error})") from error
    if not isinstance(values, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object, such as {{\"threshold\": 0.5}}")
    return values


def say(file, message):
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", metavar="FILE|MODULE[:FUNCTION]")
    parser.add_argument("--style", choices=("verl", "trl"))
    parser.add_argument("--kwargs", type=keywords, default={}, metavar="JSON", help="further arguments: verl's reward_kwargs")
    arguments = parser.parse_args()
    # The protocol's files are kept away from the user's code, C libraries too.
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    say(answers, {"ready": False})  # imports may take long
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    path, _, name = arguments.file.partition(":")
    function, style = choose(path, name, arguments.style)
    check(function, style, arguments.kwargs)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    say(answers, {"ready": True})
    for text in lines:
        line = json.loads(text)
        try:
            answer = score(function, style, arguments.kwargs, line, loop)
        except Exception as error:  # pylint: disable=broad-except
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.flush()
        try:
            say(answers, {"request_id": line["request_id"], **answer})
        except BrokenPipeError:
            os._exit(0)


if __name__ == "__main__":
    main()
