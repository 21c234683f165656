# SPDX-License-Identifier: Apache-2.0
"""A server under load: `hocket serve` as a process, what its metrics and /proc say, and clients of every kind.

A client is a function of (server, random numbers) and returns its kind of end. It raises Fault where an answer is
neither whole nor a refusal with OpenAI's error body."""
import collections
import concurrent.futures
import http.client
import json
import os
import random
import re
import socket
import struct
import subprocess
import time

CHAT_TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
                 "{% if add_generation_prompt %}<assistant>{% endif %}")
WORDS = ["template ", "int ", "x ", "= ", "auto ", "return ", "{ ", "} ", "std::", "vector<", "class ", "( ", ") ",
         ";\n", "const "]
PATIENCE_S = 240  # of a client; the server may be built with sanitizers, on a busy machine
STATUSES = {200, 400, 404, 405, 413, 415, 429}


class Fault(Exception):
    pass


class Server:
    """`hocket serve`, with `launcher` words before the verb; ends with the context."""

    def __init__(self, hocket, model, folder, words=(), launcher=(), environment=None, start_s=300):
        self.log_path = os.path.join(folder, "serve.log")
        template = os.path.join(folder, "chat.jinja")
        with open(template, "w", encoding="utf-8") as f:
            f.write(CHAT_TEMPLATE)
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [hocket, *launcher, "serve", model, "--port", "0", "--served-model-name", "tiny", "--chat-template",
                 template,
                 *words], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            found = self.wait_for_log(r"serving tiny at http://127\.0\.0\.1:(\d+) \(window (\d+)", start_s)
        except BaseException:
            self.close()
            raise
        self.port, self.window = int(found.group(1)), int(found.group(2))
        self.pages = int(re.search(r"KV cache of (\d+) pages", self.log()).group(1))
        self.pids = self.rank_pids() if launcher else [self.process.pid]  # by rank

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for pid in [] if self.process.poll() is not None else self.rank_pids():
            os.kill(pid, 9)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def rank_pids(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="utf-8") as f:
            return sorted(map(int, f.read().split()))

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_for_log(self, pattern, seconds):
        end = time.monotonic() + seconds
        while True:
            text = self.log()
            found = re.search(pattern, text)
            if found:
                return found
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no line {pattern!r}; exit code {self.process.poll()}:\n{text[-4000:]}")
            time.sleep(0.05)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    def post(self, path, **body):
        """Returns status, headers and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    def metrics(self):
        """Returns {name without "vllm:": sum over labels}."""
        out = collections.defaultdict(float)
        for name, value in re.findall(r"^(?:vllm:)?([\w:]+)(?:\{.*\})? ([\d.e+-]+)$", self.get("/metrics")[1], re.M):
            out[name] += float(value)
        return out

    def use(self):
        """Returns resident MiB, open files and threads of the process that answers."""
        pid = self.pids[0]
        with open(f"/proc/{pid}/status", encoding="utf-8") as f:
            status = f.read()
        number = lambda key: int(re.search(rf"^{key}:\s+(\d+)", status, re.M).group(1))
        return {"rss": number("VmRSS") / 1024, "peak": number("VmHWM") / 1024,
                "files": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": number("Threads")}

    def wait_idle(self, seconds=60):
        """Waits until nothing runs, waits, holds a page or is connected; returns the metrics that did not come to 0."""
        end = time.monotonic() + seconds
        while True:
            metrics = self.metrics()
            left = {name: metrics[name] for name in
                    ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "hocket:http_streams")
                    if metrics[name]}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.1)


def warm_up(server):
    """Has threads and caches made that are made once; returns the use of resources after that."""
    server.post("/v1/completions", prompt=[[1 + i] * (server.window - 8) for i in range(6)], max_tokens=8,
                response_format={"type": "json_object"}, logprobs=5)
    time.sleep(0.5)
    return server.use()


def connect(server, receive_bytes=None):
    s = socket.socket()
    if receive_bytes:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    s.settimeout(PATIENCE_S)
    s.connect(("127.0.0.1", server.port))
    return s


def vanish(s, rng):
    """Closes a connection by FIN, by RST, or the sending half first."""
    ending = rng.randrange(3)
    try:
        if ending == 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif ending == 1:
            s.shutdown(socket.SHUT_WR)
            time.sleep(rng.uniform(0, 0.3))
    except OSError:
        pass  # the server was faster
    s.close()


def send(s, data):
    """Sends what the server takes: it may answer, and close, before the whole request is there."""
    try:
        s.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        pass


def read_all(s):
    parts = []
    try:
        while part := s.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    except TimeoutError as e:
        raise Fault(f"no end of the answer within {PATIENCE_S} s; got {b''.join(parts)[-300:]!r}") from e
    return b"".join(parts)


def text_of(rng, words):
    return "".join(rng.choices(WORDS, k=words))


def valid_body(server, rng, **fixed):
    """Returns path and body of a request for text."""
    body = {"max_tokens": rng.randint(1, 24), "temperature": rng.choice([0, 0.7, 1, 1.5]), "seed": rng.randrange(1000)}
    if rng.random() < 0.3:
        body["stop"] = rng.choice([";", ["}", "int"], "\n"])
    if rng.random() < 0.3:
        body["top_k"] = rng.randint(1, 50)
    if rng.random() < 0.2:
        body["presence_penalty"] = 0.5
    if rng.random() < 0.2:
        body["response_format"] = {"type": "json_object"}
    if rng.random() < 0.2:
        body["n"] = rng.randint(2, 3)
    chat = rng.random() < 0.4
    if chat:
        body["messages"] = [{"role": "user", "content": text_of(rng, rng.randint(1, 12))}]
        if rng.random() < 0.3:
            body.update(logprobs=True, top_logprobs=rng.randint(0, 5))
    else:
        body["prompt"] = rng.choice([lambda: text_of(rng, rng.randint(1, 40)),
                                     lambda: [rng.randrange(300) for _ in range(rng.randint(1, 60))],
                                     lambda: [text_of(rng, 3), text_of(rng, 5)]])()
        if rng.random() < 0.3:
            body["logprobs"] = rng.randint(0, 5)
        if rng.random() < 0.2:
            body["echo"] = True
    if rng.random() < 0.5:
        body["stream"] = True
    body.update(fixed)
    return "/v1/chat/completions" if chat else "/v1/completions", body


def raw_request(path, body, headers=()):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def judge(raw, may_be_empty=False, statuses=frozenset(STATUSES)):
    """Checks one answer to its end; returns its status, 0 for none."""
    if not raw:
        if may_be_empty:
            return 0
        raise Fault("the connection was closed without an answer")
    head, found, body = raw.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
    if not found or not status:
        raise Fault(f"no HTTP answer: {raw[:300]!r}")
    status = int(status.group(1))
    if status == 100:
        return judge(body, may_be_empty, statuses)
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        whole = b""
        while True:
            size, found, body = body.partition(b"\r\n")
            if not found:
                raise Fault(f"the stream was cut off: {whole[-300:]!r}")
            size = int(size, 16)
            whole, body = whole + body[:size], body[size + 2:]
            if size == 0:
                break
        body = whole
    else:
        length = re.search(rb"content-length: (\d+)", lower)
        if length and int(length.group(1)) > len(body):
            raise Fault(f"{len(body)} bytes of {length.group(1)}: {body[-300:]!r}")
        body = body[:int(length.group(1))] if length else body
    if status not in statuses:
        raise Fault(f"status {status}: {body[:500]!r}")
    if b"text/event-stream" in lower:
        events = body.split(b"\n\n")
        if events[-1] or events[-2] != b"data: [DONE]":
            raise Fault(f"a stream without its end: {body[-300:]!r}")
        for event in events[:-2]:
            part = json.loads(event.removeprefix(b"data: "))
            if "error" in part and not part["error"]["message"].startswith("no token may follow"):
                raise Fault(f"an error in a stream: {event!r}")
    elif status >= 400:
        check_error(body)
        if status == 429 and not re.search(rb"retry-after: [1-9]", lower):
            raise Fault("429 without Retry-After")
    elif b"application/json" in lower:
        json.loads(body)
    return status


def check_error(body):
    try:
        error = json.loads(body)["error"]
        good = set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"]
    except (ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise Fault(f"an error without OpenAI's body: {body[:300]!r}")


def exchange(server, data, **options):
    s = connect(server)
    try:
        send(s, data)
        return judge(read_all(s), **options)
    finally:
        s.close()


def answered(server, rng):
    path, body = valid_body(server, rng)
    status = exchange(server, raw_request(path, body))
    return f"answered {status}"


def kept_alive(server, rng):
    """Several requests on one connection, some sent before the last one is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    for _ in range(rng.randint(2, 5)):
        path, body = valid_body(server, rng)
        if rng.random() < 0.3:
            path, body = "/tokenize", {"prompt": text_of(rng, 5)}
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        if answer.status not in STATUSES:
            raise Fault(f"status {answer.status}: {text[:300]!r}")
        if answer.status >= 400:
            check_error(text)
    connection.close()
    return "kept alive"


