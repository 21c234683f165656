# SPDX-License-Identifier: Apache-2.0
"""Chat templates as transformers renders them, and as `hocket data chat-template` does."""
import functools
import json
import os
import subprocess


@functools.lru_cache
def transformers():
    """The module of transformers that renders; Hocket alone needs none."""
    from transformers.utils import chat_template_utils, logging
    logging.set_verbosity_error()
    return chat_template_utils


def theirs(template, messages, tools=None, documents=None, add_generation_prompt=False, **variables):
    """{"text", "generation"} of transformers, spans in bytes, or {"error"}."""
    transformers()
    try:
        texts, spans = transformers().render_jinja_template(
            conversations=[transformers()._normalize_chat_messages(messages)], chat_template=template,
            tools=tools, documents=documents, add_generation_prompt=add_generation_prompt,
            return_assistant_tokens_mask=True, **variables)
    except Exception as error:  # jinja2's, and whatever Python operations raise
        return {"error": f"{type(error).__name__}: {error}"}
    size = lambda characters: len(texts[0][:characters].encode())
    return {"text": texts[0], "generation": [[size(begin), size(end)] for begin, end in spans[0]]}


def of_text_parts(message):
    content = message["content"]
    return isinstance(content, list) and all(part["type"] == "text" for part in content)


def as_read(template, messages, **variables):
    """The messages with one string, joined by newlines, for text parts that transformers loses, prints as a Python list or
    refuses under this template: it has no check, and Hocket joins them (docs/chat-templates.md)."""
    plain = [dict(m, content="\n".join(part["text"] for part in m["content"])) if of_text_parts(m)
             else dict(m, content="x") if isinstance(m["content"], list) else m for m in messages]
    out = []
    for i, message in enumerate(messages):
        if of_text_parts(message):
            text = theirs(template, plain[:i] + [message] + plain[i + 1:], **variables).get("text", "")
            shown = all(part["text"].strip() in text for part in message["content"])
            message = message if shown and "'type'" not in text and '"type"' not in text else plain[i]
        out.append(message)
    return out


class Ours:
    """Runs the program on files of `folder`."""

    def __init__(self, hocket, folder):
        self.hocket, self.folder = hocket, folder

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write(text)
        return path

    def render(self, template, messages, tools=None, add_generation_prompt=False, **variables):
        words = ["--messages", self.write("messages.json", json.dumps(messages)),
                 "--variables", self.write("variables.json", json.dumps(variables)), "--json"]
        if tools is not None:
            words += ["--tools", self.write("tools.json", json.dumps(tools))]
        if add_generation_prompt:
            words.append("--add-generation-prompt")
        done = subprocess.run([self.hocket, "data", "chat-template", self.write("template.jinja", template), *words],
                              capture_output=True, check=False)
        if done.returncode == 2:
            return {"error": done.stderr.decode()}
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode} for the template {template!r}: {done.stderr.decode()}")
        return json.loads(done.stdout)


def difference(ours, theirs):
    """None if both give the same text and spans, or both refuse; else a sentence."""
    if "error" in ours or "error" in theirs:
        if "error" in ours and "error" in theirs:
            return None
        return f"ours: {ours.get('error', 'no error')}; theirs: {theirs.get('error', 'no error')}"
    a, b = ours["text"], theirs["text"]
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        near = slice(max(0, at - 30), at + 30)
        return f"texts differ at character {at}; ours: {a[near]!r}; theirs: {b[near]!r}"
    if ours["generation"] != theirs["generation"]:
        return f"spans differ; ours: {ours['generation']}; theirs: {theirs['generation']}"
    return None
