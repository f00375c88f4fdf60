"""Headless Chromium, driven over a pipe with its own protocol: no library, no port, no network.

`Page` opens one file and answers what a script says of it. Skips where there is no Chromium
(Debian: chromium-headless-shell or chromium).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 90


def find_chromium() -> str:
    """The program; skips the test where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium here: none of {', '.join(NAMES)} is on the path")
    return found


class Page:
    """A page in a window of `width` CSS pixels. `problems`: what it logged or asked the network."""

    def __init__(self, file: Path, profile: Path, width: int, height: int = 900) -> None:
        program = find_chromium()
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()

        def wire() -> None:
            # Chromium reads commands from descriptor 3 and answers on 4.
            low, high = os.dup(to_child), os.dup(from_child)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", f"--user-data-dir={profile}",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=wire,  # noqa: PLW1509 (no threads here)
            pass_fds=(3, 4, to_child, from_child),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._number = 0
        self._rest = b""
        self.problems: list[str] = []
        self._session: str | None = None
        targets = self._send("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self._send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._send(f"{domain}.enable")
        self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        self._loaded = False
        self._send("Page.navigate", url=file.as_uri())
        while not self._loaded:
            self._hear(self._receive())

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key of the keyboard: Tab, Enter, Space."""
        codes = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
        code, text = codes[key]
        for kind in ("keyDown", "keyUp"):
            self._send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )  # fmt: skip

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._receive()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard["error"]
                return heard["result"]
            self._hear(heard)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], PATIENCE_S)
            assert ready, f"Chromium has said nothing for {PATIENCE_S} s"
            part = os.read(self._read, 1 << 16)
            assert part, "Chromium has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _hear(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {params['exceptionDetails']}")
        elif method == "Log.entryAdded":
            self.problems.append(f"log: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:")):
                self.problems.append(f"network: {url}")