def looks(server, rng):
    path = rng.choice(["/", "/health", "/ping", "/metrics", "/v1/models", "/v1/models/tiny", "/tokenizer_info",
                       "/version", "/v1/models/x",
                       "/nothing", "/v1/responses", "/v1/completions?x=%00", "/%ff%fe/../..", "//",
                       "/v1/models/%e2%82"])
    status, text = server.get(path)
    if status not in STATUSES:
        raise Fault(f"{path}: status {status}")
    if status >= 400:
        check_error(text)
    return "looked"


def gone_before_body(server, rng):
    s = connect(server)
    data = raw_request(*valid_body(server, rng))
    head = data.index(b"\r\n\r\n") + 4
    send(s, data[:rng.randrange(head + 1)])
    time.sleep(rng.uniform(0, 0.05))
    vanish(s, rng)
    return "gone before the body"


def gone_in_body(server, rng):
    s = connect(server)
    data = raw_request(*valid_body(server, rng, pad=None) if rng.random() < 0.3 else valid_body(server, rng))
    head = data.index(b"\r\n\r\n") + 4
    send(s, data[:rng.randrange(head, len(data))])
    time.sleep(rng.uniform(0, 0.05))
    vanish(s, rng)
    return "gone in the body"


def gone_while_waiting(server, rng):
    s = connect(server)
    path, body = valid_body(server, rng, max_tokens=rng.randint(8, 60), n=rng.randint(1, 4))
    send(s, raw_request(path, body))
    time.sleep(rng.choice([0, 0, 0.002, 0.01]))
    vanish(s, rng)
    return "gone while waiting"


