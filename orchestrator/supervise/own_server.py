"""An external server, which muxrl starts by a command or finds at an address.

`OwnServer` has the methods of `ServerProcess`, and sends each call to the server over the network
(`muxrl.protocol.run_messages`).
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import requests

from muxrl.client.network_transport import reason_of
from muxrl.orchestrator.errors import ProcessEnded, RunFailed
from muxrl.orchestrator.storage.checkpoints import SavedServer
from muxrl.orchestrator.supervise.child import Program, how_ended, start_command
from muxrl.orchestrator.supervise.process import reachable
from muxrl.orchestrator.supervise.server_process import Started
from muxrl.orchestrator.supervise.working import in_own_thread
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.messages import ServerSpec, Status
from muxrl.protocol.run_messages import (
    ADDRESS,
    RUN_REQUESTS,
    TOKEN,
    AbortRequest,
    BeginRun,
    FinishRequest,
    ReportRequest,
    RunReport,
    SaveRequest,
)
from muxrl.protocol.suggestions import listed
from muxrl.servers.config import EXTERNAL, ServerPlan

logger = logging.getLogger(__name__)

START_S = 120.0
_LOOK_S = 0.1
_ANSWER_S = 10.0
_TERM_S = 5.0
_NOTICE_S = 1.0
"""How long to wait for news of the program's end after its connection has broken."""
_OURS = {"command", "address", "token", "host", "port"}
"""Fields of a plan that are not sent to the server: only muxrl uses them."""

T = TypeVar("T")


class _Version(msgspec.Struct):
    protocol_version: int = 0


def with_token(plan: ServerPlan) -> ServerPlan:
    """Returns the plan with a token, unless it has one or needs none.

    A server that muxrl starts by a command gets a new token; for a server at an address it is that
    of the environment variable MUXRL_TOKEN.
    """
    found = secrets.token_urlsafe() if plan.command else ""
    found = found or (os.environ.get(TOKEN, "") if plan.address else "")
    return replace(plan, token=plan.token or found)


