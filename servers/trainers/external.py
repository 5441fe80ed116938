"""A server whose trainer is in a process of its own, of which muxrl knows what it says itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import EXTERNAL, ServerConfig, ServerPlan, WhileLearning
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.entry import TrainerEntry


@dataclass(frozen=True)
class ExternalEntry(TrainerEntry):
    """What `servers.X.command` starts, or is at `servers.X.address`; it checks its own settings."""

    name: str = EXTERNAL
    make: Any = None

    @property
    def summary(self) -> str:
        return "a server in a process of its own (command or address)"

    @property
    def default_while_learning(self) -> WhileLearning:
        """It is for the process to decide."""
        return "auto"

    def settings(self) -> dict[str, Any]:
        return {}

    def find_config_problems(self, config: ServerConfig) -> Iterator[str]:
        if config.command and config.address:
            yield (
                "has a command and an address: a server that muxrl starts, or one that is there "
                "already; leave out one of them"
            )
        if not config.command and not config.address:
            yield f"is {EXTERNAL}; give the command that starts it, or its address"
        host, colon, port = config.address.rpartition(":")
        if config.address and not (host and colon and port.isdigit()):
            yield f"has the address {config.address!r}; it must look like '127.0.0.1:9950'"

    def find_problems(self, plan: ServerPlan, others: Sequence[Any] = ()) -> Iterator[str]:
        """Yields nothing: the process says it when the run begins."""
        yield from ()

    def make_actors(self, plan: ServerPlan, seats: Mapping[str, Seat]) -> Actors:
        raise AlgorithmProblem(
            "its policies are a process's own, so only that can act with them: evaluate the run, "
            "or connect to the process"
        )
