#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=900
"""Hostile fine-tuning data: damaged lines by seed, and by hand wrong roles, empty turns, NUL characters, bytes that are no
UTF-8, deep nesting and lines of 100 MB. Every line is counted: it is an example, or unreadable and named; an undamaged line
is never lost; `hocket train` counts them, too, and has the losses of the readable lines alone; memory stays bounded.

    HOSTILE_SEED=7 HOSTILE_ROUNDS=10 python3 tests/cli/hostile_data_test.py

tries other damages, and ten times as many files."""
import gzip
import json
import os
import random
import shutil
import subprocess
import tempfile
import unittest

from cli_util import HOCKET, ROOT
from hostile_test import FORBIDDEN, damage

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
ROUNDS = int(os.environ.get("HOSTILE_ROUNDS", "1"))
TIMEOUT_S = 120
LINES = 40
MB = 1000 * 1000
MODEL = {"model_type": "llama", "vocab_size": 320, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "rms_norm_eps": 1e-6, "max_position_embeddings": 256,
         "tie_word_embeddings": True, "hidden_act": "silu"}
LAYOUTS = {  # one example by its number
    "chat": lambda i: {"messages": [{"role": "user", "content": f"q{i} \u00e9"}, {"role": "assistant", "content": f"a{i}"}]},
    "turns": lambda i: {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": f"q{i}"},
                                     {"role": "assistant", "content": f"a{i}"}, {"role": "user", "content": "and?"},
                                     {"role": "assistant", "content": "\U0001f600"}]},
    "completion": lambda i: {"prompt": f"q{i}", "completion": f" a{i}"},
    "text": lambda i: {"text": f"text {i} of some words"},
    "preference": lambda i: {"prompt": f"q{i}", "chosen": f" yes{i}", "rejected": f" no{i}"},
    "unpaired": lambda i: {"prompt": f"q{i}", "completion": f" a{i}", "label": i % 2 == 0},
    "alpaca": lambda i: {"instruction": f"do {i}", "input": "", "output": f"done {i}"},
    "sharegpt": lambda i: {"conversations": [{"from": "human", "value": f"q{i}"}, {"from": "gpt", "value": f"a{i}"}]},
}
# name: (bytes of a line between good ones, a part of the reason it is named with)
BAD = {
    "wrong role": (b'{"messages":[{"role":"user","content":"q"},{"role":"robot","content":"a"}]}', "role 'robot'"),
    "role is a number": (b'{"messages":[{"role":1,"content":"q"},{"role":"assistant","content":"a"}]}', "role"),
    "empty answer": (b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":""}]}', "empty turn"),
    "empty question": (b'{"messages":[{"role":"user","content":""},{"role":"assistant","content":"a"}]}', "empty turn"),
    "blank answer": (b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":" \\n"}]}', "empty turn"),
    "no messages": (b'{"messages":[]}', "messages"),
    "null messages": (b'{"messages":null}', "messages"),
    "a text as messages": (b'{"messages":"hello"}', "messages"),
    "no content": (b'{"messages":[{"role":"user"},{"role":"assistant","content":"a"}]}', "content"),
    "a number as content": (b'{"messages":[{"role":"user","content":7},{"role":"assistant","content":"a"}]}', "content"),
    "escaped NUL": (b'{"messages":[{"role":"user","content":"q\\u0000"},{"role":"assistant","content":"a"}]}', "NUL"),
    "raw NUL": (b'{"messages":[{"role":"user","content":"q\0"},{"role":"assistant","content":"a"}]}', "JSON"),
    "NUL bytes": (b"\0" * 100, "JSON"),
    "bad UTF-8": (b'{"messages":[{"role":"user","content":"\xff\xfe"},{"role":"assistant","content":"a"}]}', "UTF-8"),
    "UTF-8 cut off": (b'{"messages":[{"role":"user","content":"\xf0\x9f"},{"role":"assistant","content":"a"}]}', "UTF-8"),
    "overlong UTF-8": (b'{"messages":[{"role":"user","content":"\xc0\xaf"},{"role":"assistant","content":"a"}]}', "UTF-8"),
    "half a surrogate": (b'{"messages":[{"role":"user","content":"\\ud800"},{"role":"assistant","content":"a"}]}', "JSON"),
    "key twice": (b'{"messages":[{"role":"user","content":"q","content":"r"},{"role":"assistant","content":"a"}]}', "twice"),
    "cut off": (b'{"messages":[{"role":"user","content":"q"},{"role":"assist', "JSON"),
    "two values": (b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]} {}', "JSON"),
    "a list": (b'[{"role":"user","content":"q"}]', "object"),
    "a number": (b"17", "object"),
    "deep lists": (b"[" * 100_000, "nested too deep"),
    "deep objects": (b'{"a":' * 100_000, "nested too deep"),
    "deep beside messages": (b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"x":'
                             + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deep"),
    "NaN": (b'{"messages":NaN}', "JSON"),
}


def line_of(value):
    return json.dumps(value, ensure_ascii=False).encode()


def is_json(line):
    def refuse(constant):
        raise ValueError(constant)
    try:
        json.loads(line.decode("utf-8"), parse_constant=refuse)
        return True
    except (ValueError, RecursionError):
        return False


class HostileData(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.tmp.cleanup)
        os.mkdir(cls.path("model"))
        with open(cls.path("model/config.json"), "w", encoding="utf-8") as f:
            json.dump(MODEL, f)
        with open(cls.path("words.txt"), "w", encoding="utf-8") as f:
            f.write("a few words, and some more words of a text\n" * 50)
        with open(cls.path("tok.yaml"), "w", encoding="utf-8") as f:
            json.dump({"model": {"config": MODEL}, "data": {"files": [cls.path("words.txt")], "dir": cls.path("data"),
                                                            "tokenizer": cls.path("model"), "vocab_size": 300}}, f)
        subprocess.run([HOCKET, "data", "train-tokenizer", cls.path("tok.yaml")], check=True, capture_output=True)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.tmp.name, name)

    def put(self, name, lines, end=b"\n"):
        with open(self.path(name), "wb") as f:
            f.write(b"\n".join(lines) + end)
        return self.path(name)

    def run_file(self, data, objective="sft", seq_len=256, **source):
        with open(self.path("run.yaml"), "w", encoding="utf-8") as f:
            json.dump({"objective": objective, "model": {"path": self.path("model"), "init": "random"},
                       "data": {"sources": [{"path": data, "max_unreadable": 1, **source}], "valid_fraction": 0, "packing": False,
                                "chat_template": os.path.join(ROOT, "configs/chatml.jinja"),
                                "tokenizer": self.path("model")},
                       "train": {"steps": 3, "global_batch": 4, "seq_len": seq_len, "lr": 1e-2},
                       "output": {"dir": self.path("out"), "report": False, "trace": False, "sample_tokens": 0}}, f)
        return self.path("run.yaml")

    def hocket(self, *words):
        """Returns exit code, outputs, and the peak RSS in MiB: of this process, which stays small, or the command's."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen([HOCKET, *words], stdout=out, stderr=err)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0), err.seek(0)
            said = err.read().decode(errors="replace")
            self.assertIn(process.returncode, (0, 1, 2), f"{words}: {said[-2000:]}")
            for word in FORBIDDEN:
                self.assertNotIn(word, said)
            return process.returncode, out.read(), said, usage.ru_maxrss / 1024

    def show(self, run):
        code, out, said, peak = self.hocket("data", "show", run, "--json", "-n", "1000000")
        return (json.loads(out) if code == 0 else None), said, peak

    def expect_counted(self, shown, lines, untouched):
        """Every line is an example, dropped, refused or unreadable; those untouched are examples."""
        source = shown["sources"][0]
        count = sum(bool(line.strip(b" \t\r\n\v\f")) for line in lines)
        self.assertEqual(count, source["examples"] + source["unreadable"], source)
        self.assertEqual(source["examples"], shown["examples"] + sum(shown["dropped"].values()) + source["refused"], shown["dropped"])
        self.assertEqual(min(source["unreadable"], 20), len(source["first_unreadable"]))
        places = {int(s["place"].rsplit(":", 1)[1]) for s in shown["shown"]}
        self.assertEqual(set(), untouched - places, "an undamaged line is lost")
        for number in places:
            self.assertTrue(is_json(lines[number - 1]), lines[number - 1])
        for text in source["first_unreadable"]:
            self.assertRegex(text, r"\.jsonl:\d+: ")

    def test_damaged_lines(self):
        refused = counted = 0
        for number in range(60 * ROUNDS):
            rng = random.Random(SEED * 1000 + number)
            layout = list(LAYOUTS)[number % len(LAYOUTS)]
            lines, untouched = [], set()
            for i in range(LINES):
                line = line_of(LAYOUTS[layout](i))
                if i > 0 and rng.random() < 0.3:
                    lines += damage(line, rng).split(b"\n")
                else:
                    lines.append(line)
                    untouched.add(len(lines))
            objective = {"preference": "dpo", "unpaired": "kto"}.get(layout, "sft")
            with self.subTest(layout=layout, seed=SEED, file=number):
                shown, said, _ = self.show(self.run_file(self.put("damaged.jsonl", lines), objective))
                if shown is None:
                    refused += 1
                    self.assertIn("damaged.jsonl", said)
                    continue
                counted += 1
                self.expect_counted(shown, lines, untouched)
        print(f"{counted} damaged files with every line counted, {refused} refused as a whole")
        self.assertGreater(counted, 40 * ROUNDS)

    def test_bad_lines_are_named(self):
        good = [line_of(LAYOUTS["chat"](i)) for i in range(8)]
        for name, (bad, reason) in BAD.items():
            with self.subTest(line=name):
                lines = good[:5] + [bad] + good[5:]
                shown, said, _ = self.show(self.run_file(self.put("bad.jsonl", lines)))
                self.assertIsNotNone(shown, said)
                self.expect_counted(shown, lines, set(range(1, 10)) - {6})
                first, = shown["sources"][0]["first_unreadable"]
                self.assertIn("bad.jsonl:6: ", first)
                self.assertIn(reason, first)
                # Above the share it is refused, and named too.
                code, _, said, _ = self.hocket("train", self.run_file(self.path("bad.jsonl"), max_unreadable=0.01))
                self.assertEqual(2, code)
                self.assertIn("bad.jsonl:6: ", said)

    def losses(self, data):
        """Returns the losses of a training, what it printed, and its peak RSS in MiB."""
        shutil.rmtree(self.path("out"), ignore_errors=True)
        code, out, said, peak = self.hocket("train", self.run_file(data))
        self.assertEqual(0, code, said[-1500:])
        with open(self.path("out/metrics.jsonl"), encoding="utf-8") as f:
            return [row["train/loss"] for row in map(json.loads, f) if "train/loss" in row], out.decode(errors="replace"), peak

    def test_training_is_that_of_the_readable_lines(self):
        good = [line_of(LAYOUTS["chat"](i)) for i in range(30)]
        bad = [line for line, _ in BAD.values()]
        mixed = [line for pair in zip(good, bad) for line in pair] + good[len(bad):]
        want, _, _ = self.losses(self.put("good.jsonl", good))
        got, said, _ = self.losses(self.put("mixed.jsonl", mixed))
        self.assertEqual(3, len(want))
        self.assertEqual(want, got)
        self.assertIn(f"{len(bad)} examples could not be read", said)

    def put_with_long_line(self, name, begin, unit, megabytes, end, opened=open):
        """A file of good lines around a long one, written in parts."""
        with opened(self.path(name), "wb") as f:
            for i in range(50):
                f.write(line_of(LAYOUTS["chat"](i)) + b"\n")
            f.write(begin)
            part = unit * (MB // len(unit))
            for _ in range(megabytes):
                f.write(part)
            f.write(end + b"\n")
            for i in range(50, 100):
                f.write(line_of(LAYOUTS["chat"](i)) + b"\n")
        return self.path(name)

    def test_lines_of_100_mb(self):
        chat = b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"', b"ab c", b'"}]}'
        lines = {"chat": chat, "brackets": (b"", b"[", b""), "NUL": (b"", b"\0", b""), "bad UTF-8": (b'{"text":"', b"\xff", b'"}'),
                 "blanks in JSON": (b'{"messages":', b" ", b"[]}")}
        want, _, plain = self.losses(self.put("plain.jsonl", [line_of(LAYOUTS["chat"](i)) for i in range(100)]))
        for name, (begin, unit, end) in lines.items():
            for opened, ending in ((open, ""), (lambda path, mode: gzip.open(path, mode, 1), ".gz")):
                with self.subTest(line=name, ending=ending):
                    data = self.put_with_long_line("long.jsonl" + ending, begin, unit, 100, end, opened)
                    shown, said, peak = self.show(self.run_file(data))
                    self.assertIsNotNone(shown, said)
                    source = shown["sources"][0]
                    self.assertEqual((100, 1), (source["examples"], source["unreadable"]))
                    self.assertIn(":51: it has more than 33554432 bytes (max_example_bytes)", source["first_unreadable"][0])
                    self.assertLess(peak, 128)
                    got, said, of_train = self.losses(data)
                    self.assertEqual(want, got)
                    self.assertIn("1 example could not be read", said)
                    self.assertLess(of_train, plain + 128)
                    print(f"100 MB of {name}{ending}: data show {peak:.0f} MiB, train {of_train:.0f} MiB "
                          f"({plain:.0f} without the line)", flush=True)


if __name__ == "__main__":
    unittest.main()
