"""The little of the OpenAI HTTP interface that timing a server takes: one streamed completion.

The prompt is a list of token ids, so that no tokenizer is needed and lengths are exact; SGLang,
vLLM and llama.cpp take it. Times are when the bytes of a token's event arrived here. Refuses
anything but http and https, and follows no redirect.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hicache.errors import InputError

TIMEOUT_S = 300.0


class Streamed(NamedTuple):
    """One completion. Times are `time.monotonic_ns()`. `cached_tokens`: -1 if the server does not
    say.
    """

    sent_ns: int
    token_ns: tuple[int, ...]
    cached_tokens: int

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
        self.model = model or self._first_model()

    def complete(self, prompt: Sequence[int], tokens: int) -> Streamed:
        """Stream `tokens` tokens after `prompt`. Raises InputError for a server that does not."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = self._connect()
        try:
            # Connected before the clock runs: a client of a server keeps its connection.
            connection.connect()
            text = json.dumps(body)
            sent_ns = time.monotonic_ns()
            connection.request(
                "POST", f"{self._base}/completions", text, {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise InputError(
                    f"{self.url}: {answer.status} {answer.reason}: "
                    f"{answer.read(200).decode(errors='replace').strip()}"
                )
            times, cached = _read_events(answer)
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"{self.url}: {error}") from None
        finally:
            connection.close()
        if not times:
            raise InputError(f"{self.url}: it streamed no token")
        return Streamed(sent_ns, tuple(times), cached)

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            connection.request("GET", f"{self._base}/models")
            answer = connection.getresponse()
            listed = json.loads(answer.read())
            return str(listed["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise InputError(f"{self.url}: {error}") from None
        except (ValueError, LookupError, TypeError):
            raise InputError(f"{self.url}: no list of models at {self._base}/models") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=TIMEOUT_S)


def _read_events(answer: http.client.HTTPResponse) -> tuple[list[int], int]:
    """When each token's event came, and how many tokens of the prompt were cached."""
    times: list[int] = []
    cached = -1
    while line := answer.readline():
        now_ns = time.monotonic_ns()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        try:
            event: Any = json.loads(data)
        except ValueError:
            continue
        # The last event may hold usage and no choice.
        if event.get("choices"):
            times.append(now_ns)
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        if isinstance(details.get("cached_tokens"), int):
            cached = details["cached_tokens"]
    return times, cached
