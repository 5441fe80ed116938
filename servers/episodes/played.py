"""Checks steps in which a client acted by itself, and adds what the server would have recorded.

The client has drawn the actions from the server's own policy, so they count as the server's, chosen
by the version of the weights that the client names. If the learner reads log-probabilities, the
client also sends the logits, from which they are computed. Actions that are older than any of the
server's own can be are counted, and taken as chosen elsewhere. A learner with a replay reads no
log-probabilities, and no action is too old for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.message_sizes import AgentSpaces
from muxrl.protocol.messages import MIN_LOG_PROB, PlayedRows, PlayedSteps, Step
from muxrl.protocol.rows import Kind, Layout, are_floats, each_array
from muxrl.protocol.spaces import Box, Discrete
from muxrl.protocol.values import Mismatch, conform
from muxrl.servers.agents.log_probs import DISTRIBUTION, IS_LOGGED, LOG_PROB, log_probs_of
from muxrl.servers.episodes.blocks import Block, Chosen
from muxrl.servers.episodes.step_check import mismatch
from muxrl.servers.episodes.trajectories import stack

Row = tuple[np.ndarray, np.ndarray]
"""Logits of an agent's action, and the log-probabilities of all its actions, float32 ``[n]``."""

_REPLAY_STEPS = 64
"""Env steps that a client may play before it reports them to a server with a replay. The server's
batches (4 steps for DQN, an episode for QMIX) would cost a message each; and what a replay draws
was chosen by thousands of versions anyway."""


class Drawn(NamedTuple):
    """What the actions of a step were drawn from: rows of each kind of action space, or nothing."""

    logits: Sequence[np.ndarray] = ()
    log_probs: Sequence[np.ndarray] = ()
    """Log-probabilities of all actions; infinite for stale actions."""

    @classmethod
    def of(cls, kinds: Sequence[Kind], rows: Mapping[str, Row]) -> Drawn:
        """Returns what the actions of one episode were drawn from, given by agent."""
        if not rows:
            return cls()
        pairs = [[rows[agent_id] for agent_id in kind.agents] for kind in kinds]
        return cls(*([np.array([[p[i] for p in own]]) for own in pairs] for i in (0, 1)))


class StateShape(NamedTuple):
    """A seat's recurrent state: its key in the module's state, its shape, the seat's members."""

    key: str
    shape: tuple[int, ...]
    members: tuple[str, ...]


