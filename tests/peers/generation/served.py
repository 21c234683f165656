# SPDX-License-Identifier: Apache-2.0
"""A served model, requests to it, and comparisons of its answers, without any package."""
import concurrent.futures
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
HOCKET = os.path.join(os.environ.get("HOCKET_BINARY_DIR", os.path.join(ROOT, "build")), "hocket")
FIXTURES = os.path.join(HERE, "fixtures")
sys.path.insert(0, os.path.dirname(HERE))
import formula  # noqa: E402

VOCABULARY = 263  # a prime, and every one a token of the tokenizer
NEAR = 1e-5  # logits, or edges of a draw, that are nearer than this are a tie
TOLERANCE = 1e-4  # of log-probabilities


def tokenizer():
    """One token for each byte, and special ones up to VOCABULARY."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = sorted([*map(chr, printable), *(chr(256 + i) for i in range(len(others)))])
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": f"<|{i}|>", **flags} for i in range(256, VOCABULARY)],
            "normalizer": None, "pre_tokenizer": step, "post_processor": None, "decoder": step,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {text: i for i, text in enumerate(alphabet)}, "merges": []}}


def write_folder(folder, config, shapes):
    """Writes a model with weights from the formula."""
    os.makedirs(folder, exist_ok=True)
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer()),
                        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    formula.write_safetensors(os.path.join(folder, "model.safetensors"), shapes)


class Server:
    """`hocket serve MODEL` while the block runs; with `processes` one for each rank."""

    def __init__(self, model, *options, plan=(), processes=0, timeout=900):
        self.command = [HOCKET, *(("launch", "-n", str(processes)) if processes else ()), "serve", str(model), "--port", "0",
                        *map(str, options)]
        for setting in plan:
            self.command += ["--set", setting]
        self.timeout = timeout

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", encoding="utf-8")
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        end = time.monotonic() + self.timeout
        while True:
            found = re.search(r"serving .* at (http://[\w.]+:\d+)", self.text())
            if found:
                self.url = found.group(1)
                return self
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise RuntimeError(f"{' '.join(self.command)}\n{self.last_text}")
            time.sleep(0.02)

    def text(self):
        with open(self.log.name, encoding="utf-8") as f:
            return f.read()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.last_text = self.text()
        self.log.close()

    def post(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: status {error.code}: {error.read().decode()}") from error

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=self.timeout) as answer:
            return float(re.search(rf"^vllm:{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.M).group(1))

    def generate(self, prompt, count, **more):
        """Returns (tokens, their log-probabilities, alternatives) of one text behind the ids of a prompt."""
        body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "top_p": 1, "top_k": 0, "ignore_eos": True,
                "logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True, **more}
        choice = self.post("/v1/completions", **body)["choices"][0]
        lists = choice["logprobs"]
        if not len(choice["token_ids"]) == len(lists["token_logprobs"]) == count:
            raise RuntimeError(f"{len(choice['token_ids'])} tokens, {len(lists['token_logprobs'])} log-probabilities; "
                               f"expected {count}")
        alternatives = [{int(key.split(":")[1]): value for key, value in row.items()} for row in lists["top_logprobs"]]
        return choice["token_ids"], lists["token_logprobs"], alternatives

    def generate_each(self, requests, count, at_a_time=32):
        """Returns generate() of each (prompt, more), many at a time."""
        with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
            return list(pool.map(lambda each: self.generate(each[0], count, **each[1]), requests))

    def generate_all(self, prompts, count, **more):
        return self.generate_each([(prompt, more) for prompt in prompts], count)

    def log_probabilities(self, ids):
        """Returns those of all tokens but the first."""
        choice = self.post("/v1/completions", prompt=ids, max_tokens=0, prompt_logprobs=0)["choices"][0]
        rows = choice["prompt_logprobs"]
        return [row[str(token)]["logprob"] for row, token in zip(rows[1:], ids[1:], strict=True)]


class Counts:
    """Counts of what was compared under one plan; `problems` says what differs."""

    def __init__(self):
        self.worst = 0.0  # largest difference of a log-probability
        self.values = self.tokens = self.ties = self.draws = self.edges = 0
        self.problems = []

    def add(self, other):
        self.worst = max(self.worst, other.worst)
        for name in ("values", "tokens", "ties", "draws", "edges"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problems += other.problems

    def log_probabilities(self, what, got, want, tolerance=TOLERANCE):
        if len(got) != len(want):
            self.problems.append(f"{what}: {len(got)} log-probabilities; expected {len(want)}")
            return
        self.values += len(want)
        apart = max((abs(a - b) for a, b in zip(got, want)), default=0.0)
        self.worst = max(self.worst, apart)
        if not apart <= tolerance:
            self.problems.append(f"{what}: a log-probability is {apart:.1e} away")

    def greedy(self, what, got, want, near):
        """Compares texts up to the first step, `near`, at which the peer's two best logits tie."""
        count = len(want) if near is None else near
        same = next((i for i in range(count) if got[i] != want[i]), count)
        self.tokens += same
        self.ties += near is not None
        if same < count:
            self.problems.append(f"{what}: token {same} is {got[same]}; expected {want[same]}")

    def sampled(self, what, got, want, edge_distance):
        """Compares drawn texts; edge_distance(i) is that of draw i to the border of two tokens."""
        same = next((i for i in range(len(want)) if got[i] != want[i]), len(want))
        self.draws += same
        if same == len(want):
            return
        apart = edge_distance(same, got[same], want[same])
        self.edges += 1
        if not apart < NEAR:
            self.problems.append(f"{what}: draw {same} is {got[same]}; expected {want[same]}, whose edge is {apart:.1e} away")

    def line(self):
        text = f"{self.values} log-probabilities, worst {self.worst:.1e}; {self.tokens} greedy tokens, {self.ties} near ties"
        return text + (f"; {self.draws} draws, {self.edges} at an edge" if self.draws else "")


def uniform(seed, sample, position):
    """The number that decides a draw (src/base/rng.h): Philox4x32-10."""
    stream = (0x06A58212247C13BB + sample) % 2**64  # hash of "sample"
    block = position // 2
    c = [block % 2**32, block >> 32, stream % 2**32, stream >> 32]
    k = [seed % 2**32, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q % 2**32, p >> 32 ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    half = position % 2 * 2
    return ((c[half] | c[half + 1] << 32) // 2**11 + 0.5) / 2**53


def distance(log_probabilities, temperature, u, tokens):
    """Returns how far a uniform number is from picking any of the tokens, in order of ids: the largest distance to the span
    of one of them. `log_probabilities`: of all tokens, by id."""
    top = max(log_probabilities.values())
    weights = {token: math.exp((value - top) / temperature) for token, value in log_probabilities.items()}
    total, begin, worst = math.fsum(weights.values()), 0.0, 0.0
    for token in sorted(weights):
        end = begin + weights[token] / total
        if token in tokens:
            worst = max(worst, begin - u, u - end)
        begin = end
    return worst