def gone_in_prefill(server, rng):
    s = connect(server)
    prompts = [[rng.randrange(300) for _ in range(server.window - 10)] for _ in range(4)]  # no prefix is known
    send(s, raw_request("/v1/completions", {"prompt": prompts, "max_tokens": 8, "stream": rng.random() < 0.5}))
    time.sleep(rng.uniform(0, 0.08))
    vanish(s, rng)
    return "gone in prefill"


def gone_in_stream(server, rng):
    s = connect(server)
    path, body = valid_body(server, rng, stream=True, max_tokens=60, ignore_eos=True)
    send(s, raw_request(path, body))
    left = rng.randint(1, 4000)
    try:
        while left > 0 and (part := s.recv(min(left, 400))):
            left -= len(part)
    except ConnectionResetError:
        pass
    vanish(s, rng)
    return "gone in the stream"


def slow_reader(server, rng):
    """Reads an answer in small bites, with pauses."""
    s = connect(server, receive_bytes=2048)
    path, body = valid_body(server, rng, max_tokens=60, ignore_eos=True, n=3)
    send(s, raw_request(path, body))
    parts, pauses = [], rng.randint(5, 30)
    try:
        while part := s.recv(rng.randint(1, 700)):
            parts.append(part)
            if len(parts) < pauses:
                time.sleep(0.03)
            elif rng.random() < 0.002:
                vanish(s, rng)
                return "slow reader, gone"
    except ConnectionResetError:
        pass
    s.close()
    return f"slow reader {judge(b''.join(parts))}"


