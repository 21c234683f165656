#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow, without sanitizers
"""Opens the chat page of `hocket serve` in headless Chromium before a made-up server: a chat of two messages with
reasoning, an error, no fault on the console, nothing wider than the window. Without Chromium it is skipped."""
import http.server
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBE = """
<script>
window.faults = [];
addEventListener("error", (e) => faults.push(e.message));
addEventListener("unhandledrejection", (e) => faults.push(String(e.reason)));
addEventListener("load", async () => {
  const until = async (what) => { while (!what()) await new Promise((go) => setTimeout(go, 20)); };
  const say = async (text) => {
    await until(() => document.getElementById("send").textContent === "Send");
    document.getElementById("text").value = text;
    document.getElementById("form").requestSubmit();
    await until(() => document.getElementById("send").textContent === "Send");
  };
  await until(() => document.getElementById("model").textContent !== "hocket");
  document.getElementById("system").value = "Be brief.";
  document.getElementById("temperature").value = "0.5";
  await say("one");
  await say("two <b>");
  await say("fail");
  const out = { model: document.getElementById("model").textContent, faults,
    wider: document.documentElement.scrollWidth - innerWidth,
    messages: [...document.querySelectorAll(".message")].map((m) => [m.className, m.innerText]) };
  document.title = "done " + JSON.stringify(out);
});
</script>
"""


class Server(http.server.BaseHTTPRequestHandler):
    asked = []

    def log_message(self, *_):
        pass

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        if self.path == "/":
            with open(os.path.join(ROOT, "src/serve/page/chat.html"), encoding="utf-8") as f:
                page = f.read()
            self.answer(200, "text/html; charset=utf-8", page.replace("<head>", "<head>" + PROBE, 1))
        else:
            self.answer(200, "application/json", json.dumps({"data": [{"id": "made-up"}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Server.asked.append(body)
        if body["messages"][-1]["content"] == "fail":
            self.answer(400, "application/json", json.dumps({"error": {"message": "n is wrong"}}))
            return
        deltas = [{"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"content": "Größe "}, {"content": "<i>5</i>"}]
        events = [{"choices": [{"index": 0, "delta": d}]} for d in deltas]
        events.append({"choices": [], "usage": {"completion_tokens": 4}})
        self.answer(200, "text/event-stream", "".join(f"data: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events) + "data: [DONE]\n\n")


@unittest.skipIf(BROWSER is None, "no Chromium here")
class ChatPage(unittest.TestCase):
    def test_a_chat(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(
                [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--window-size=420,700",
                 "--virtual-time-budget=20000", "--dump-dom", f"http://127.0.0.1:{server.server_port}/"],
                capture_output=True, text=True, timeout=120, check=False)
        server.shutdown()
        server.server_close()
        found = re.search(r"<title>done (.*?)</title>", ran.stdout, re.S)
        self.assertTrue(found, ran.stdout[-2000:] + ran.stderr[-2000:])
        shown = json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        self.assertEqual("made-up", shown["model"])
        self.assertEqual([], shown["faults"])
        self.assertLessEqual(shown["wider"], 0)
        kinds = [kind for kind, _ in shown["messages"]]
        self.assertEqual(["message user", "message assistant"] * 2 + ["message user", "message assistant error"], kinds)
        self.assertIn("Größe <i>5</i>", shown["messages"][1][1])
        self.assertIn("reasoning", shown["messages"][1][1])
        self.assertRegex(shown["messages"][1][1], r"4 tokens, first after [0-9.]+ s")
        self.assertIn("n is wrong", shown["messages"][5][1])
        # The history goes along, without the answer's reasoning.
        self.assertEqual([("system", "Be brief."), ("user", "one"), ("assistant", "Größe <i>5</i>"), ("user", "two <b>")],
                         [(m["role"], m["content"]) for m in Server.asked[1]["messages"]])
        self.assertEqual(0.5, Server.asked[0]["temperature"])


if __name__ == "__main__":
    unittest.main()
