"""Verifies that a file acts as a frozen server does, from observations to actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.protocol.rows import pick
from muxrl.protocol.spaces import (
    ACTION_MASK_KEY,
    Box,
    DictSpace,
    Discrete,
    Space,
    parts_of,
    typed_bounds,
)
from muxrl.protocol.values import sample
from muxrl.servers.acting import Acting
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import leaves
from muxrl.servers.alone import Alone
from muxrl.servers.config import ServerPlan
from muxrl.servers.export.graph import ACTION, STATE_IN, STATE_OUT, PolicyGraph, ServerRow
from muxrl.servers.export.onnx_file import OnnxPolicy
from muxrl.servers.export.ports import moderate

NUM_OBSERVATIONS = 1_000
TOLERANCE = 1e-5
"""Largest difference of scores and continuous actions, relative to the largest score of any
observation so far, or to 1."""
_ROWS = 50
"""About the number of rows to ask at once; below that at which a server changes from numpy to
torch."""
_P_ABSENT = 0.1
"""Probability that an agent does not act at a step after the first."""


class Differs(ValueError):
    """A file does not act as the server does; the message says where."""


@dataclass
class _Episode:
    """The states of server and file in one episode."""

    alone: Alone
    """State of the server."""
    seen: dict[str, list[Any]] = field(default_factory=dict)
    """By agent: its last observations, as many as the file takes at once."""
    last_actions: dict[str, Any] = field(default_factory=dict)
    states: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """By agent: the file's recurrent state."""


@dataclass
class _Row:
    """One agent at one step: the file's inputs, and the server's answer."""

    episode: _Episode
    agent_id: str
    feed: dict[str, np.ndarray]
    action: Any = None
    """None: the agent does not act, but its state changes."""
    scores: np.ndarray | None = None


