"""The process of one tracker beside a run: it reads what the run writes to its standard input.

A line is ``["start", {"tracker", "run"}]``, then one ``["row", {"name", "record"}]`` for each row,
and ``["end", {"state"}]``. Standard output is for one sentence, on why the tracker has failed; all
that is printed goes to the log.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from muxrl.orchestrator.trackers.session import Session
from muxrl.orchestrator.trackers.tracker import TrackedRun
from muxrl.orchestrator.user_modules import find_user_modules

_NICENESS = 10
"""Whatever the run has to do comes first."""


def main() -> None:
    """Feeds the tracker until standard input ends; exits with code 1 once the tracker fails."""
    os.nice(_NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    find_user_modules()
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        try:
            _feed()
        except Exception as error:  # noqa: BLE001  # a tracker may raise anything
            traceback.print_exc()
            answer.write(describe_failure(error))
            answer.flush()
            os._exit(1)  # what it does at its exit may wait for the same server


def _feed() -> None:
    session: Session | None = None
    is_over = False
    for line in sys.stdin:
        kind, content = json.loads(line)
        if kind == "start":
            session = Session(content["tracker"], _tracked(content["run"]))
        elif session is not None and kind == "row":
            session.take(**content)
        elif session is not None and kind == "end":
            session.end(**content)
            is_over = True
    if session is not None and not is_over:  # the run was killed
        session.end("interrupted")


def _tracked(values: dict[str, Any]) -> TrackedRun:
    return TrackedRun(**{**values, "folder": Path(values["folder"])})


def describe_failure(error: Exception) -> str:
    """Returns an error's class and the first line of what it says."""
    text = " ".join(str(error).splitlines()[:1])
    return f"{type(error).__name__}: {text}"
