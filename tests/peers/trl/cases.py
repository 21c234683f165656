# SPDX-License-Identifier: Apache-2.0
"""Examples whose masks are compared with TRL's, our templates for them, and runs of `hocket data show` on them."""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests/peers/chat_templates")]
from chats import TOOLS, assistant, call, system, user  # noqa: E402

HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"), "hocket")
LENGTHS = [4096, 96, 24]  # of rows: whole examples, truncated ones, some without a trained token
MANY = 1 << 20


def tool(number, name, content):
    return {"role": "tool", "tool_call_id": number, "name": name, "content": content}


WEATHER = {"city": "Köln", "days": 2, "f": 1.5, "b": True, "l": [1, "x"]}
# name: (messages, whether tools are offered)
CHATS = {
    "one turn": ([user("Hi <there> & 'you' — ok? \n"), assistant("Yes, \"I\" am.  ")], False),
    "system": ([system("Be brief.  "), user("What is 2+2?"), assistant("4"), user(" And 3+3? "), assistant("\n\n6 😀")], False),
    "several turns": ([user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c"), assistant("d"), user("e"),
                       assistant(" f "), user("g"), assistant("A longer answer, which goes on: " + "and on " * 30)], False),
    "tools": ([system("S"), user("Weather in Köln?"),
               {"role": "assistant", "content": "Let me see.", "tool_calls": [call("abcdefghi", "get_weather", WEATHER)]},
               tool("abcdefghi", "get_weather", "12 °C"), assistant("12 °C in Köln."), user("thanks"),
               assistant("You are welcome.")], True),
    "calls without text": ([user("Go"),
                            {"role": "assistant", "content": "", "reasoning_content": "I should call.", "tool_calls": [
                                call("abcdefghi", "noop", {})]},
                            tool("abcdefghi", "noop", "{\"r\": 1}"), assistant("done")], True),
    "list content": ([system([{"type": "text", "text": "Sys"}]),
                      user([{"type": "text", "text": "Look: "}, {"type": "text", "text": "and?"}]),
                      assistant([{"type": "text", "text": "A cat."}])], False),
}
# Templates of our own, for what is compared without the wheel.
BLOCKS = (ROOT / "configs/chatml.jinja").read_text(encoding="utf-8")
TALK = [
    {"messages": [user("Say yes."), assistant("Yes.")]},
    {"messages": [system("You count."), user("1"), assistant("2"), user("3"), assistant("4 and 5 and 6")]},
    {"messages": [user("bc\n"), assistant("\n\nbegins with lines  ")]},
    {"messages": [user("A very long question: " + "why " * 60), assistant("Because.")]},
    {"messages": [user("x"), assistant("n"), user("y"), assistant("z " * 40)]},
    {"messages": [user("Größe — 😀?"), assistant("日本 — 😀")]},
]
TEXTS = [{"text": "A text."}, {"text": "Ends already.<|im_end|>"}, {"text": "long " * 50}, {"text": "日本 <s> x"}]
ANSWERS = [{"prompt": "Q: 1+1?\nA:", "completion": " 2"}, {"prompt": "the tok", "completion": "enizer joins"},
           {"prompt": "ends ", "completion": " with blanks  "}, {"prompt": "p " * 30, "completion": "c " * 30},
           {"prompt": "done", "completion": "!<|im_end|>"}]
CHAT_ANSWERS = [{"prompt": t["messages"][:-1], "completion": t["messages"][-1:]} for t in TALK]
PAIRS = [{"prompt": a["prompt"], "chosen": a["completion"], "rejected": " no" + a["completion"][:5]} for a in ANSWERS]
CHAT_PAIRS = [{"prompt": a["prompt"], "chosen": a["completion"], "rejected": [assistant("No " + "no" * i)]}
              for i, a in enumerate(CHAT_ANSWERS)]
UNPAIRED = [dict(a, label=i % 2 == 0) for i, a in enumerate(ANSWERS)]
CHAT_UNPAIRED = [dict(a, label=i % 3 == 0) for i, a in enumerate(CHAT_ANSWERS)]
SETS = {"chat": TALK, "text": TEXTS, "completion": ANSWERS, "chat completion": CHAT_ANSWERS, "preference": PAIRS,
        "chat preference": CHAT_PAIRS, "unpaired": UNPAIRED, "chat unpaired": CHAT_UNPAIRED}


def write_lines(path, examples):
    with open(path, "w", encoding="utf-8") as f:
        for example in examples:
            f.write(json.dumps(example, ensure_ascii=False) + "\n")


def show(folder, tokenizer, examples, length, template=None, packing=False):
    """JSON of `hocket data show`; None if no example can be used, or none has a trained token."""
    data = os.path.join(folder, "examples.jsonl")
    write_lines(data, examples)
    section = {"sources": [{"path": data, "max_unreadable": 1}], "valid_fraction": 0, "packing": packing, "split_texts": False}
    if template is not None:
        section["chat_template"] = os.path.join(folder, "template.jinja")
        with open(section["chat_template"], "w", encoding="utf-8", newline="") as f:
            f.write(template)
    run = os.path.join(folder, "run.yaml")
    with open(run, "w", encoding="utf-8") as f:
        json.dump({"model": {"path": str(tokenizer)}, "data": section, "train": {"seq_len": length}}, f)
    done = subprocess.run([HOCKET, "data", "show", run, "--json", "-n", str(MANY)], capture_output=True, check=False)
    if done.returncode == 2 and (b"no trained token" in done.stderr or b" cannot be used" in done.stderr):
        return None
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode()}")
    return json.loads(done.stdout)


def sequences(shown, key="shown"):
    """[ids, trained] of every sequence, in the order of the examples' lines."""
    found = sorted(shown[key] if shown else [], key=lambda sequence: int(sequence["place"].rsplit(":", 1)[1]))
    return [[sequence["ids"], sequence["trained"]] for sequence in found]
