#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
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
                pairs = "preference" in name
                for length in cases.LENGTHS:
                    want = lists[f"{name}, {length}"]
                    # A row holds both answers of a pair.
                    shown = self.show(tokenizer, examples, length * (2 if pairs else 1), cases.BLOCKS)
                    got = cases.by_example(shown, len(examples))
                    for i, example in enumerate(examples):
                        with self.subTest(tokenizer=tokenizer, set=name, length=length, example=i):
                            expected = self.expected(name, want, i, got[i], length)
                            self.assertEqual(expected, got[i])
                            compared += bool(got[i])
        print(f"{compared} examples equal")
        self.assertGreater(compared, 150)

    def expected(self, name, want, i, got, length):
        """TRL's sequences of an example. It leaves out by the prompt's length what we leave out by the trained tokens."""
        if isinstance(want[0], str) or name in ("text", "chat", "completion", "chat completion"):
            return [] if isinstance(want[i], str) else want[i]
        whole = want[i]
        if not got:
            self.assertTrue(any(1 not in mask[1:] for _, mask in whole))
            return []
        if "preference" in name and len(got[0][0]) + len(got[1][0]) > 2 * length - 1:
            # Where the other answer is short, more of the longer one fits than half of the row.
            return [[g[0], g[1]] if w[0] == g[0][:len(w[0])] and w[1] == g[1][:len(w[1])] else w
                    for w, g in zip(whole, got)]
        return whole

    def test_mismatched_completions(self):
        for tokenizer, lists in self.held["own"].items():
            for name in ("unpaired", "chat unpaired"):
                shown = self.show(tokenizer, cases.SETS[name], 4096, cases.BLOCKS)
                got = cases.by_example({"shown": shown["mismatched"]}, len(cases.SETS[name]))
                self.assertEqual(lists[f"{name}, 4096, mismatched"], got)

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
                    got = cases.by_example(self.show(tokenizer, examples, length, text), len(examples))
                    for chat, sequences in zip(cases.CHATS, got):
                        want = masks[f"{chat}, {length}"]
                        found = hash_of(sequences)
                        if want.startswith("refused") and not sequences:
                            refused += 1
                        elif want == found:
                            equal += 1
                        else:
                            unequal.append(f"{name}, {tokenizer}, {chat}, {length}: {len(sequences)} sequences; {want}")
        print(f"{equal} equal, {refused} refused by both, {len(unequal)} unequal")
        self.assertEqual([], unequal)


if __name__ == "__main__":
    unittest.main()
