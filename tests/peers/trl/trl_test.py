#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=1800
"""Masks of `hocket data show` are TRL's, token by token, as make.py wrote them: of our own examples with a template of
ours, and of every training template in TRL's wheel, which `./test peers` puts into .venv-peers/trl/templates."""
import hashlib
import json
import tempfile
import unittest

import cases

FIXTURES = cases.HERE / "fixtures"
TEMPLATES = cases.ROOT / ".venv-peers/trl/templates"


def hash_of(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


class Masks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(FIXTURES / "masks.json", encoding="utf-8") as f:
            cls.held = json.load(f)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def show(self, tokenizer, examples, length, template, packing=False):
        return cases.show(self.folder.name, FIXTURES / tokenizer, examples, length, template, packing)

    def test_our_examples(self):
        compared = 0
        for tokenizer, lists in self.held["own"].items():
            for name, examples in cases.SETS.items():
                pair = "preference" in name
                for length in cases.LENGTHS:
                    for i, example in enumerate(examples):
                        with self.subTest(tokenizer=tokenizer, set=name, length=length, example=i):
                            want = lists[f"{name}, {length}"][i]
                            # A row holds both answers of a pair.
                            got = cases.sequences(self.show(tokenizer, [example], length * (2 if pair else 1), cases.BLOCKS))
                            self.assertEqual(self.expected(want, got, length), got)
                            compared += bool(got)
        print(f"{compared} examples equal")
        self.assertGreater(compared, 150)

    def expected(self, want, got, length):
        """TRL's sequences, in the cases where we leave an example out or a pair has more room than TRL gives it."""
        if isinstance(want, str):
            return []
        if want and not got:
            self.assertTrue(any(1 not in mask for _, mask in want), "an example with trained tokens is left out")
            return []
        if len(want) == 2:
            # Where the other answer is short, more of the longer one fits than half of the row.
            return [g if w == [part[:len(w[0])] for part in g] else w for w, g in zip(want, got)]
        return want

    def test_mismatched_completions(self):
        for tokenizer, lists in self.held["own"].items():
            for name in ("unpaired", "chat unpaired"):
                shown = self.show(tokenizer, cases.SETS[name], 4096, cases.BLOCKS)
                self.assertEqual([each for example in lists[f"{name}, 4096, mismatched"] for each in example],
                                 cases.sequences(shown, "mismatched"))

    def test_packed_rows(self):
        for tokenizer, rows in self.held["rows"].items():
            examples = (cases.SETS["text"] + [{"text": a["prompt"] + a["completion"]} for a in cases.SETS["completion"]]) * 3
            for length, want in rows.items():
                shown = self.show(tokenizer, examples, int(length), cases.BLOCKS, packing=True)
                got = {}
                for sequence in shown["shown"]:
                    got.setdefault(sequence["row"], []).append(len(sequence["ids"]))
                    self.assertEqual(list(range(len(sequence["ids"]))), sequence["positions"])
                self.assertEqual(want, sorted(sorted(lengths) for lengths in got.values()))

    def test_every_training_template_of_the_wheel(self):
        self.assertGreater(len(self.held["templates"]), 25)
        if not TEMPLATES.is_dir():
            self.skipTest("no templates in .venv-peers/trl/templates; try ./test peers trl")
        examples = [{"messages": messages, **({"tools": cases.TOOLS} if with_tools else {})}
                    for messages, with_tools in cases.CHATS.values()]
        equal = refused = 0
        unequal = []
        for name, held in self.held["templates"].items():
            text = (TEMPLATES / name).read_text(encoding="utf-8")
            self.assertEqual(held["template"], hash_of(text), f"{name}: another template; try ./test peers trl")
            for tokenizer, masks in held["masks"].items():
                for length in cases.LENGTHS:
                    for chat, example in zip(cases.CHATS, examples):
                        want = masks[f"{chat}, {length}"]
                        got = cases.sequences(self.show(tokenizer, [example], length, text))
                        if want.startswith("refused") and not got:
                            refused += 1
                        elif want == hash_of(got):
                            equal += 1
                        else:
                            unequal.append(f"{name}, {tokenizer}, {chat}, {length}: {len(got)} sequences; TRL: {want}")
        print(f"{equal} equal, {refused} refused by both, {len(unequal)} unequal")
        self.assertEqual([], unequal)


if __name__ == "__main__":
    unittest.main()