@dataclass
class Verification:
    """Plays made-up episodes with a server's inference and with a policy's file.

    Observations are drawn from the agents' spaces, and one agent in ten does not act at a step;
    masks leave at least one action. Server and file keep their own recurrent states; both get the
    server's last actions.

    Attributes:
        plan: the server.
        seats: all seats of the server that the policy acts for, by seat id.
        graph: the policy.
        acting: of the frozen server.
        tolerance: see `TOLERANCE`.
    """

    plan: ServerPlan
    seats: Mapping[str, Seat]
    graph: PolicyGraph
    acting: Acting
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        plan, self._largest = self.plan, 1.0
        """Largest magnitude of all scores so far; at least 1."""
        self._state = None if plan.state_size is None else np.zeros(plan.state_size, np.float32)
        self._rng = np.random.default_rng(0)
        self._spaces = {a: moderate(agent.observation_space) for a, agent in plan.agents.items()}

    def check(self, policy: OnnxPolicy) -> int:
        """Compares server and file.

        Returns:
            The number of observations that were compared.

        Raises:
            Differs: an action or a score differs.
        """
        num = max(2, _ROWS // len(self.graph.agents))
        episodes = [_Episode(Alone(self.plan.agents, self.seats)) for _ in range(num)]
        compared = t = 0
        while compared < NUM_OBSERVATIONS:
            rows = [row for episode in episodes for row in self._ask_server(episode, t)]
            # One row alone, as most users of a file will run it, and the others together.
            for some in (rows[:1], rows[1:]):
                self._ask_file(policy, some)
            compared += sum(row.action is not None for row in rows)
            t += 1
        return compared

    def _ask_server(self, episode: _Episode, t: int) -> list[_Row]:
        """Lets the server act in one step of an episode."""
        present = [a for a in self.graph.agents if t == 0 or self._rng.random() >= _P_ABSENT]
        observations = {agent_id: self._draw(agent_id) for agent_id in present}
        size = self.graph.reading.frame_stack
        for agent_id, value in observations.items():
            episode.seen[agent_id] = [*episode.seen.get(agent_id, [value] * size)[1:], value]
        rows = []
        look = episode.alone.look(observations, self._state)
        block = look.block
        states = {seat_id: episode.alone.states(seat) for seat_id, seat in self.seats.items()}
        actions = episode.alone.act(self.acting, look)
        assert block.chosen is not None
        for one, seen, answer in zip(
            block.served.parts, block.observations, block.chosen, strict=True
        ):
            for i, seat in enumerate(one.seats):
                server = ServerRow(
                    seat,
                    pick(seen, (0, i)),
                    pick(states[seat.seat_id], (0, 0)),
                    pick(answer.outputs, (0, i)),
                )
                # In a group whose agents each have a seat, a seat acts for its own agent only.
                own = (seat.seat_id,) if seat.seat_id in self.plan.agents else seat.members
                for agent_id in own:
                    if agent_id not in actions and not self.graph.is_fed_while_absent:
                        continue
                    last = episode.last_actions.get(agent_id, -1)
                    seen_last = episode.seen[agent_id] if agent_id in observations else ()
                    feed = self.graph.feed(agent_id, seen_last, last)
                    row = _Row(episode, agent_id, feed)
                    if agent_id in actions:
                        row.action = actions[agent_id]
                        row.scores = self.graph.server_scores(server, agent_id)
                    rows.append(row)
        episode.last_actions |= actions
        return rows

    def _draw(self, agent_id: str) -> Any:
        value = self._near_known(sample(self._spaces[agent_id], self._rng))
        if isinstance(value, dict) and ACTION_MASK_KEY in value:
            mask = value[ACTION_MASK_KEY]
            parts = [np.atleast_1d(one) for one in (mask if isinstance(mask, tuple) else [mask])]
            ends = np.cumsum([one.size for one in parts])
            drawn = self._rng.random(ends[-1]) < 0.5
            for choice in np.split(drawn, np.cumsum(self.graph.form.choices)[:-1]):
                choice[self._rng.integers(len(choice))] = True
            for one, some in zip(parts, np.split(drawn, ends[:-1]), strict=True):
                one[...] = some.reshape(one.shape)
        return value

    def _near_known(self, value: Any) -> Any:
        """Moves a drawn observation near those of training, as far from them all is clipped."""
        read = self.graph.reading
        reading = read.reading
        if reading is None or reading.normalizer is None:
            return value
        mean, deviation, _ = reading.normalizer.constants()
        numbers = mean + deviation * self._rng.normal(size=mean.shape)
        if reading.scale is not None:
            numbers = reading.scale.low + numbers * reading.scale.width
        space, path = read.space, read.path
        flat = list(numbers.ravel()[::-1])
        if path:
            return {**value, path: _filled(space, value[path], flat)}
        filled = _filled(space, value, flat)
        return {**value, **filled} if isinstance(filled, dict) else filled

    def _ask_file(self, policy: OnnxPolicy, rows: list[_Row]) -> None:
        """Lets the file act on the same rows, and compares the answers."""
        if not rows:
            return
        feeds = [{**row.feed, **self._state_of(row)} for row in rows]
        outputs = policy.run({name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
        for i, row in enumerate(rows):
            row.episode.states[row.agent_id] = {
                STATE_IN + name.removeprefix(STATE_OUT): value[i : i + 1]
                for name, value in outputs.items()
                if name.startswith(STATE_OUT)
            }
            if row.action is not None:
                self._compare(row, outputs[ACTION][i], outputs[self.graph.scores][i])

    def _state_of(self, row: _Row) -> dict[str, np.ndarray]:
        return row.episode.states.get(row.agent_id) or {
            port.name: port.zeros(1) for port in self.graph.inputs if port.name.startswith(STATE_IN)
        }

    def _compare(self, row: _Row, action: np.ndarray, scores: np.ndarray) -> None:
        expected = scores if row.scores is None else row.scores
        # Float32 loses digits by the size of the terms of a sum, which a single row's scores need
        # not show: those of one image were 1.7, and of others 295.
        self._largest = max(self._largest, _largest(expected))
        allowed = self.tolerance * self._largest
        worst = float(np.max(np.abs(scores.astype(np.float64) - expected)))
        if not worst <= allowed:
            raise Differs(
                f"agent {row.agent_id!r}: its {self.graph.scores} differ by up to {worst:.2g} "
                f"from the server's, more than {allowed:.2g}"
            )
        if not self._is_same(row.action, action, scores, allowed):
            raise Differs(
                f"agent {row.agent_id!r}: the server chose {row.action}, the file {action}"
            )

    def _is_same(self, server: Any, file: np.ndarray, scores: np.ndarray, allowed: float) -> bool:
        space = self.graph.action_space
        if isinstance(space, Box):
            # Differences in -1..1 grow when actions are scaled to their bounds.
            form = self.graph.form
            scale = _largest(np.array(form.bounds)) if form.has_bounds else 1.0
            rounding = float(np.finfo(file.dtype).eps) * scale
            return bool(np.max(np.abs(file - server)) <= allowed * max(1.0, scale) + rounding)
        if np.array_equal(file, server):
            return True
        if not isinstance(space, Discrete):
            return False
        # Two actions whose scores are equal within the tolerance are equally greedy.
        actions = np.array([[server, file]])
        first, other = scores[self.graph.form.read_rows(actions)[0]].tolist()
        return abs(first - other) <= 2 * allowed


def _filled(space: Space, value: Any, flat: list[float], key: Any = "") -> Any:
    """Returns a value whose numbers are replaced by others, taken from the end of `flat`."""
    parts = parts_of(space)
    if parts is not None:
        filled = {k: _filled(sub, value[k], flat, k) for k, sub in sorted(parts)}
        return filled if isinstance(space, DictSpace) else tuple(filled.values())
    (leaf,) = leaves(space, key)
    numbers = [flat.pop() for _ in range(leaf.size)]
    if not leaf.is_number or not isinstance(space, Box):
        return value
    return np.clip(np.reshape(numbers, space.shape), *typed_bounds(space)).astype(space.dtype)


def _largest(values: np.ndarray) -> float:
    """Returns the largest magnitude, without masked logits."""
    sizes = np.abs(values.astype(np.float64))
    return float(np.max(sizes, where=sizes < -UNAVAILABLE, initial=0.0))