def slow_writer(server, rng):
    s = connect(server)
    data = raw_request(*valid_body(server, rng))
    cuts = sorted(rng.randrange(len(data)) for _ in range(8))
    for begin, end in zip([0] + cuts, cuts + [len(data)]):
        send(s, data[begin:end])
        time.sleep(rng.uniform(0, 0.03))
    status = judge(read_all(s))
    s.close()
    return f"slow writer {status}"


def random_json(rng, depth=0):
    kind = rng.randrange(8 if depth < 4 else 6)
    if kind == 6:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(5))]
    if kind == 7:
        return {rng.choice(["a", "type", "role", "content", "", "\u0000"]): random_json(rng, depth + 1)
                for _ in range(rng.randrange(4))}
    return [None, rng.random() < 0.5, rng.choice([0, -1, 1, 2**31, 2**63, -2**63, 2**64, 10**40]),
            rng.choice([0.5, -0.0, 1e308, 1e-308]), rng.choice(["", "x", "\ud800", "é" * 20, "<think>", "\u0000"]),
            []][kind]


def fuzzed_json(server, rng):
    path, body = valid_body(server, rng)
    path = rng.choice([path, path, path, "/tokenize", "/detokenize"])
    kind = rng.randrange(6)
    if kind == 0:  # values of a wrong type or size
        for key in rng.sample(sorted(body), min(2, len(body))):
            body[key] = random_json(rng)
    elif kind == 1:  # fields that this request does not have
        for key in ("logit_bias", "tools", "tool_choice", "response_format", "stream_options", "stop",
                    "stop_token_ids", "min_tokens",
                    "structured_outputs", "prompt_logprobs", "tokens", "messages", "best_of", "priority", "cache_salt"):
            if rng.random() < 0.3:
                body[key] = random_json(rng)
    elif kind == 2:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": random_schema(rng)}}
        body["stream"] = False
        if rng.random() < 0.5:  # beyond the end of a short value
            body.update(max_tokens=8, min_tokens=rng.randint(1, 8))
    body.setdefault("max_tokens", 8)
    data = bytearray(json.dumps(body).encode())
    if kind == 3:  # bytes are changed, removed, repeated
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            data[at:at + rng.randrange(4)] = rng.choice([b"", rng.randbytes(2), b'"', b"{", b"]", b"\xff\xfe", b"\\u",
                                                         b"1e999", data[:20]])
    elif kind == 4:
        data = rng.choice([b"[" * 100_000, b'{"a":' * 50_000, b'{"prompt": "' + b"\\" * 99_999, rng.randbytes(500),
                           b"", b"null", b"\x00" * 50,
                           b'"x"', b"1", b"\xef\xbb\xbf{}", b'{"prompt": "x", "prompt": "y", "max_tokens": 2}',
                           b"[" * 3000 + b"]" * 3000])
    status = exchange(server, raw_request(path, bytes(data)), statuses=STATUSES | {500} if kind == 2 else STATUSES)
    return f"fuzzed JSON {status}"


def random_schema(rng, depth=0):
    kind = rng.randrange(7 if depth < 3 else 4)
    if kind == 4:
        names = rng.sample("abcdef", rng.randint(0, 4))
        return {"type": "object", "properties": {n: random_schema(rng, depth + 1) for n in names},
                "required": names[:2]}
    if kind == 5:
        return {"type": "array", "items": random_schema(rng, depth + 1), "maxItems": rng.randint(0, 3)}
    if kind == 6:
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    return [{"type": "string", "pattern": rng.choice(["^a+$", "(a|b){2,5}", "[", "(a*)*b", "\\d{3}", "^.{0,2000}$"])},
            {"type": "integer", "minimum": rng.choice([0, -5, 10**20]), "maximum": 100},
            {"enum": [1, "a", None, {"b": []}]},
            rng.choice([{}, True, {"type": "nothing"}, {"$ref": "#"}, {"$ref": "#/no"}, {"type": ["string", "null"]},
                        3])][kind]


