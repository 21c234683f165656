#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scores of answers by verl's gsm8k.py and TinyZero's countdown.py: fixtures/scores.json, which
tests/rl/reward_rules_test.cc compares with the rules.

verl comes as a wheel, without its dependencies. TinyZero has none: HOCKET_TINYZERO names its countdown.py; without that the
countdown part of the fixture stays as it is."""
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FIXTURE = HERE / "fixtures/scores.json"
VERL = "0.9.1"
TINYZERO = "f36b1b8d53f3ea99a486cb1dcbcb539e603f8f04"
FORMAT_SCORE = 0.1
WORDS = ["so", "we get", "the sum is", "then", "####", "#### ", "dollars", "=", "\n", ".", "é", "日本", "42", "-7", "1,234", "$5", "3.50"]


def load(path):
    spec = importlib.util.spec_from_file_location("scores_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verl_gsm8k(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"verl=={VERL}"], check=True)
    subprocess.run([sys.executable, "-m", "zipfile", "-e", *map(str, pathlib.Path(folder).glob("*.whl")), folder], check=True)
    return load(pathlib.Path(folder) / "verl/utils/reward_score/gsm8k.py")


def gsm8k_cases(module):
    rng = random.Random("gsm8k")
    numbers = ["18", "-3", "1000", "0.5", "2.50", "72", "7.", "1"]
    by_hand = [("#### 72", "72"), ("####72", "72"), ("#### 72 dollars", "72"), ("#### $72", "72"), ("#### 1,000", "1000"), ("", "1"),
               ("#### ,", "1"), ("#### .", "1"), ("#### -", "1"), ("#### --5", "5"), ("##### 5", "5"), ("#### 5 #### x", "5"),
               ("#### 5#### 6", "6"), ("#### 72" + "x" * 300, "72"), ("#### 72" + "é" * 293, "72"), ("#### 72" + "é" * 294, "72"),
               ("#### 72" + "日" * 292 + "\n", "72"), ("x" * 500 + "#### 72", "72"), ("72", "72"), ("#### 72.0", "72"), ("#### 072", "72"),
               ("#### 72.", "72"), ("#### - 3", "-3"), ("#### -3", "-3"), ("####  5", "5"), ("#### 1e3", "1000"), ("#### 1 000", "1000")]
    cases = list(by_hand)
    for _ in range(300):
        truth = rng.choice(numbers)
        parts = [rng.choice(WORDS + numbers) for _ in range(rng.randrange(8))]
        if rng.random() < 0.6:
            shown = rng.choice([truth, truth, truth + ".", "$" + truth, f"{truth}0", rng.choice(numbers), "1,000"])
            parts.insert(rng.randrange(len(parts) + 1), "#### " + shown)
        if rng.random() < 0.1:
            parts.append(rng.choice(WORDS) * 150)
        cases.append((rng.choice([" ", ""]).join(parts), truth))
    return [{"answer": answer, "ground_truth": truth, "score": module.compute_score(answer, truth, format_score=FORMAT_SCORE)}
            for answer, truth in cases]


def expression(rng, numbers):
    """An expression of all numbers in a random order."""
    parts = [str(n) for n in rng.sample(numbers, len(numbers))]
    while len(parts) > 1:
        at = rng.randrange(len(parts) - 1)
        blank = rng.choice(["", " "])
        text = parts[at] + blank + rng.choice("+-*/") + blank + parts[at + 1]
        parts[at:at + 2] = [rng.choice(["(" + text + ")", "(" + text + ")", text])]
    return parts[0]


def value_of(text):
    try:
        return eval(text, {"__builtins__": None}, {})
    except (ArithmeticError, SyntaxError, TypeError):
        return None


def changed(rng, text):
    at = rng.randrange(len(text) + 1)
    return rng.choice([text[:at] + text[at + 1:], text[:at] + rng.choice("0123456789+-*/() =x") + text[at:], text + " = 24", "-" + text,
                       text + " + 1", text.replace("+", "-"), "", "no idea", "((" + text + "))"])


def countdown_cases(module):
    rng = random.Random("countdown")
    cases = []
    for _ in range(400):
        numbers = [rng.randrange(1, 100) for _ in range(rng.choice([2, 3, 3, 4, 4, 6]))]
        text = expression(rng, numbers)
        value = value_of(text)
        target = int(value) if value is not None and abs(value) < 1e9 else rng.randrange(1, 100)
        if rng.random() < 0.3:
            target += rng.choice([1, -1, 10])
        if rng.random() < 0.5:
            text = changed(rng, text)
        if "**" in text or "//" in text or "* *" in text or "/ /" in text:
            continue  # powers and floors are Python's, not the game's
        wrong = rng.random()
        answer = f"<answer>{text}</answer>" if wrong < 0.85 else f"<answer>{text}" if wrong < 0.9 else text
        if rng.random() < 0.3:
            answer = "thinking <answer>1</answer> no, " + answer
        if rng.random() < 0.3:
            answer += " done"
        score = module.compute_score("Assistant:" + answer, {"target": target, "numbers": list(numbers)}, format_score=FORMAT_SCORE)
        cases.append({"answer": answer, "target": target, "numbers": numbers, "score": score})
    return cases


def main():
    held = json.loads(FIXTURE.read_text(encoding="utf-8")) if FIXTURE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        held.update(verl=VERL, format_score=FORMAT_SCORE, gsm8k=gsm8k_cases(verl_gsm8k(folder)))
    if os.environ.get("HOCKET_TINYZERO"):
        held.update(tinyzero=TINYZERO, countdown=countdown_cases(load(pathlib.Path(os.environ["HOCKET_TINYZERO"]))))
    lists = {key: value for key, value in held.items() if isinstance(value, list)}
    scalars = {key: value for key, value in held.items() if key not in lists}
    rows = [f"{json.dumps(key)}: [\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in value) + "\n]" for key, value in lists.items()]
    FIXTURE.write_text("{" + json.dumps(scalars)[1:-1] + ",\n" + ",\n".join(rows) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