class OwnServer:
    """An external server, and its program if muxrl starts it.

    Args:
        plan: what the server is to serve, with a command or an address; see `with_token`.
        start_s: how long the server may take until it first answers.
    """

    def __init__(self, plan: ServerPlan, start_s: float = START_S) -> None:
        self.plan = plan
        self.address = plan.address or f"{plan.host}:{plan.port or _free_port(plan.host)}"
        self._start_s = start_s
        self._offers: frozenset[str] = frozenset()
        self._program: Program | None = None
        self._watcher: threading.Thread | None = None
        self._end = ""
        """A sentence on how the program has ended; "" until then."""

    @property
    def _who(self) -> str:
        return f"server {self.plan.server_id!r} at {self.address}"

    # --- start --------------------------------------------------------------------------

    @in_own_thread
    def start(self) -> Started:
        """Starts the program, if the plan has a command, and has the server serve its plan.

        Raises:
            RunFailed: the server did not answer, speaks another version of the protocol, refused
                its plan, or serves other agents.
        """
        if self.plan.command:
            self._launch()
        spec = self._first_spec()
        if "begin" in spec.offers:
            spec = self._run("begin", _asked(self.plan), self._start_s)
        for problem in self._mismatches(spec, self.plan):
            raise RunFailed(f"{self._who}: {problem}")
        self._offers = frozenset(spec.offers)
        return Started(reachable(self.address), os.getpid(), self._offers)

    def check(self, plans: Sequence[ServerPlan]) -> list[str]:
        """Asks the server whether it would serve plans; its program is started and ended for this.

        Args:
            plans: its plan, and others with the same command and address.

        Returns:
            For each plan what is wrong with it, "" if nothing is.

        Raises:
            ProcessEnded: the server cannot be reached, or its program has ended.
            RunFailed: as `start`.
        """
        try:
            if self.plan.command:
                self._launch()
            else:
                self._get("/v1/spec")
            spec = self._first_spec()
            return ["; ".join(self._problems(spec, plan)) for plan in plans]
        finally:
            self.stop()

    def _problems(self, spec: ServerSpec, plan: ServerPlan) -> list[str]:
        if "check" in spec.offers:
            found: list[str] = self._run("check", _asked(plan), self._start_s).problems
            return found
        if "begin" in spec.offers:
            return []  # `start` will say what is wrong
        return [f"{self._who}: {problem}" for problem in self._mismatches(spec, plan)]

    def _launch(self) -> None:
        command = [part.replace("{address}", self.address) for part in self.plan.command]
        env = {ADDRESS: self.address, TOKEN: self.plan.token}
        self._program = start_command(f"servers.{self.plan.server_id}.command", command, env)
        self._watcher = threading.Thread(target=self._watch, args=(self._program,), daemon=True)
        self._watcher.start()

    def _watch(self, program: Program) -> None:
        how = how_ended(program.wait())
        self._end = f"servers.{self.plan.server_id}.command has ended {how}"
        logger.info("%s", self._end)

    def _first_spec(self) -> ServerSpec:
        deadline = time.monotonic() + self._start_s
        while True:
            try:
                content = self._get("/v1/spec")
                break
            except ProcessEnded as error:
                if self._end:
                    raise
                if time.monotonic() >= deadline:
                    raise RunFailed(f"{error} for {self._start_s:g} s") from None
            time.sleep(_LOOK_S)
        theirs = self._decoded(content, _Version).protocol_version
        if theirs != PROTOCOL_VERSION:
            raise RunFailed(
                f"{self._who} speaks version {theirs} of the protocol, this muxrl version "
                f"{PROTOCOL_VERSION}; install the same version of muxrl for both"
            )
        return self._decoded(content, ServerSpec)

    def _mismatches(self, spec: ServerSpec, plan: ServerPlan) -> Iterator[str]:
        if spec.server_id != plan.server_id:
            yield f"its id is {spec.server_id!r}; name it servers.{spec.server_id} in the config"
        if away := [agent for agent in plan.agents if agent not in spec.agents]:
            yield f"expected agents {listed(plan.agents)}; it does not serve {listed(away)}"
        for agent_id, agent in plan.agents.items():
            for kind in ("observation_space", "action_space"):
                ours, theirs = getattr(agent, kind), getattr(spec.agents.get(agent_id), kind, None)
                if theirs != ours:
                    name = kind.replace("_", " ")
                    yield f"the {name} of agent {agent_id!r} is {ours}; the server has {theirs}"

    # --- requests of a run --------------------------------------------------------------

    @in_own_thread
    def status(self) -> Status:
        """Returns the server's status."""
        return self._decoded(self._get("/v1/status"), Status)

    @in_own_thread
    def abort_episodes(self, prefix: str) -> None:
        """Makes the server close the episodes whose ids begin with `prefix` as truncated."""
        if "abort" in self._offers:
            self._run("abort", AbortRequest(prefix))

    def set_paused(self, is_paused: bool) -> None:
        """Does nothing: the protocol has no such request, and idle episodes expire as always."""

    @in_own_thread
    def report(self, taken: int = 0) -> RunReport:
        """See `RunService.report`; of a server that offers no reports, the status alone."""
        if "report" in self._offers:
            return self._run("report", ReportRequest(taken))
        return RunReport(self.status())

    @in_own_thread
    def finish_training(self, timeout_s: float, taken: int = 0) -> RunReport:
        """See `RunService.finish`."""
        if "finish" not in self._offers:
            return self.report(taken)
        asked = FinishRequest(timeout_s, taken)
        return self._run("finish", asked, timeout_s + _ANSWER_S)

    @in_own_thread
    def save(self, path: Path, timeout_s: float, taken: int = 0) -> tuple[SavedServer, RunReport]:
        """Makes the server write its checkpoint; see `RunService.save`.

        Returns:
            What was written, and a report as of that moment.

        Raises:
            RunFailed: the checkpoint was not written, or is not visible on this machine.
        """
        if "save" not in self._offers:
            return SavedServer(self.plan.algorithm), self.report(taken)
        asked = SaveRequest(str(path.absolute()), timeout_s, taken)
        saved = self._run("save", asked, timeout_s + self._start_s)
        if not path.is_dir():
            raise RunFailed(
                f"{self._who} has written its checkpoint, but it is not in {path}; does the "
                "server's machine share no disk with this one?"
            )
        written = SavedServer.of(self.plan.algorithm, saved.iteration, path)
        return written, saved.report

    @in_own_thread
    def stop(self) -> bool:
        """Ends the program, if muxrl has started one. Returns True."""
        if self._program is not None:
            self._program.end(0.0, _TERM_S)
        return True

    # --- over the network ---------------------------------------------------------------

    def _run(self, name: str, asked: msgspec.Struct, timeout_s: float = _ANSWER_S) -> Any:
        answer = self._sent("POST", f"/v1/run/{name}", msgspec.json.encode(asked), timeout_s)
        return self._decoded(answer, RUN_REQUESTS[name][1])

    def _get(self, path: str) -> bytes:
        return self._sent("GET", path, b"", _ANSWER_S)

    def _sent(self, method: str, path: str, body: bytes, timeout_s: float) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.plan.token:
            headers["Authorization"] = f"Bearer {self.plan.token}"
        url = f"http://{self.address}{path}"
        try:
            with requests.Session() as session:  # sessions are not shared between threads
                session.trust_env = False  # no proxy
                answer = session.request(method, url, data=body, headers=headers, timeout=timeout_s)
        except requests.ConnectionError as error:
            if self._watcher is not None and self._offers:  # else the server may not listen yet
                self._watcher.join(_NOTICE_S)
            raise ProcessEnded(self._end or f"{self._who} gave no answer") from error
        except requests.Timeout as error:
            asked = f"{method} {path}"
            raise RunFailed(f"{self._who} did not answer {asked} in {timeout_s:g} s") from error
        except requests.RequestException as error:
            raise RunFailed(f"{self._who}: {type(error).__name__} at {method} {path}") from error
        if answer.status_code != 200:
            got = f"{answer.status_code}: {reason_of(answer.content)}"
            if answer.status_code == 401:
                got += f"; give its token in servers.{self.plan.server_id}.token, or in {TOKEN}"
            raise RunFailed(f"{self._who} answered {method} {path} with {got}")
        return answer.content

    def _decoded(self, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            expected = f"a {kind.__name__} of the protocol"
            raise RunFailed(f"{self._who} answered, but not with {expected}: {error}") from error


def ask_own_servers(
    experiments: Sequence[Mapping[str, ServerPlan]],
) -> tuple[dict[str, list[int]], list[str]]:
    """Asks the external servers of some experiments whether they would serve their plans.

    Each program is started once.

    Args:
        experiments: of each experiment, the plans of its servers by server id.

    Returns:
        Each problem, with the indices of the experiments that have it; and sentences on servers
        that cannot be asked now.
    """
    asked: dict[str, dict[str, tuple[ServerPlan, list[int]]]] = {}
    for i, servers in enumerate(experiments):
        for plan in servers.values():
            if plan.algorithm == EXTERNAL:
                of_process = asked.setdefault(repr((plan.command, plan.address, plan.token)), {})
                of_process.setdefault(repr(plan), (plan, []))[1].append(i)
    problems: dict[str, list[int]] = {}
    deferred = []
    for of_process in asked.values():
        plans, places = zip(*of_process.values(), strict=True)
        try:
            found = OwnServer(with_token(plans[0])).check(plans)
        except RunFailed as error:
            if isinstance(error, ProcessEnded) and plans[0].address:
                deferred.append(f"{error}; the check is repeated when the run begins")
                continue
            found = [str(error)] * len(plans)
        for problem, where in zip(found, places, strict=True):
            if problem:
                problems.setdefault(problem, []).extend(where)
    return problems, deferred


def _asked(plan: ServerPlan) -> BeginRun:
    fields = msgspec.to_builtins(plan)
    return BeginRun({name: value for name, value in fields.items() if name not in _OURS})


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])