def bad_utf8(server, rng):
    bad = rng.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf", b"\xe2\x82"])
    path = rng.choice(["/v1/completions", "/tokenize"])
    status = exchange(server, raw_request(path, b'{"prompt": "int ' + bad + b' x"}'))
    if status not in (400, 429):
        raise Fault(f"bad UTF-8 is answered with {status}")
    return f"bad UTF-8 {status}"


def huge_prompt(server, rng):
    size = 10 << 20
    kind = rng.randrange(5)
    if kind == 0:
        body = {"prompt": text_of(rng, 100) * (size // 600)}
    elif kind == 1:
        body = {"messages": [{"role": "user", "content": "é" * (size // 2)}]}
    elif kind == 2:
        body = {"prompt": [1] * (size // 3)}
    elif kind == 3:
        body = {"prompt": "x", "stop": ["y" * size]}
    else:
        body = {"prompt": ["x" * 1000] * (size // 1000)}
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    status = exchange(server, raw_request(path, dict(body, max_tokens=1)))
    if status not in (400, 429) and kind != 3:
        raise Fault(f"a prompt of 10 MB is answered with {status}")
    return f"huge prompt {status}"


def huge_body(server, rng):
    """Announces, or sends in chunks, more than the server's limit."""
    if rng.random() < 0.5:
        data = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n" +
                b"x" * 10000)
    else:
        data = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
                (b"100000\r\n" + b"x" * (1 << 20) + b"\r\n") * 33 + b"0\r\n\r\n")
    status = exchange(server, data, may_be_empty=True)
    if status not in (0, 413):
        raise Fault(f"a body over the limit is answered with {status}")
    return f"huge body {status}"


def fuzzed_http(server, rng):
    good = raw_request("/v1/completions", {"prompt": "int", "max_tokens": 2})
    head, body = good.split(b"\r\n\r\n")
    chunked = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n")
    line = rng.choice([b"GET", b"GET /", b"/ HTTP/1.1", b"GET / HTTP/2.0", b"POST  HTTP/1.1",
                       b"\x16\x03\x01\x02\x00\x01\x00", b"get / http/1.1",
                       b"PRI * HTTP/2.0", b"GET " + b"/" * 70_000 + b" HTTP/1.1", b"GET http://x/health HTTP/1.1",
                       b"CONNECT x:80 HTTP/1.1",
                       b"\x00\xff" * 50, b"BREW /pot HTTP/1.1", b"GET /health HTTP/1.1 x", b"GET /%zz%1 HTTP/1.1",
                       b"OPTIONS * HTTP/1.1"])
    size = rng.choice([b"zz", b"-1", b"ffffffffffffffff", b"1000000000000000000000", b"5;" + b"x" * 5000, b"", b"0x5",
                       b"7fffffffffffffff", b" 5"])
    header = rng.choice([b"X: " + b"y" * 70_000, b"\r\n".join(b"X%d: y" % i for i in range(9000)), b": x", b"no colon",
                         b"X: a\r\n b",
                         b"Content-Length: 5", b"Content-Length: abc", b"Transfer-Encoding: chunked",
                         b"Transfer-Encoding: gzip",
                         b"Expect: 100-continue", b"Content-Encoding: gzip", b"Content-Encoding: br", b"\x00: \x00",
                         b"Range: bytes=0-1",
                         b"Content-Type: multipart/form-data; boundary=",
                         b"Content-Type: application/x-www-form-urlencoded",
                         b"Connection: upgrade\r\nUpgrade: h2c", b"Content-Length: +37",
                         b"Content-Length: 18446744073709551616"])
    kinds = [
        lambda: line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        lambda: head + b"\r\n" + header + b"\r\n\r\n" + body,
        lambda: chunked + size + b"\r\n" + body + b"\r\n0\r\n\r\n",
        lambda: chunked + b"5\r\n" + body[:5] + b"\r\n" + size + b"\r\n" + body[5:] + b"\r\n0\r\n\r\n",
        lambda: bytes(b if rng.random() > 0.02 else rng.randrange(256) for b in good),
        lambda: rng.randbytes(rng.randint(1, 2000)),
        lambda: good[:rng.randrange(len(good))],
        lambda: good + good[:rng.randrange(len(good))] + rng.randbytes(20),
    ]
    kind = rng.randrange(len(kinds))
    s = connect(server)
    data = kinds[kind]()
    send(s, data)
    whole = kind < 2  # and must be answered
    try:
        if not whole:
            s.shutdown(socket.SHUT_WR)  # such a client may count as gone
    except OSError:
        pass
    try:
        # 403: the name of the server may be what was changed.
        status = judge(read_all(s), may_be_empty=not whole, statuses=STATUSES | ({414, 431, 501} if whole else {403, 499}))
    except Fault as fault:
        raise Fault(f"{fault}; to {data[:300]!r}") from None
    finally:
        s.close()
    return f"fuzzed HTTP {status}"


CLIENTS = ((answered, 30), (kept_alive, 6), (looks, 8), (gone_before_body, 5), (gone_in_body, 5),
           (gone_while_waiting, 7),
           (gone_in_prefill, 6), (gone_in_stream, 8), (slow_reader, 4), (slow_writer, 4), (fuzzed_json, 14),
           (bad_utf8, 4),
           (fuzzed_http, 14), (huge_prompt, 0.8), (huge_body, 0.5))


def load(server, seed, requests, at_a_time=32, seconds=None, on_progress=None):
    """Runs clients, as many as `requests` or for `seconds`; returns {end: count} and the list of faults."""
    ends, faults = collections.Counter(), []
    kinds, weights = zip(*CLIENTS)

    def one(number):
        rng = random.Random(f"{seed} {number}")
        kind = rng.choices(kinds, weights)[0]
        try:
            return kind(server, rng), None
        except (Fault, OSError, http.client.HTTPException, ValueError) as e:
            return f"{kind.__name__}: fault", f"client {number} of seed {seed}, {kind.__name__}: {type(e).__name__} {e}"

    end = time.monotonic() + seconds if seconds else None
    numbers = iter(range(requests) if end is None else iter(int, 1))
    count = 0
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        pending = set()
        while True:
            while len(pending) < at_a_time and (end is None or time.monotonic() < end) and next(numbers,
                                                                                                None) is not None:
                pending.add(pool.submit(one, count))
                count += 1
            if not pending:
                return ends, faults
            done, pending = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
            for each in done:
                ending, fault = each.result()
                ends[ending] += 1
                if fault:
                    faults.append(fault)
            if server.process.poll() is not None:
                faults.append(f"the server ended with exit code {server.process.returncode}:\n{server.log()[-4000:]}")
                return ends, faults
            if on_progress:
                on_progress(count, len(faults))


def large_requests(server, count):
    """So many clients at once that ask for 8,192 texts of 2 MB of token ids, and go after 3 s; returns {status: count},
    0 for those that had no answer yet."""
    body = {"prompt": [[1 + (i + j) % 250 for j in range(8000)] for i in range(64)], "n": 128, "max_tokens": 1}
    data = raw_request("/v1/completions", body)

    def one(_):
        s = connect(server)
        try:
            send(s, data)
            s.settimeout(3)
            return int(s.recv(100).split()[1])
        except TimeoutError:
            return 0
        finally:
            s.close()

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return collections.Counter(pool.map(one, range(count)))


def flood(server, requests, tokens=40):
    """As many requests at once; returns {status: count} and the list of faults."""
    statuses, faults = collections.Counter(), []

    def one(number):
        try:
            body = {"prompt": [number % 300, 5, 6], "max_tokens": tokens, "ignore_eos": True, "stream": number % 2 == 0}
            return exchange(server, raw_request("/v1/completions", body)), None
        except (Fault, OSError) as e:
            return "fault", f"request {number} of a flood: {e}"

    with concurrent.futures.ThreadPoolExecutor(requests) as pool:
        for status, fault in pool.map(one, range(requests)):
            statuses[status] += 1
            if fault:
                faults.append(fault)
    return statuses, faults
