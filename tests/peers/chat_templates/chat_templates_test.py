#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
# ctest: timeout=1800
"""Hocket renders the chat templates of TRL and Axolotl to the text and the generation spans whose hashes make.py wrote
with transformers, or refuses them as transformers does. The templates are those that `./test peers` unpacked."""
import hashlib
import json
import os
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"), "hocket")
WHEELS = ROOT / ".venv-peers/chat_templates/wheels"
sys.path[:0] = [str(HERE), str(ROOT / "tests/parity")]
from chat_templates import Ours  # noqa: E402
from chats import CHATS, TOOLS, VARIABLES  # noqa: E402


def hash_of(value):
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


class ChatTemplates(unittest.TestCase):
    def test_every_template_of_the_wheels(self):
        with open(HERE / "fixtures/hashes.json", encoding="utf-8") as f:
            held = json.load(f)["templates"]
        self.assertGreater(len(held), 100)
        if not WHEELS.is_dir():
            self.skipTest("no templates in .venv-peers/chat_templates/wheels; try ./test peers chat_templates")
        equal = refused = 0
        unequal = []
        with tempfile.TemporaryDirectory() as folder:
            ours = Ours(HOCKET, folder)
            for name, want in held.items():
                text = (WHEELS / name).read_text(encoding="utf-8")
                self.assertEqual(want["template"], hash_of(text), f"{name}: another template; try ./test peers")
                for chat, (messages, with_tools) in CHATS.items():
                    for prompt in (False, True):
                        wanted = want["results"][f"{chat}{', prompt' if prompt else ''}"]
                        got = ours.render(text, messages, TOOLS if with_tools else None, prompt, **VARIABLES)
                        found = "refused" if "error" in got else hash_of(got)
                        if found != wanted:
                            unequal.append(f"{name}, {chat}, prompt {prompt}: {got.get('error', 'another text or spans')}")
                        equal += found == wanted != "refused"
                        refused += found == wanted == "refused"
        print(f"{equal} equal, {refused} refused by both, {len(unequal)} unequal")
        self.assertEqual([], unequal)


if __name__ == "__main__":
    unittest.main()
