# SPDX-License-Identifier: Apache-2.0
"""`hocket serve` as a process at a free port, without any package."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", ROOT / "build"), "hocket")


class Served:
    """A context: the server of a model, named `model`."""

    def __init__(self, model, *flags, binary=HOCKET):
        self.command = [binary, "serve", str(model), "--port", "0", "--served-model-name", "model", *map(str, flags)]

    def __enter__(self):
        self.text = None
        self.log_file = tempfile.NamedTemporaryFile("w+", prefix="serve_", suffix=".log")
        self.process = subprocess.Popen(self.command, stdout=self.log_file, stderr=subprocess.STDOUT)
        for _ in range(600):
            found = re.search(r"serving .* at (http://\S+)", self.log())
            if found:
                self.address = found.group(1)
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.__exit__()
        raise RuntimeError(f"{' '.join(self.command)} did not start:\n{self.log()}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        self.text = self.log()
        self.log_file.close()

    def log(self):
        """Returns what the server has printed."""
        return pathlib.Path(self.log_file.name).read_text(encoding="utf-8") if self.text is None else self.text

    def ask(self, path, body=None):
        """Returns the status and the text of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=900) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name, **labels):
        """Returns the sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.ask("/metrics")[1].splitlines():
            if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total
