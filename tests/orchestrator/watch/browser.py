"""A headless Chromium, driven over the DevTools protocol."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
    "--remote-debugging-port=0",
)
PATIENCE_S = 30.0


class Navigated(Exception):
    """The page was left while an expression was evaluated in it."""


class Browser:
    """One tab of the browser; it notes the address of each of its network requests."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        """Exceptions of pages, and what their security policy refused."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a method of the browser and returns its answer."""
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(timeout=PATIENCE_S))
            if message.get("id") == number:
                if "navigated" in message.get("error", {}).get("message", ""):
                    raise Navigated
                assert "error" not in message, message
                return dict(message["result"])
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            elif message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(message["params"]))

    def evaluate(self, script: str) -> Any:
        """Returns the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_true(script):
            assert time.monotonic() < deadline, (
                f"{script}: {self.evaluate('document.body.innerText')}"
            )
            time.sleep(0.05)

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.evaluate(f"!!({script})"))
        except Navigated:  # a click has led to another page, which is being loaded
            return False

    def open(self, address: str) -> None:
        """Opens a page and waits until it is drawn."""
        self.call("Page.navigate", url=address)
        self.wait(
            "location.href !== 'about:blank' && document.querySelector('#page')?.dataset.drawn"
        )

    def resize(self, width: int, height: int = 900) -> None:
        """Gives the tab another size, as if on a phone or a wide screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.wait(f"innerWidth === {width}")


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Starts Chromium with its files in `folder`; ends it and its processes with the block."""
    process = subprocess.Popen(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port_file = folder / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE_S
        while not port_file.is_file() or not port_file.read_text().strip():
            assert time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.05)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=PATIENCE_S) as tabs:
            tab = next(t for t in json.load(tabs) if t["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], max_size=None, proxy=None) as connection:
            yield Browser(connection)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
