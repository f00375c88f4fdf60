"""An OpenAI-compatible server whose times are known: real HTTP on loopback, sleeps for work."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

PAGE = 16


class Truth:
    """What the server takes, in seconds."""

    fixed_s = 0.2
    token_s = 60e-6
    pair_s = 40e-9
    step_s = 0.010
    stream_s = 0.0005
    context_s = 4e-6

    def prefill_s(self, new: int, past: int) -> float:
        if new < 2 * PAGE:  # so that a test is not long
            return 0.005
        return self.fixed_s + self.token_s * new + self.pair_s * new * (past + new / 2)

    def decode_s(self, batch: int, context: int) -> float:
        return self.step_s + self.stream_s * batch + self.context_s * context


class Stub:
    """Its state: prompts that it has cached, streams under way, and how busy others keep it."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.lock = threading.Lock()
        self.pages: set[tuple[int, ...]] = set()
        self.streams = 0
        self.requests = 0
        self.says_cached = True
        self.slowdown_s = 0.0  # what other load adds to each request
        self.slow_requests: set[int] = set()  # numbers of requests that it adds to; all if empty
        # How it speaks; as most servers do, if nothing else is said.
        self.key = ""  # that it wants
        self.busy = 0  # requests that it sends away
        self.paths = ("/v1/completions",)
        self.per_event = 1  # tokens of one event
        self.says_usage = True
        self.around: tuple[bytes, ...] = ()  # lines before the first event
        self.extra: Literal["", "begins", "ends"] = ""  # an event without a token
        self.ends = b"data: [DONE]\n\n"
        self.whole = b""  # an answer in one piece instead of a stream
        self.told_twice = 1  # tokens that it counts for one of the prompt
        self.piecewise = False  # the bytes of an event in two pieces

    def cached(self, prompt: list[int]) -> int:
        """Tokens of whole pages that an earlier prompt began with; this one's are cached now."""
        with self.lock:
            held = 0
            for end in range(PAGE, len(prompt) + 1, PAGE):
                key = tuple(prompt[:end][-2 * PAGE :])
                if held == end - PAGE and key in self.pages:
                    held = end
                self.pages.add(key)
            return min(held, len(prompt) - 1)


class Handler(BaseHTTPRequestHandler):
    """Answers /v1/models and /v1/completions."""

    stub: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self._locked():
            return
        self._answer(200, {"data": [{"id": "stub"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        begun_s = time.monotonic()
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not all(isinstance(each, int) for each in body["prompt"]):
            self._answer(400, {"error": "token ids only"})
            return
        stub, prompt, tokens = self.stub, body["prompt"], body["max_tokens"]
        if self._locked():
            return
        if self.path not in stub.paths:
            self._answer(404, {"detail": "Not Found"})
            return
        with stub.lock:
            stub.requests += 1
            stub.busy, sent_away = max(0, stub.busy - 1), stub.busy > 0
        if sent_away:
            self._answer(503, {"detail": "later"})
            return
        with stub.lock:
            number = stub.requests
            slow = not stub.slow_requests or number in stub.slow_requests
        held = stub.cached(prompt)
        at_s = begun_s + stub.truth.prefill_s(len(prompt) - held, held)
        at_s += stub.slowdown_s if slow else 0.0
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if stub.whole:
            self.wfile.write(stub.whole)
            return
        with stub.lock:
            stub.streams += 1
        try:
            self._tokens(at_s, len(prompt), tokens)
        finally:
            with stub.lock:
                stub.streams -= 1
        usage: dict[str, Any] = {
            "prompt_tokens": stub.told_twice * len(prompt), "completion_tokens": tokens
        }  # fmt: skip
        if stub.says_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": held}
        if stub.says_usage:
            self._event({"choices": [], "usage": usage})
        self.wfile.write(stub.ends)

    def _tokens(self, at_s: float, prompt_tokens: int, tokens: int) -> None:
        """The first at `at_s`, each later one a decode step after the one before."""
        stub = self.stub
        for line in stub.around:
            self.wfile.write(line)
        if stub.extra == "begins":
            self._event({"choices": [{"text": "", "index": 0}]})
        for number in range(1, tokens + 1):
            if number % stub.per_event == 0 or number in (1, tokens):
                time.sleep(max(0.0, at_s - time.monotonic()))
                self._event({"choices": [{"text": "a", "index": 0}], "usage": None})
            at_s += stub.truth.decode_s(stub.streams, prompt_tokens)
        if stub.extra == "ends":
            self._event({"choices": [{"text": "", "index": 0, "finish_reason": "length"}]})

    def _event(self, content: dict[str, Any]) -> None:
        data = b"data: " + json.dumps(content).encode() + b"\r\n\r\n"
        cut = len(data) // 2 if self.stub.piecewise else len(data)
        for piece in (data[:cut], data[cut:]):
            self.wfile.write(piece)
            self.wfile.flush()
            if self.stub.piecewise:
                time.sleep(0.001)

    def _locked(self) -> bool:
        """Whether a key is missing; then that is the answer."""
        wanted = f"Bearer {self.stub.key}" if self.stub.key else None
        if wanted is None or self.headers.get("Authorization") == wanted:
            return False
        self._answer(401, {"error": "Unauthorized"})
        return True

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    """Says nothing of a client that has hung up: that is not the stub's failure."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(truth: Truth | None = None) -> Iterator[tuple[Stub, str]]:
    """A stub that serves, and its URL."""
    stub = Stub(truth or Truth())
    handler = type("StubHandler", (Handler,), {"stub": stub})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield stub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
