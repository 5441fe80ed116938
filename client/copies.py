"""Copies of a simulation, each with the episode of its slot: what a loop has them do.

A loop knows episodes, seeds and budgets; copies carry values between simulations and the table of
open episodes, in dicts (`SingleCopies`) or in arrays (`VectorCopies`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from muxrl.client.adapters.simulation import SimulationError
from muxrl.client.episode_metrics import MetricCollector
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.protocol.user_errors import one_line, user_frame

T = TypeVar("T")


class SimulationFailed(RuntimeError):
    """The simulation raised; its own exception is the cause.

    Attributes:
        place: where in the user's code, and of which type, to be compared; "" if not known.
    """

    place: str = ""

    @classmethod
    def of(cls, verb: str, error: BaseException, remedy: str = "") -> SimulationFailed:
        """Returns what to raise from an exception in one of the simulation's methods."""
        text = str(error) if isinstance(error, SimulationError) else one_line(error)
        failed = cls(f"{text}, in {verb}() of the simulation{remedy}")
        frame = user_frame(error)
        failed.place = f"{frame.filename}:{frame.lineno} {type(error)}" if frame else text
        if isinstance(error, OSError):  # from outside, and may be gone the next time
            failed.place = ""
        return failed


class Over(NamedTuple):
    """An episode that the simulation has ended; what else is to be said of its end."""

    copy: int
    is_truncated: bool
    """Whether agents that are not known to be done were truncated, rather than terminated."""
    final_observations: Mapping[str, Any]
    """Theirs."""
    state: Any
    """The global state, if values are to be bootstrapped."""


class Copies(ABC):
    """``N`` copies of a simulation; copy ``i`` has slot ``i`` of the table.

    Args:
        num: N.
        agents: ids of their agents.
        client: where actions come from.
        metrics: see `MetricCollector`.

    Raises:
        AssignmentError: an agent belongs to no server.
    """

    begin_on_request: ClassVar[bool]
    """Whether each begins an episode, with a seed, when it is told, and is stepped by itself. Else
    all are stepped together, and begin their episodes by themselves."""
    num_steps: Any
    """By copy: the env steps of its episode, also just after its end."""

    def __init__(
        self,
        num: int,
        agents: Iterable[str],
        client: MultiplexingClient,
        metrics: Mapping[str, str],
    ) -> None:
        client.check_agents(agents)
        self.num = num
        self.num_env_steps = 0
        """Of all of them, so far."""
        self.table = client.new_table(num)
        """Of the open episodes."""
        self.metrics = MetricCollector(metrics, num)
        """Of these."""
        self._has_metrics = bool(metrics)
        self._wants_state = client.wants_state

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:  # noqa: B027
        """Has a function be asked for the parameters of episodes that begin by themselves.

        Raises:
            SimulationError: copies begin their episodes without being told anything.
        """

    def reset(self, seed: int | None) -> None:  # noqa: B027
        """Begins the first episode in every copy, if they begin by themselves."""

    def may_begin(self, copy: int) -> bool:
        """Whether the episode that a copy is at, or can be reset to, is at its first step."""
        return True

    @abstractmethod
    def begin(self, copy: int, seed: int | None, parameters: Mapping[str, float]) -> None:
        """Begins an episode in a copy, or notes that one has begun where it stands."""

    @abstractmethod
    def ask(self, outbox: Outbox) -> None:
        """Adds the next step of all that have not been asked since they began or were stepped."""

    @abstractmethod
    def step(self, copies: Sequence[int]) -> Iterator[Over]:
        """Steps copies with the actions that were answered, and logs what followed.

        Yields:
            Those whose episode is over, each of which may begin the next one before the others
            are stepped.

        Raises:
            SimulationFailed: the simulation raised, or broke its rules.
        """

    def _call(self, verb: str, call: Callable[..., T], *args: Any) -> T:
        try:
            return call(*args)
        except (Exception, SystemExit) as error:  # this one would end the process in silence
            raise SimulationFailed.of(verb, error) from error

    def _state_of(self, simulation: Any) -> Any:
        if not self._wants_state:
            return None
        try:
            return simulation.state()
        except (Exception, SystemExit) as error:
            remedy = ", asked for the global state; with use_global_state: false servers do without"
            raise SimulationFailed.of("state", error, remedy) from error
