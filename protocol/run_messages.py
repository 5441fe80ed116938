"""Requests of a run to a server in a separate process: ``POST /v1/run/NAME``, in JSON.

The ``offers`` of a server's spec name the requests that the server answers; the run continues
without the others.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from muxrl.protocol.messages import ServerSpec, Status

ADDRESS, TOKEN = "MUXRL_ADDRESS", "MUXRL_TOKEN"
"""Environment variables of the program that `servers.X.command` starts: the address to listen at,
and the token to ask for. muxrl itself reads TOKEN for an address without a token in the config,
as in that of a finished run."""

UNTRAINED = "untrained"
"""The name in ``offers`` of servers that keep their first weights; see `StartEpisode.untrained`."""

PARAMETERS = "parameters"
"""The name in ``offers`` of a run's gateway that gives episodes parameters; see `Started`."""


class BeginRun(msgspec.Struct):
    """A plan to check, or to serve from now on in place of the plan that was served before.

    `plan` has the fields of `muxrl.servers.config.ServerPlan`. With ``resume_from`` the server
    continues from that checkpoint.
    """

    plan: Annotated[dict[str, Any], Meta(extra_json_schema={"additionalProperties": True})]


class PlanProblems(msgspec.Struct):
    """The problems of a plan, in sentences; an empty list if it can be served."""

    problems: list[str]


class ReportRequest(msgspec.Struct, omit_defaults=True):
    """Asks for a `RunReport` with the records of the iterations after `taken`."""

    taken: int = 0


Timeout = Annotated[float, Meta(ge=0, le=1e9)]
"""Seconds; the system waits for no more than some centuries."""


class FinishRequest(msgspec.Struct, omit_defaults=True):
    """Asks the server to end learning within `timeout_s`, and to continue acting."""

    timeout_s: Timeout
    taken: int = 0


class SaveRequest(msgspec.Struct, omit_defaults=True):
    """Asks for a checkpoint in the folder `path`, written between two updates.

    The path is absolute. `timeout_s` limits how long the server waits for the end of an update.
    """

    path: str
    timeout_s: Timeout
    taken: int = 0


class AbortRequest(msgspec.Struct):
    """Asks to close episodes whose ids begin with `prefix`, because their simulation is lost."""

    prefix: str


class RunReport(msgspec.Struct, omit_defaults=True):
    """The state of a server, and what it has done.

    `records` has an object for each training iteration, with the key ``iteration``. `cpu_s` is the
    processor time since the server began. `activity` has the seconds that the server has spent on
    each of its activities. `latencies` are histograms of durations, by what was measured.
    """

    status: Status
    records: list[dict[str, Any]] = []
    cpu_s: float = 0.0
    activity: dict[str, float] = {}
    latencies: dict[str, list[int]] = {}


class SavedPart(msgspec.Struct):
    """A checkpoint was written after `iteration`; `report` describes the server at that moment."""

    iteration: int
    report: RunReport


class Aborting(msgspec.Struct):
    """The episodes will be closed."""


RUN_REQUESTS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "check": (BeginRun, PlanProblems),
    "begin": (BeginRun, ServerSpec),
    "report": (ReportRequest, RunReport),
    "save": (SaveRequest, SavedPart),
    "finish": (FinishRequest, RunReport),
    "abort": (AbortRequest, Aborting),
}
"""By request name: the types of the request and of its answer."""
