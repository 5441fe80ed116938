"""The web app of `muxrl watch`: one page, and a stream of server-sent events for it.

Each event has everything that the page shows, some hundred thousand bytes, so that nothing is lost
if a connection breaks. Files are read only while somebody looks, once for all who look, and never
written.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from muxrl.orchestrator.errors import OrchestratorError
from muxrl.orchestrator.manage.listing import Listing
from muxrl.orchestrator.records.run_directory import TRIALS_FILE
from muxrl.orchestrator.watch.run_view import RunView
from muxrl.orchestrator.watch.sweep_view import SweepView
from muxrl.servers.network.access import is_loopback

_INTERVAL_S = 1.0
_QUIET_INTERVAL_S = 4.0
"""Longest interval if nothing changes for a while: the run is over, or its processes start."""
_UNFINISHED_S = 0.05
"""Seconds until the next piece of long files is read."""
_SIGN_OF_LIFE_S = 10.0
"""Seconds between comments if there is no news; sending one shows whether a connection is gone."""
_MOST_WATCHED = 32
"""Number of directories whose curves are kept."""
_STYLES = ("page.css",)
_SCRIPTS = ("elements.js", "charts.js", "run.js", "sweep.js", "folder.js", "live.js")


View = RunView | SweepView | Listing
"""Reads a directory again and again. The data that it returns has a ``kind``, and says whether all
files were read (``is_whole``)."""


def view_of(path: Path) -> View:
    """Returns the view that reads this directory.

    Raises:
        OrchestratorError: the directory is a run's or a sweep's, and a file in it is broken.
    """
    if (path / TRIALS_FILE).is_file():
        return SweepView(path)
    if (path / "metrics").is_dir():
        return RunView(path)
    return Listing(path)


def make_app(root: Path, is_ending: Callable[[], bool]) -> ASGIApp:
    """Returns the app that shows `root`, or with ``?of=FOLDER`` a directory below it.

    Args:
        root: a run, a sweep, or a folder of runs.
        is_ending: tells whether streams of events have to end, after the last news.
    """
    watched: OrderedDict[Path, _Watched] = OrderedDict()
    page, policy = _page()

    def find(request: Request) -> _Watched | None:
        try:
            path = (root / request.query_params.get("of", "")).resolve()
        except (OSError, ValueError):  # not a file name
            return None
        if not path.is_relative_to(root.resolve()):
            return None
        watched[path] = watched.pop(path) if path in watched else _Watched(path)
        if len(watched) > _MOST_WATCHED:
            watched.popitem(last=False)
        return watched[path]

    async def show(request: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    async def stream(request: Request) -> Response:
        if (found := find(request)) is None:
            return PlainTextResponse("muxrl watch shows only what lies in its folder\n", 404)
        return StreamingResponse(_events(found, is_ending), media_type="text/event-stream")

    return _guarded(Starlette(routes=[Route("/", show), Route("/events", stream)]))


class _Watched:
    """The newest state of one directory, for all who look at it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._view: View | None = None
        self._lock = asyncio.Lock()
        self._text = ""
        self._due_at = 0.0
        self._interval_s = _INTERVAL_S

    async def text(self, *, is_last: bool) -> tuple[str, float]:
        """Returns the newest state as JSON, and the seconds until the next one.

        Args:
            is_last: whether to read the files now, though the next state is not due.
        """
        async with self._lock:
            if is_last or time.monotonic() >= self._due_at:
                before, (self._text, is_whole) = self._text, await asyncio.to_thread(self._read)
                has_changed = self._text != before
                self._interval_s = (
                    _INTERVAL_S if has_changed else min(2 * self._interval_s, _QUIET_INTERVAL_S)
                )
                wait_s = self._interval_s if is_whole else _UNFINISHED_S
                self._due_at = time.monotonic() + wait_s
            return self._text, max(0.0, self._due_at - time.monotonic())

    def _read(self) -> tuple[str, bool]:
        try:
            if self._view is None:
                self._view = view_of(self._path)
            state = self._view.read()
        except (OrchestratorError, OSError) as error:  # it may be readable the next time
            self._view = None
            state = {"kind": "problem", "problem": str(error), "is_whole": True}
        # msgspec is twenty times as fast as json, and writes null for numbers that are not finite.
        return msgspec.json.encode(state).decode(), bool(state["is_whole"])


async def _events(watched: _Watched, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
    sent, sent_at = "", 0.0
    is_last = False
    while not is_last:
        is_last = is_ending()
        text, wait_s = await watched.text(is_last=is_last)
        if text != sent:
            yield f"data: {text}\n\n"
            sent, sent_at = text, time.monotonic()
        elif time.monotonic() - sent_at > _SIGN_OF_LIFE_S:
            yield ": nothing new\n\n"
            sent_at = time.monotonic()
        await asyncio.sleep(0.0 if is_last else wait_s)


def _guarded(app: ASGIApp) -> ASGIApp:
    """Returns an app that answers requests of this machine's own pages and programs only.

    The name of a foreign page's host can be made to resolve to 127.0.0.1; the browser then still
    says that name in ``Host``. A foreign page that asks by the right name is named in ``Origin``.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            host, origin = request.headers.get("host", ""), request.headers.get("origin")
            if not is_loopback(host) or origin not in (None, f"http://{host}"):
                refusal = (
                    f"muxrl watch answers pages of its own on loopback names only; the request has "
                    f"Host {host[:100]!r} and Origin {(origin or '')[:100]!r}; use 127.0.0.1\n"
                )
                return await PlainTextResponse(refusal, 403)(scope, receive, send)

            async def send_with_headers(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] += [
                        (b"cache-control", b"no-store"),
                        (b"x-content-type-options", b"nosniff"),
                        (b"referrer-policy", b"no-referrer"),
                    ]
                await send(message)

            return await app(scope, receive, send_with_headers)
        return await app(scope, receive, send)

    return answer


def _page() -> tuple[str, str]:
    """Returns the page as one file, and a policy that lets it load nothing else."""
    folder = files(__package__) / "page"

    def joined(names: tuple[str, ...]) -> str:
        return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)

    def hashed(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    style, script = joined(_STYLES), joined(_SCRIPTS)
    page = joined(("page.html",)).replace("/* style */", style).replace("/* script */", script)
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; "
        f"style-src {hashed(style)}; script-src {hashed(script)}"
    )
    return page, policy
