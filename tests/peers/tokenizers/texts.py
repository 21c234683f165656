# SPDX-License-Identifier: Apache-2.0
"""Texts to compare tokenizers on: code, prose and catalogues of translations of this machine, and random strings."""
import gettext
import glob
import os
import random
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "parity"))
from tokenizer_parity import MIXED, random_string  # noqa: E402

LANGUAGES = ["en_GB", "fr", "de", "ru", "uk", "zh_CN", "zh_TW", "ja", "ko", "ar", "he", "hi", "th", "el", "vi", "ta", "ka", "bn"]
ADDED = ["x <s> y</s>", "<bos>a<eos> b", "<|im_start|>user\nhi<|im_end|>", " <unk>", "<s", "\n\n\n  \t\t x", " a", "  a",
         "a\x1db \x00\x04!\x1d!", "▁", "▁▁a ▁", "<0x41>", "e\u0301<s>e\u0301", "\ufeffbom"]


def files(pattern, limit, each=60_000):
    """Beginnings of the files of a pattern in UTF-8, together about `limit` bytes."""
    out, size = [], 0
    for path in sorted(glob.glob(pattern, recursive=True)):
        if size > limit or not os.path.isfile(path):
            continue
        try:
            with open(path, encoding="utf-8") as f:
                text = f.read(each)
        except UnicodeDecodeError:
            continue
        if len(text) > 500 and "\0" not in text:
            out.append(text)
            size += len(text.encode())
    return out


def translations(language, limit=100_000, each=20_000):
    out, size = [], 0
    for path in sorted(glob.glob(f"/usr/share/locale/{language}/LC_MESSAGES/*.mo")):
        if size > limit:
            break
        try:
            with open(path, "rb") as f:
                catalogue = gettext.GNUTranslations(f)._catalog
        except (OSError, UnicodeDecodeError, ValueError):
            continue
        text = "\n".join(value for key, value in catalogue.items() if key and isinstance(value, str))[:each]
        if len(text) > 1000:
            out.append(text)
            size += len(text.encode())
    return out


def corpus():
    """At least 2 MB where the machine has documents and translations."""
    out = files(ROOT + "/src/**/*.cc", 500_000) + files(ROOT + "/docs/*.md", 300_000) + files(ROOT + "/tools/*.py", 200_000)
    out += files("/usr/lib/python3/**/*.py", 500_000) + files("/usr/include/c++/**/*.h", 300_000)
    out += files("/usr/share/doc/**/*.txt", 400_000) + files("/usr/share/doc/**/README*", 300_000)
    for language in LANGUAGES:
        out += translations(language)
    return out


def strings(count, seed=1):
    """Random strings of one seed; none is empty."""
    rng = random.Random(seed)
    return [text for text in (random_string(rng) for _ in range(count)) if text]


def all_texts(count):
    return corpus() + [text for text in MIXED + ADDED if text] + strings(count)
