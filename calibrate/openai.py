"""The little of the OpenAI HTTP interface that timing a server takes: one streamed completion.

The prompt is a list of token ids, so that no tokenizer is needed and lengths are exact; SGLang,
vLLM and llama.cpp take it. Times are when the bytes of a token's event arrived here. A server that
wants a key gets that of `HICACHE_API_KEY`. Refuses anything but http and https, follows no
redirect, and takes no answer that is not streamed token by token for one that is.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hicache.errors import InputError

TIMEOUT_S = 120.0
KEY = "HICACHE_API_KEY"
# What a server says that would take the request another time, how often it is asked, and how long
# after.
TOO_BUSY = (429, 503)
ATTEMPTS, PAUSE_S = 5, 1.0
_FORBIDDEN = (401, 403)
_NOT_THERE = (404, 405, 501)


class Event(NamedTuple):
    """A piece of an answer: when it came, and whether there is no text in it."""

    at_ns: int
    empty: bool


class Streamed(NamedTuple):
    """One completion. Times are `time.monotonic_ns()`. What a server does not say is -1: tokens of
    the prompt, of these cached, tokens of the answer.
    """

    sent_ns: int
    token_ns: tuple[int, ...]
    cached_tokens: int = -1
    prompt_tokens: int = -1
    tokens: int = -1

    @property
    def ttft_ns(self) -> int:
        """From the request to its first token."""
        return self.token_ns[0] - self.sent_ns


class Server:
    """A server at `url`; "/v1" may be left out. Each call makes a connection of its own."""

    def __init__(self, url: str, model: str = "") -> None:
        """`model`: "" for the first that the server lists. Raises InputError."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--server {url}: it must be a URL such as http://localhost:8000")
        self.url = url
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        try:
            self._port = parts.port
        except ValueError:
            raise InputError(f"--server {url}: no such port") from None
        path = parts.path.rstrip("/")
        self._base = path if path.endswith("/v1") else f"{path}/v1"
        self._headers = {"Content-Type": "application/json"}
        key = os.environ.get(KEY, "")
        if key:
            if not key.isascii() or not key.isprintable():
                raise InputError(f"{KEY} holds characters that no key has")
            self._headers["Authorization"] = f"Bearer {key}"
        self.model = model or self._first_model()

    def check(self, prompt: Sequence[int]) -> None:
        """Raises InputError for a server that cannot be timed: ask before anything is measured."""
        told = self.complete(prompt, 1).prompt_tokens
        if told >= 0 and not len(prompt) <= told <= len(prompt) + 1:
            raise InputError(
                f"{self.url}: it took a prompt of {len(prompt)} token ids for {told} tokens; it "
                "must take prompts of token ids"
            )

    def complete(self, prompt: Sequence[int], tokens: int) -> Streamed:
        """Stream `tokens` tokens after `prompt`. Raises InputError for a server that does not."""
        text = json.dumps(
            {
                "model": self.model,
                "prompt": list(prompt),
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        for _ in range(ATTEMPTS - 1):
            found = self._once(text, tokens)
            if found is not None:
                return found
            time.sleep(PAUSE_S)
        found = self._once(text, tokens)
        if found is None:
            raise InputError(f"{self.url}: it was too busy for a request, {ATTEMPTS} times")
        return found

    def _once(self, text: str, tokens: int) -> Streamed | None:
        """One attempt; None where the server says that it has too much to do."""
        connection = self._connect()
        try:
            # Connected before the clock runs: a client of a server keeps its connection.
            connection.connect()
            sent_ns = time.monotonic_ns()
            connection.request("POST", f"{self._base}/completions", text, self._headers)
            with connection.getresponse() as answer:
                if answer.status in TOO_BUSY:
                    return None
                if answer.status != http.client.OK:
                    raise InputError(f"{self.url}: {self._refusal(answer)}")
                stream = _Stream(self.url)
                stream.read(answer, sent_ns)
        except TimeoutError:
            raise InputError(f"{self.url}: nothing came for {TIMEOUT_S:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"{self.url}: {error}") from None
        finally:
            connection.close()
        return stream.streamed(sent_ns, tokens)

    def _refusal(self, answer: http.client.HTTPResponse) -> str:
        """A status that is no success, in words."""
        status = f"{answer.status} {answer.reason}"
        if answer.status in _FORBIDDEN:
            known = f"it does not take the key of {KEY}" if os.environ.get(KEY) else (
                f"it wants a key; set {KEY}"
            )  # fmt: skip
            return f"{status}: {known}"
        if answer.status in _NOT_THERE:
            return (
                f"{status}: no {self._base}/completions, which takes prompts of token ids; a "
                "server that only chats cannot be timed"
            )
        return f"{status}: {answer.read(200).decode(errors='replace').strip()}"

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            connection.request("GET", f"{self._base}/models", headers=self._headers)
            with connection.getresponse() as answer:
                if answer.status in _FORBIDDEN:
                    raise InputError(f"{self.url}: {self._refusal(answer)}")
                listed = json.loads(answer.read())
            return str(listed["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"{self.url}: {error}") from None
        except (ValueError, LookupError, TypeError):
            raise InputError(
                f"{self.url}: no list of models at {self._base}/models; give --served-model"
            ) from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=TIMEOUT_S)


class _Stream:
    """The events of one answer, read as they come."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._events: list[Event] = []
        self._usage: dict[str, Any] = {}
        self._whole = False

    def read(self, answer: http.client.HTTPResponse, sent_ns: int) -> None:
        """Read to the end. Raises InputError for an answer that is none."""
        begin = b""
        while line := answer.readline():
            now_ns = time.monotonic_ns()
            if now_ns - sent_ns > TIMEOUT_S * 1e9:
                raise InputError(f"{self._url}: an answer took longer than {TIMEOUT_S:g} s")
            begin = begin or line
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self._whole = True
                break
            try:
                event: Any = json.loads(data)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._take(event, now_ns)
        if not self._events:
            said = begin[:200].decode(errors="replace").strip()
            raise InputError(f"{self._url}: it streamed no token" + (f": {said}" if said else ""))
        if not self._whole:
            raise InputError(f"{self._url}: its answer broke off after {len(self._events)} tokens")

    def _take(self, event: dict[str, Any], now_ns: int) -> None:
        if event.get("error"):
            raise InputError(f"{self._url}: {str(event['error'])[:200]}")
        choices = event.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            choice: dict[str, Any] = choices[0]
            self._events.append(Event(now_ns, not choice.get("text")))
            self._whole = self._whole or choice.get("finish_reason") is not None
        # Usage may stand in every event; the last is the whole answer's, and may hold no choice.
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage = usage

    def streamed(self, sent_ns: int, asked: int) -> Streamed:
        """What was read, `asked` for so many tokens."""
        details = self._usage.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, dict) else -1
        tokens = _count(self._usage, "completion_tokens")
        kept = list(self._events)
        # Servers may add an event that begins or ends the answer. A token may have no text either.
        most = tokens if tokens > 0 else asked
        while len(kept) > most and kept[-1].empty:
            kept.pop()
        while len(kept) > most and kept[0].empty:
            kept.pop(0)
        times = tuple(each.at_ns for each in kept)
        return Streamed(sent_ns, times, cached, _count(self._usage, "prompt_tokens"), tokens)


def _count(table: dict[str, Any], key: str) -> int:
    """A number of tokens; -1 where it is not told."""
    value = table.get(key)
    return value if isinstance(value, int) and value >= 0 else -1
