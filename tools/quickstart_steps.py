# SPDX-License-Identifier: Apache-2.0
"""Steps with their state on disk: a second call goes on where the first stopped."""
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time


class Failure(Exception):
    """An error with a text for the terminal."""


def fail(text):
    raise Failure(f"[quickstart] {text}")


def read_lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def write_json(path, value):
    with open(path + ".part", "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)
    os.replace(path + ".part", path)


def short(path):
    """Returns a path relative to the working directory where that is inside of it."""
    inside = os.path.relpath(path)
    return path if inside.startswith("..") else inside


def fingerprint(path):
    """Returns a text that changes when a file does; of a folder that of its files."""
    if os.path.isdir(path):
        return [fingerprint(os.path.join(path, name)) for name in sorted(os.listdir(path))]
    seen = os.stat(path)
    if seen.st_size > 1 << 20:
        return [os.path.basename(path), seen.st_size, seen.st_mtime_ns]
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def interrupt(*_):
    """Handles signals that end a program as Ctrl-C does."""
    raise KeyboardInterrupt


class Steps:
    """Runs named steps, in the order of their titles. state.json records what each was made from, its result, commands
    and seconds."""

    def __init__(self, out, titles, hocket, skip):
        self.out, self.titles, self.program, self.skip = out, titles, hocket, skip
        self.began = time.monotonic()
        os.makedirs(os.path.join(out, "logs"), exist_ok=True)
        self.state_path = os.path.join(out, "state.json")
        self.entries = {}
        if os.path.exists(self.state_path):
            with open(self.state_path, encoding="utf-8") as f:
                self.entries = json.load(f)["steps"]
        self.commands = []  # of the running step
        self.left_out = {}  # reasons, by step
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupt)

    def path(self, *parts):
        return short(os.path.join(self.out, *parts))

    def log_path(self, name):
        return self.path("logs", name + ".log")

    def say(self, text):
        taken = int(time.monotonic() - self.began)
        print(f"[{taken // 60}:{taken % 60:02d}] {text}", flush=True)

    def result(self, step):
        """Returns what a finished step recorded; None: it has not run."""
        entry = self.entries.get(step, {})
        return entry.get("result") if entry.get("done") else None

    def save(self):
        write_json(self.state_path, {"steps": self.entries})

    def leave_out(self, name, reason):
        self.entries.pop(name, None)
        self.left_out[name] = reason
        self.say(f"{self.title(name)}: left out ({reason})")

    def title(self, name):
        return f"{list(self.titles).index(name) + 1}/{len(self.titles)} {name}: {self.titles[name]}"

    def step(self, name, inputs, work, folders=()):
        """Runs a step unless it is done with these inputs and its folders are there. Folders of other inputs are
        removed first; those of the same ones stay, so that an interrupted training goes on."""
        key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
        entry = self.entries.get(name, {})
        if entry.get("key") == key and entry.get("done") and all(os.path.exists(folder) for folder in folders):
            self.say(f"{self.title(name)}: done before, {entry['seconds']:.1f} s")
            return
        if name in self.skip:
            self.leave_out(name, "--skip " + name)
            return
        if entry.get("key") != key or entry.get("done"):
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            entry = {"key": key, "seconds": 0}
        self.say(self.title(name))
        self.commands = []
        self.entries[name] = entry
        self.save()
        began = time.monotonic()
        try:
            entry["result"] = work()
            entry["done"] = True
        finally:
            # The time of interrupted attempts counts.
            entry["seconds"] += time.monotonic() - began
            entry["commands"] = self.commands
            self.save()
        self.say(f"      {name} took {entry['seconds']:.1f} s")

    def show_command(self, words):
        self.commands.append(shlex.join(words))
        print("      $ " + self.commands[-1], flush=True)

    def hocket(self, *words, log, show=False):
        """Runs a command of the program, with a log, and returns its standard output. `show`: its output goes to the
        terminal, too."""
        self.show_command(["hocket", *words])
        lines = []
        with open(self.log_path(log), "w", encoding="utf-8") as out:
            # In a session of its own, so that Ctrl-C reaches it once, from here.
            child = subprocess.Popen([self.program, *words], stdout=subprocess.PIPE, text=True, errors="replace",
                                     stderr=subprocess.STDOUT if show else out, stdin=subprocess.DEVNULL,
                                     start_new_session=True)
            try:
                for line in child.stdout:
                    lines.append(line)
                    if show:
                        out.write(line)
                        print("      " + line, end="", flush=True)
                code = child.wait()
            except BaseException:
                self.stop(child)
                raise
        if code != 0:
            with open(self.log_path(log), encoding="utf-8", errors="replace") as f:
                tail = f.read().strip()[-2000:]
            fail(f"`{self.commands[-1]}` ended with exit code {code}:\n{tail}\n(log: {self.log_path(log)})")
        return "".join(lines)

    @staticmethod
    def stop(child):
        """Lets a training write its checkpoint; a second Ctrl-C ends it at once."""
        child.send_signal(signal.SIGINT)
        try:
            child.communicate()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.wait()