class PlayedCheck:
    """Reads `PlayedSteps`.

    Args:
        agents: the server's agents, by id.
        problem: why the server takes no such steps; "": it takes them.
        version: returns the version of the weights in use.
        max_lag: number of versions by which actions may be older and still teach the policy; None:
            the learner reads no log-probabilities, so logits are not wanted, and all actions teach.
        states: by id of each seat with a recurrent network.
        epsilon: returns the probability of a random action; see `PolicyWeights`.
        reports_logged: whether the server records which actions a client chose, as `IS_LOGGED`.
            Actions of played steps count as the server's own, unless they are stale.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSpaces],
        problem: str,
        version: Callable[[], int],
        max_lag: int | None,
        states: Mapping[str, StateShape] = MappingProxyType({}),
        epsilon: Callable[[], float | None] = lambda: None,
        *,
        reports_logged: bool = False,
    ) -> None:
        self._action_spaces = {
            agent_id: agent.action_space
            for agent_id, agent in agents.items()
            if isinstance(agent.action_space, Discrete)
        }
        self._problem = problem
        self.version = version
        self._max_lag = max_lag
        self._states = states
        self.epsilon = epsilon
        self.reports_logged = reports_logged

    @property
    def min_wanted(self) -> int:
        """The fewest env steps after which a client should report what it has played."""
        return _REPLAY_STEPS if self._max_lag is None else 1

    def read(
        self, item: PlayedSteps
    ) -> tuple[bool, dict[str, Any], Iterator[tuple[Step, dict[str, Row]]]]:
        """Reads an item.

        Returns:
            Whether the actions are stale: too old to teach the policy, with infinite
            log-probabilities; the recurrent states after the last step, by seat; and the steps,
            each with what its agents' actions were drawn from.

        Raises:
            ValueMismatch: an action, its logits or a recurrent state are missing or invalid, or the
                server takes no such steps. The other values of steps are not checked.
        """
        is_stale = self.are_stale(item.weights_seq_no)
        counts: Counter[str] = Counter()
        for step in item.steps:
            if step.episode_id != item.episode_id:
                raise ValueMismatch(
                    f"a step of episode {step.episode_id[:40]!r} came among steps of another "
                    "episode"
                )
            if not step.observations:
                raise ValueMismatch(
                    f"no agent observes in step t={step.t}, which came as played by a client"
                )
            if step.logged_actions.keys() != step.observations.keys() or step.logged_log_probs:
                raise ValueMismatch(
                    f"step t={step.t} was played by a client with local inference, so it needs a "
                    "logged action of each agent that observes, and no log-probabilities",
                    expected=f"actions of {list(step.observations)}",
                    got=f"actions of {list(step.logged_actions)}",
                )
            counts.update(step.observations.keys())
        columns = {}
        if self._max_lag is not None:
            columns = {a: self._columns(a, item.logits.get(a), n) for a, n in counts.items()}
        elif item.logits:
            raise ValueMismatch("logits came, but the server's learner reads none")
        if more := item.logits.keys() - columns.keys():
            raise ValueMismatch(f"logits came of agents that did not act: {sorted(more)}")
        states = self._read_states(item.states, counts.keys())
        if is_stale:
            for _, log_probs in columns.values():
                log_probs[:] = np.inf
        return is_stale, states, self._rows(item, columns)

    def read_rows(
        self, item: PlayedRows, layout: Layout
    ) -> tuple[bool, Drawn, dict[str, Any]] | None:
        """Reads a step of several episodes, whose actions conform to their spaces.

        Returns:
            Whether the actions are stale; what they were drawn from; and the recurrent states, by
            seat. None: a value is wrong, and the items of the single episodes will say which.

        Raises:
            ValueMismatch: the server takes no such steps, or never had such weights.
        """
        is_stale = self.are_stale(item.weights_seq_no)
        kinds = [] if self._max_lag is None else layout.acted
        if len(item.logits) != len(kinds):
            return None
        lead, log_probs = len(item.t), []
        for kind, actions, logits in zip(
            kinds, item.logged_actions or (), item.logits, strict=False
        ):
            assert isinstance(kind.space, Discrete)
            if not are_floats(logits, (lead, len(kind.agents), kind.space.n), math.inf, np.float32):
                return None
            with np.errstate(over="ignore"):
                log_probs.append(log_probs_of(logits))
            if (_of(actions - kind.space.start, log_probs[-1]) < MIN_LOG_PROB).any():
                return None
            if is_stale:
                log_probs[-1][:] = np.inf
        try:
            states = self._read_states(item.states, layout.agents, lead)
        except ValueMismatch:
            return None
        return is_stale, Drawn(item.logits, log_probs), states

    def are_stale(self, version: int) -> bool:
        """Returns whether actions of these weights are too old.

        Raises:
            ValueMismatch: the server takes no such steps, or never had the weights.
        """
        if self._problem:
            raise ValueMismatch(
                f"it takes no steps that a client played with local inference: {self._problem}"
            )
        newest = self.version()
        if not 0 <= version <= newest:
            raise ValueMismatch(
                f"it never had weights of version {version}; was it restarted?",
                expected=f"0 to {newest}",
                got=str(version),
            )
        return self._max_lag is not None and newest - version > self._max_lag

    def _read_states(
        self, given: Mapping[str, Any], acted: Collection[str], *lead: int
    ) -> dict[str, Any]:
        """Returns the module's states by seat; seats whose agents have not acted may lack one.

        Args:
            given: by seat, the state of one episode, or of several with leading dimensions `lead`.
            acted: ids of the agents that have acted.
            lead: number of episodes; left out for a single one.
        """
        known = self._states
        needed = {s for s, state in known.items() if not set(state.members).isdisjoint(acted)}
        if not needed <= given.keys() <= known.keys():
            raise ValueMismatch(
                "steps that a client played must come with the recurrent states after the last of "
                "them",
                expected=f"states of {sorted(needed)}",
                got=f"states of {sorted(given)}",
            )
        states = {}
        for seat_id, value in given.items():
            key, shape, _ = known[seat_id]
            try:
                rows = conform(Box((*lead, *shape)), value)
                states[seat_id] = {key: rows.reshape(-1, *shape)}
            except Mismatch as error:
                what = f"recurrent state of group {seat_id!r}"
                raise mismatch(what, error, may_be_unsound=False) from None
        return states

    def _columns(self, agent_id: str, logits: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns logits and log-probabilities, float32 ``[count, n]`` each."""
        # An unknown agent is refused by the step's own check.
        actions = self._action_spaces.get(agent_id)
        space = Box((count, 1 if actions is None else actions.n))
        try:
            rows = np.empty(space.shape, np.float32)
            rows[:] = conform(space, np.zeros_like(rows) if actions is None else logits)
        except Mismatch as error:
            raise mismatch("logits", error, agent_id, may_be_unsound=False) from None
        with np.errstate(over="ignore"):  # minus infinity is right for logits that are far apart
            return rows, log_probs_of(rows)

    def _rows(
        self, item: PlayedSteps, columns: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> Iterator[tuple[Step, dict[str, Row]]]:
        left = {agent_id: zip(*both, strict=True) for agent_id, both in columns.items()}
        for step in item.steps:
            rows: dict[str, Row] = {
                a: next(left[a]) for a in left.keys() & step.observations.keys()
            }
            for agent_id in rows.keys() & self._action_spaces.keys():
                _check_drawn(step, agent_id, self._action_spaces[agent_id], rows[agent_id][1])
            yield step, rows


def _check_drawn(step: Step, agent_id: str, space: Discrete, log_probs: np.ndarray) -> None:
    """Refuses an action that cannot have been drawn with these log-probabilities ``[n]``."""
    try:
        action = conform(space, step.logged_actions[agent_id]) - space.start
    except Mismatch:
        return  # the step's own check refuses it
    log_prob = log_probs[action]
    if log_prob < MIN_LOG_PROB:
        raise ValueMismatch(
            f"step t={step.t}: by its logits, the logged action of agent {agent_id!r} has the "
            f"log-probability {log_prob:g}: it cannot have been drawn from them",
            agent_id=agent_id,
            expected=f"at least {MIN_LOG_PROB:g}",
            got=f"{log_prob:g}",
        )


def chosen_by_client(
    block: Block,
    drawn: Drawn,
    states: Mapping[str, Any],
    is_logged: bool | None = None,
) -> list[Chosen]:
    """Returns the choices for a recorded step as if the server had made them.

    Args:
        block: the step, with the actions that the client has chosen.
        drawn: what the actions were drawn from.
        states: recurrent states after the actions, by seat, dicts of ``[E, ...]``.
        is_logged: the value to record as `IS_LOGGED`; None: nothing is recorded.
    """
    assert block.logged is not None
    chosen = []
    for one, logged in zip(block.served.parts, block.logged, strict=True):
        actions = logged.actions
        kept = [states.get(seat.seat_id) for seat in one.seats]
        outputs: dict[str, Any] = {}
        # In teams, members that do not act have action 0.
        if drawn.logits and not one.is_team:
            outputs[LOG_PROB] = _of(actions, one.of_acting(drawn.log_probs))
            outputs[DISTRIBUTION] = one.of_acting(drawn.logits)
        if is_logged is not None:
            outputs[IS_LOGGED] = np.full(actions.shape, is_logged)
        after = None
        if all(state is not None for state in kept):
            after = each_array(lambda x: np.moveaxis(x, 0, 1), stack(kept))
        chosen.append(Chosen(actions, outputs, after))
    return chosen


def _of(actions: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
    """Returns the log-probabilities of some actions, ``[E, S]``, out of ``[E, S, n]``."""
    flat = log_probs.reshape(-1, log_probs.shape[-1])  # a quarter of the time of `take_along_axis`
    return flat[np.arange(len(flat)), actions.reshape(-1)].reshape(actions.shape)
