"""The interface through which a loop drives several copies of a simulation.

The loop decides on episodes, seeds and budgets. The copies carry values between the simulations and
the table of open episodes, in dicts (`SingleCopies`) or in arrays (`VectorCopies`).
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
        place: line in the user's code and type of the exception, to recognise the same failure;
            "" if not known.
    """

    place: str = ""

    @classmethod
    def of(cls, verb: str, error: BaseException, remedy: str = "") -> SimulationFailed:
        """Returns the error to raise for an exception in one of the simulation's methods."""
        text = str(error) if isinstance(error, SimulationError) else one_line(error)
        failed = cls(f"{text}, in {verb}() of the simulation{remedy}")
        frame = user_frame(error)
        failed.place = f"{frame.filename}:{frame.lineno} {type(error)}" if frame else text
        if isinstance(error, OSError):  # its cause is outside, and may be gone the next time
            failed.place = ""
        return failed


class Over(NamedTuple):
    """An episode that the simulation has ended, with what else its end has to say."""

    copy: int
    is_truncated: bool
    """Whether agents whose end was not logged were truncated rather than terminated."""
    final_observations: Mapping[str, Any]
    """By agent whose end was not logged: its final observation."""
    state: Any
    """The global state, if values have to be bootstrapped."""


class Copies(ABC):
    """``N`` copies of a simulation; copy ``i`` has slot ``i`` of the table.

    Args:
        num: N.
        agents: ids of the simulation's agents.
        client: where actions come from.
        metrics: see `MetricCollector`.

    Raises:
        AssignmentError: an agent belongs to no server.
    """

    begin_on_request: ClassVar[bool]
    """Whether each copy is stepped separately, and begins an episode, with a seed, on request.
    If not, all copies are stepped together, and begin their episodes by themselves."""
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
        """Env steps of all copies so far."""
        self.table = client.new_table(num)
        """The table of their open episodes."""
        self.metrics = MetricCollector(metrics, num)
        """Collects the metrics of these episodes."""
        self._has_metrics = bool(metrics)
        self._wants_state = client.wants_state

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:  # noqa: B027
        """Sets where parameters come from, of episodes that begin by themselves.

        Raises:
            SimulationError: copies begin their episodes without taking parameters.
        """

    def reset(self, seed: int | None) -> None:  # noqa: B027
        """Begins the first episode in every copy, if they begin by themselves."""

    def may_begin(self, copy: int) -> bool:
        """Whether a copy can be reset now, or is at the first step of an episode."""
        return True

    @abstractmethod
    def begin(self, copy: int, seed: int | None, parameters: Mapping[str, float]) -> None:
        """Begins an episode in a copy, or notes that one begins where the copy stands."""

    @abstractmethod
    def ask(self, outbox: Outbox) -> None:
        """Adds the next step of every copy that has begun or was stepped since the last call."""

    @abstractmethod
    def step(self, copies: Sequence[int]) -> Iterator[Over]:
        """Steps copies with the actions that were answered, and logs rewards and ends.

        Yields:
            The episodes that are over; each copy may begin its next one before the others are
            stepped.

        Raises:
            SimulationFailed: the simulation raised, or broke its rules.
        """

    def _call(self, verb: str, call: Callable[..., T], *args: Any) -> T:
        try:
            return call(*args)
        except (Exception, SystemExit) as error:  # SystemExit would end the process in silence
            raise SimulationFailed.of(verb, error) from error

    def _state_of(self, simulation: Any) -> Any:
        if not self._wants_state:
            return None
        try:
            return simulation.state()
        except (Exception, SystemExit) as error:
            remedy = (
                ", called for the global state; use_global_state: false lets servers do without"
            )
            raise SimulationFailed.of("state", error, remedy) from error
