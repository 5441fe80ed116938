"""Runs a trainer's class as a server in a separate process: ``muxrl.serving.run(MyTrainer)``.

The process listens, and waits until a run sends it its plan (``POST /v1/run/begin``). Then it is a
policy server like any other, until the next run begins. Ray and torch are not needed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.errors import NotServing, ValueMismatch
from muxrl.protocol.message_sizes import MOST_BYTES
from muxrl.protocol.messages import AnyItem, ServerSpec, Status
from muxrl.protocol.run_messages import (
    ADDRESS,
    RUN_REQUESTS,
    TOKEN,
    UNTRAINED,
    BeginRun,
    PlanProblems,
)
from muxrl.protocol.suggestions import listed
from muxrl.servers.config import EXTERNAL, LimitsConfig, ServerPlan
from muxrl.servers.import_by_name import CannotImport, import_by_name, path_of
from muxrl.servers.network.front import Answered, Front
from muxrl.servers.network.listening import CannotListen, Network
from muxrl.servers.run_service import RunService
from muxrl.servers.server import PolicyServer, stop_by_signals
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.lookup import EXAMPLE
from muxrl.servers.training.callbacks import find_callback_problems
from muxrl.servers.training.policies import ServerProblem

logger = logging.getLogger(__name__)

_STOP_S = 30.0
_BAD_PLAN = (
    ServerProblem, msgspec.ValidationError, ValueError, ArithmeticError, AssertionError, OSError,
)  # fmt: skip
"""Raised for plans that cannot be served: for a space without numbers, say, or a bad file name."""


def run(make: Callable[..., Any], address: str = "", *, token: str = "") -> None:
    """Serves a trainer in the foreground until SIGINT, SIGTERM or ``POST /v1/shutdown``.

    Args:
        make: the class; see `muxrl.servers.trainers.interface`.
        address: "host:port" to listen on; "": what the environment's MUXRL_ADDRESS says.
        token: the token that requests must have; "": the environment's MUXRL_TOKEN.

    Raises:
        ValueError: there is no address or no token, or the port is taken.
    """
    address, token = address or os.environ.get(ADDRESS, ""), token or os.environ.get(TOKEN, "")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(
            f"muxrl.serving needs an address to listen on, 'host:port', not {address!r}; a run "
            f"gives it in {ADDRESS}"
        )
    if not token:
        raise ValueError(
            f"muxrl.serving needs a token, which every request has to send; put it into {TOKEN}"
        )
    stop = stop_by_signals()
    try:
        serving = Serving(make, host.strip("[]"), int(port), token, stop.set)
    except CannotListen as error:
        raise ValueError(str(error)) from None
    logger.info("%s waits on %s for a run to begin", serving.name, serving.address)
    stop.wait()
    serving.stop()


class Serving:
    """A process that serves one run after another, with trainers of one class.

    Args:
        make: the trainers' class.
        host: address to listen on.
        port: 0 takes a free one.
        token: the token that requests must have.
        on_shutdown: called when a client asks the process to stop.

    Raises:
        CannotListen: the port is taken.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        host: str,
        port: int,
        token: str,
        on_shutdown: Callable[[], None],
    ) -> None:
        self.name = path_of(make) or type(make).__name__
        self._entry = TrainerEntry(self.name, make)
        self._token = token
        self._on_shutdown = on_shutdown
        self._network = Network(self.name, host, port)
        self.address = self._network.address
        self._server: PolicyServer | None = None
        self._lock = threading.Lock()
        limits, offers = LimitsConfig(), [*RUN_REQUESTS]
        spec = ServerSpec(
            PROTOCOL_VERSION, "", self.name, {}, max_message_bytes=MOST_BYTES, offers=offers
        )
        waiting = _Waiting(spec, self.address, token, on_shutdown)
        waiting.run_requests = {"begin": self._begin, "check": self._check}
        self._network.start(
            waiting,
            _nothing,
            max_connections=limits.max_connections,
            keep_alive_s=limits.episode_timeout_s,
        )

    def _check(self, asked: BeginRun) -> PlanProblems:
        """Finds what is wrong with a plan; makes no trainer while another one is being served."""
        try:
            self._planned(asked, makes_trainers=self._server is None)
        except _BAD_PLAN as error:
            return PlanProblems([_problem_of(error)])
        return PlanProblems([])

    def _begin(self, asked: BeginRun) -> ServerSpec:
        """Serves a plan from now on.

        Raises:
            ValueMismatch: no trainer can be made for the plan; an earlier server continues.
        """
        with self._lock:
            try:
                plan = self._planned(asked)
                server = PolicyServer(
                    plan, on_shutdown=self._on_shutdown, network=self._network, trainer=self._entry
                )
            except _BAD_PLAN as error:
                raise ValueMismatch(_problem_of(error)) from error
            if self._server is not None:
                self._server.stop()
            self._server = server
            service = RunService(server)
            service.begin()
            requests = {"begin": self._begin, "check": self._check, **service.requests()}
            spec = server.answer_run(requests, *([UNTRAINED] if plan.keeps_untrained else []))
            server.start()
            return spec

    def _planned(self, asked: BeginRun, *, makes_trainers: bool = True) -> ServerPlan:
        host, _, port = self.address.rpartition(":")
        own = {"algorithm": EXTERNAL, "host": host, "port": int(port), "token": self._token}
        plan = msgspec.convert({**asked.plan, **own}, ServerPlan)
        if not plan.agents:
            raise ServerProblem(f"server {plan.server_id!r} has no agents")
        if plan.groups and not self._entry.seating.is_joint:
            raise ServerProblem(
                f"server {plan.server_id!r} has groups ({listed(plan.groups)}), but {self.name} "
                "learns for each agent alone; leave out the groups, or set the class's forms_teams"
            )
        plan = self._entry.seating.with_groups(plan)
        if not self._entry.asks_for_state:
            plan = replace(plan, state_size=None)
        while_learning = self._entry.find_while_learning(plan.while_learning)
        plan = replace(plan, while_learning=while_learning)
        problems = [*self._entry.find_config_problems(plan)]
        if plan.callbacks:
            problems += find_callback_problems(plan.callbacks)
        if makes_trainers and not problems:
            problems = [*self._entry.find_problems(plan)]
        if problems:
            raise ServerProblem(f"server {plan.server_id!r}: {'; '.join(problems)}")
        return plan

    def stop(self) -> None:
        """Ends the server and the network; nothing is saved."""
        if self._server is not None:
            self._server.stop()
        self._network.stop(_STOP_S)


def _problem_of(error: Exception) -> str:
    if isinstance(error, ServerProblem | msgspec.ValidationError):
        return str(error)
    return f"the plan cannot be served: {type(error).__name__}: {error}"


class _Waiting(Front):
    """Answers while no run has begun yet."""

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        problem = NotServing(f"{self.spec.algorithm} waits for a run to begin")
        reply([self.refuse(item, problem) for item in items])

    def status(self) -> Status:
        return Status("", "starting")


async def _nothing() -> None:
    await asyncio.sleep(0)


def main() -> None:
    """The command ``python -m muxrl.serving module:Class``."""
    parser = argparse.ArgumentParser(prog="python -m muxrl.serving", description=run.__doc__)
    parser.add_argument("trainer", help=f"import path of the class, such as {EXAMPLE}")
    parser.add_argument("--address", default="", help=f"host:port; default: {ADDRESS}")
    given = parser.parse_args()
    try:
        run(import_by_name(given.trainer, EXAMPLE), given.address)
    except (CannotImport, ValueError) as error:
        sys.exit(f"muxrl.serving: {error}")
