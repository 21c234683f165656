#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hocket data show`: trained tokens marked in a pipe and coloured on a terminal, counts, JSON, run.yaml, refusals."""
import json
import os
import pty
import struct
import subprocess
import tempfile
import unittest

import cli_util

TOKENIZER = os.path.join(cli_util.ROOT, "tests/peers/trl/fixtures/bytes")
TEMPLATE = os.path.join(cli_util.ROOT, "configs/chatml.jinja")
SAMPLE = os.path.join(cli_util.ROOT, "configs/chat-sample.jsonl")


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


class DataShow(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def lines(self, name, *examples):
        with open(self.path(name), "w", encoding="utf-8") as f:
            for example in examples:
                f.write((example if isinstance(example, str) else json.dumps(example)) + "\n")
        return self.path(name)

    def show(self, *words, code=0):
        done = subprocess.run([cli_util.HOCKET, "data", "show", *words], capture_output=True, check=False, cwd=self.folder)
        self.assertEqual(code, done.returncode, done.stderr.decode())
        return (done.stderr if code else done.stdout).decode()

    def with_model(self, *words, **more):
        return self.show(*words, "--model", TOKENIZER, "--chat-template", TEMPLATE, **more)

    def test_marks_and_counts(self):
        data = self.lines("a.jsonl", {"messages": [user("Why?"), assistant("So."), user("Sure?"), assistant("Yes.")]},
                          {"messages": [user("No answer")]},
                          {"messages": [user("Why?"), assistant("Because.", training=False)]})
        text = self.with_model(data)
        self.assertIn("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n⟦So.<|im_end|>⟧\n"
                      "<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n⟦Yes.<|im_end|>⟧\n", text)
        self.assertIn("training: 1 example, ", text)
        self.assertRegex(text, rf"left out: 2 examples without a trained token\n  {data}:2: \d+ tokens\n  {data}:3: \d+ tokens\n")
        self.assertNotIn("\x1b", text)

    def test_names_examples_that_are_cut_or_left_out(self):
        short, long = [user("a"), assistant("b")], [user("a"), assistant("b" * 90)]
        away = [user("a" * 90), assistant("b")]
        data = self.lines("a.jsonl", *({"messages": messages} for messages in (short, long, away, short, [user("a")])))
        size = {line: len(shown["ids"]) for line, shown in (
            (int(s["place"].rsplit(":", 1)[1]), s) for s in json.loads(self.with_model(data, "-n", "9", "--json"))["shown"])}
        out = json.loads(self.with_model(data, "--seq-len", "80", "--json"))
        self.assertEqual([f"{data}:2: {size[2]} tokens"], out["first_truncated"])
        self.assertEqual([f"{data}:3: {size[3]} tokens"], out["first_dropped"]["cut_away"])
        self.assertEqual(1, len(out["first_dropped"]["untrained"]))
        self.assertTrue(out["first_dropped"]["untrained"][0].startswith(f"{data}:5: "))
        text = self.with_model(data, "--seq-len", "80")
        self.assertIn(f"truncated to 80 tokens: 1 example, which lose {size[2] - 80} tokens\n  {data}:2: ", text)
        self.assertIn(f"left out: 1 example with all trained tokens cut off\n  {data}:3: ", text)
        text = self.with_model(data, "--seq-len", "80", "--truncate", "drop")
        self.assertIn(f"left out: 2 examples longer than a row\n  {data}:2: {size[2]} tokens\n  {data}:3: ", text)

    def test_token_files_have_no_columns(self):
        with open(self.path("m.bin"), "wb") as f:
            f.write(struct.pack("<6i", *range(97, 103)))
        with open(self.path("m.idx"), "wb") as f:
            f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 2, 3) + struct.pack("<2i", 3, 3) +
                    struct.pack("<2q", 0, 12) + struct.pack("<3q", 0, 1, 2))
        self.assertIn("m.idx: 1 file, 2 examples\n", self.with_model(self.path("m.idx"), "-n", "0"))

    def test_long_texts_become_parts(self):
        data = self.lines("a.jsonl", {"text": "0123456789" * 5}, {"text": "short"})
        out = json.loads(self.with_model(data, "--seq-len", "16", "--json", "-n", "100"))
        self.assertEqual((1, 0), (out["split_texts"], out["truncated"]))
        parts = [x for x in out["shown"] if x["place"].startswith(data + ":1")]
        self.assertEqual(out["split_parts"], len(parts))
        parts.sort(key=lambda x: int(x["place"].rpartition(" from token ")[2] if " from " in x["place"] else 0))
        whole = "".join(text for x in parts for text in x["texts"])
        self.assertTrue(whole.startswith("0123456789" * 5), whole)
        whole_text, short = ([x["ids"] for x in json.loads(self.with_model(data, "--json"))["shown"]])
        self.assertEqual(len(whole_text) - 1 + len(short) - 1, out["trained_tokens"])
        self.assertIn("longer than 16 tokens: 1 text, in ", self.with_model(data, "--seq-len", "16"))
        self.assertIn("truncated to 16 tokens: 0 examples", self.with_model(data, "--seq-len", "16"))

    def test_colour_on_a_terminal(self):
        data = self.lines("a.jsonl", {"messages": [user("a \x1b[31m b"), assistant("So.")]})
        command = [cli_util.HOCKET, "data", "show", data, "--model", TOKENIZER, "--chat-template", TEMPLATE]

        def on_terminal(**environment):
            leader, follower = pty.openpty()
            done = subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, env=dict(os.environ, **environment))
            os.close(follower)
            out = b""
            while True:
                try:
                    part = os.read(leader, 1 << 16)
                except OSError:  # the other end is closed
                    break
                if not part:
                    break
                out += part
            os.close(leader)
            self.assertEqual(0, done.wait(), done.stderr.read())
            done.stderr.close()
            return out.decode()

        text = on_terminal()
        self.assertIn("\x1b[32mSo.<|im_end|>\x1b[0m", text)
        self.assertNotIn("\x1b[31m", text)  # of the data, which acts on no terminal
        self.assertIn("⟦So.<|im_end|>⟧", on_terminal(NO_COLOR="1"))

    def test_json_is_what_training_gets(self):
        shown = json.loads(self.with_model(SAMPLE, "--seq-len", "200", "-n", "100", "--json"))
        self.assertEqual(6, shown["examples"])
        self.assertEqual(sum(len(s["ids"]) for s in shown["shown"]), shown["tokens"])
        self.assertEqual(sum(sum(s["trained"]) for s in shown["shown"]), shown["trained_tokens"])
        rows = {}
        for sequence in shown["shown"]:
            rows.setdefault(sequence["row"], []).append(len(sequence["ids"]))
            self.assertEqual(list(range(len(sequence["ids"]))), sequence["positions"])
            self.assertEqual(len(sequence["ids"]), len(sequence["texts"]))
        self.assertEqual(shown["rows"], len(rows))
        self.assertTrue(all(sum(lengths) <= 200 for lengths in rows.values()))
        self.assertEqual(shown["efficiency"], shown["tokens"] / (200 * shown["rows"]))
        self.assertEqual(6, sum(bucket["examples"] for bucket in shown["lengths"]["histogram"]))
        again = json.loads(self.with_model(SAMPLE, "--seq-len", "200", "-n", "100", "--json", "--seed", "9", "--no-packing"))
        self.assertEqual(6, again["rows"])
        key = lambda s: (s["place"], s["ids"], s["trained"])
        self.assertEqual(sorted(map(key, shown["shown"])), sorted(map(key, again["shown"])))

    def test_a_run(self):
        data = self.lines("a.jsonl", *({"messages": [user(f"Question {i}"), assistant(f"Answer {i}")]} for i in range(40)))
        run = self.path("run.yaml")
        with open(run, "w", encoding="utf-8") as f:
            json.dump({"model": {"path": TOKENIZER}, "train": {"seq_len": 64, "seed": 3},
                       "data": {"sources": [{"path": data}], "chat_template": TEMPLATE, "valid_fraction": 0.2}}, f)
        sides = [json.loads(self.show(run, "--json", "-n", "1000", "--split", split)) for split in ("train", "valid")]
        places = [{s["place"] for s in side["shown"]} for side in sides]
        self.assertEqual(40, len(places[0] | places[1]))
        self.assertFalse(places[0] & places[1])
        self.assertTrue(places[1])
        # Held-out examples come in their order.
        numbers = [int(s["place"].rsplit(":", 1)[1]) for s in json.loads(
            self.show(run, "--json", "-n", "1000", "--split", "valid", "--set", "data.packing=false"))["shown"]]
        self.assertEqual(sorted(numbers), numbers)
        self.assertIn("no data.sources", self.show(run, "--set", "data.sources=[]", code=2))
        # The model's own tokenizer reads the examples: another is refused, and not left aside.
        self.show(run, "--set", f"data.tokenizer={TOKENIZER}/tokenizer.json")
        other = self.path("other.json")
        with open(os.path.join(TOKENIZER, "tokenizer.json"), encoding="utf-8") as f:
            changed = json.load(f)
        changed["model"]["merges"].pop()
        with open(other, "w", encoding="utf-8") as f:
            json.dump(changed, f)
        self.assertIn("leave data.tokenizer out", self.show(run, "--set", f"data.tokenizer={other}", code=2))

    def test_answers_as_their_objective_reads_them(self):
        pairs = self.lines("pairs.jsonl", *({"prompt": f"Q{i}", "chosen": "yes", "rejected": "no"} for i in range(6)))
        run = self.path("run.yaml")

        def shown(objective, most):
            with open(run, "w", encoding="utf-8") as f:
                json.dump({"objective": objective, "model": {"path": TOKENIZER}, "train": {"seq_len": 512},
                           "preference": {"answers_per_sequence": most}, "data": {"sources": [{"path": pairs}], "valid_fraction": 0}}, f)
            return json.loads(self.show(run, "--json", "-n", "100"))

        self.assertEqual([(6, 3), (6, 1)], [(out["examples"], out["rows"]) for out in (shown("dpo", 2), shown("dpo", 6))])
        judged = shown("kto", 4)
        self.assertEqual((12, 3), (judged["examples"], judged["rows"]))
        self.assertEqual({"desirable": 6, "undesirable": 6},
                         {part: sum(s["part"] == part for s in judged["shown"]) for part in ("desirable", "undesirable")})

    def test_text_parts_under_a_template_of_strings(self):
        part = lambda text: {"type": "text", "text": text}
        data = self.lines("a.jsonl", {"messages": [user([part("Why"), part("so?")]), assistant([part("So.")])]})
        self.assertIn("<|im_start|>user\nWhy\nso?<|im_end|>\n<|im_start|>assistant\n⟦So.<|im_end|>⟧\n", self.with_model(data))

    def test_texts_that_the_template_leaves_out(self):
        template = self.path("two.jinja")
        with open(template, "w", encoding="utf-8") as f:
            f.write("{% for m in messages if m.role != 'developer' %}<|im_start|>{{ m.role }}\n{% generation %}{{ m.content|trim }}"
                    "<|im_end|>{% endgeneration %}\n{% endfor %}")
        developer = {"role": "developer", "content": "Be brief."}
        data = self.lines("a.jsonl", {"messages": [user(" Why? "), assistant("So.")]},
                          {"messages": [developer, user("Why?"), assistant("So.")]},
                          {"messages": [developer, user("Why?"), assistant("So.", function_call={"name": "f_1", "arguments": "{}"})]})
        words = (data, "--model", TOKENIZER, "--chat-template", template)
        text = self.show(*words)
        self.assertIn(f"warning: 2 examples with messages of role 'developer' that the template leaves out (the first: {data}:2)", text)
        self.assertIn(f"warning: 1 example with function_call of role 'assistant' that the template leaves out (the first: {data}:3)",
                      text)
        self.assertEqual({"examples": 2, "first": data + ":2"},
                         json.loads(self.show(*words, "--json"))["sources"][0]["left_out_by_template"]["messages of role 'developer'"])
        self.assertNotIn("leaves out", self.with_model(SAMPLE))

    def test_labels_are_counted(self):
        def judged(*labels):
            return self.lines("a.jsonl", *({"prompt": f"Q{i}", "completion": "A", "label": label} for i, label in enumerate(labels)))

        text = self.with_model(judged(True, True, False))
        self.assertIn("labels: 2 desirable, 1 undesirable\n", text)
        self.assertIn("out of balance; expected a preference.desirable_weight of 0.5 to 0.67, or", text)
        self.assertIn("warning: no example is undesirable; ", self.with_model(judged(True, True)))
        run = self.path("run.yaml")
        with open(run, "w", encoding="utf-8") as f:
            json.dump({"objective": "kto", "model": {"path": TOKENIZER}, "train": {"seq_len": 64},
                       "preference": {"desirable_weight": 0.6},
                       "data": {"sources": [{"path": judged(True, True, False)}], "valid_fraction": 0}}, f)
        self.assertEqual({"desirable": 2, "undesirable": 1, "warning": ""}, json.loads(self.show(run, "--json"))["labels"])

    def test_a_mixture(self):
        sources = [{"path": self.lines(f"{n}.jsonl", *({"text": f"{n} {i}"} for i in range(8 * n))), "weight": 1} for n in (1, 3)]
        run = self.path("run.yaml")
        with open(run, "w", encoding="utf-8") as f:
            json.dump({"model": {"path": TOKENIZER}, "train": {"seq_len": 16},
                       "data": {"sources": sources, "valid_fraction": 0, "packing": False}}, f)
        shown = json.loads(self.show(run, "--json", "-n", "32"))
        self.assertEqual([2, 16 / 24], [source["epochs"] for source in shown["sources"]])
        self.assertEqual(16, sum("/1.jsonl:" in s["place"] for s in shown["shown"]))
        self.assertIn("1.jsonl is seen 2 times", self.show(run))
        # A source of weight 0 is left out of what is held out, too.
        left_out = f"data.sources=[{{path: {sources[0]['path']}, weight: 1}}, {{path: {sources[1]['path']}, weight: 0}}]"
        held = json.loads(self.show(run, "--json", "-n", "100", "--split", "valid", "--set", "data.valid_fraction=0.5", "--set", left_out))
        self.assertTrue(held["shown"])
        self.assertFalse([s["place"] for s in held["shown"] if "/3.jsonl:" in s["place"]])
        self.assertIn("have a weight", self.show(run, "--set", "data.sources=[{path: 1.jsonl, weight: 1}, {path: 3.jsonl}]", code=2))

    def test_refusals(self):
        chat = self.lines("chat.jsonl", {"messages": [user("a"), assistant("b")]})
        none = self.lines("none.jsonl", {"messages": [user("a")]})
        self.assertIn("no trained token in 1 example: 1 without any", self.with_model(none, code=2))
        self.assertIn("lose them to rows of 4", self.with_model(chat, "--seq-len", "4", code=2))
        self.assertIn("chat.jsonl:1] ", self.with_model(chat, "--seq-len", "4", "--truncate", "refuse", code=2))
        self.assertIn("data.chat_template", self.show(chat, "--model", TOKENIZER, code=2))
        self.assertIn("try --model", self.show(chat, code=2))
        self.assertIn("expected assistant, last, all", self.with_model(chat, "--train-on", "user", code=2))
        self.assertIn("no example is held out", self.with_model(chat, "--split", "valid", code=2))
        pair = self.lines("pair.jsonl", {"prompt": "p", "chosen": "c", "rejected": "r"})
        self.assertIn("expected one of them", self.with_model(chat, pair, code=2))
        many = self.lines("many.jsonl", {"messages": [user("a"), assistant("b")]},
                          {"messages": [user("a"), assistant("b", weight=0.5)]})
        self.assertIn("weight is 0.5; expected 0 or 1", self.with_model(many, code=2))

    def test_every_kind(self):
        for name, example, parts in [
                ("text", {"text": "abc"}, [None]),
                ("completion", {"prompt": "Q", "completion": "A"}, [None]),
                ("preference", {"prompt": "Q", "chosen": "yes", "rejected": "no"}, ["chosen", "rejected"]),
                ("unpaired", {"prompt": "Q", "completion": "A", "label": False}, ["undesirable"])]:
            shown = json.loads(self.with_model(self.lines(name + ".jsonl", example), "--json"))
            self.assertEqual(parts, [s.get("part") for s in shown["shown"]])
            self.assertTrue(all(any(s["trained"]) for s in shown["shown"]), name)
            self.assertEqual("<|im_end|>", shown["shown"][0]["texts"][-1])


if __name__ == "__main__":
    unittest.main()
