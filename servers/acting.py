"""The engine that chooses actions: all waiting steps of a policy share one pass.

A pass asks a policy for the actions of any number of episodes and agents, one row each (`Asked`);
the policy returns as many rows (`Acted`). A subclass of `Acting` asks the policies of its kind: a
trainer's, a script, the networks of a checkpoint, or the member of a pool that plays an episode.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from muxrl.protocol.rows import each_array
from muxrl.servers.agents.parts import Logged, Part
from muxrl.servers.episodes.blocks import Block, Chosen, shaped
from muxrl.servers.episodes.trajectories import concatenated, flat


@dataclass(frozen=True)
class Acted:
    """A policy's answer to some rows; `Trainer.act` may return it in place of the actions alone.

    Arrays that a user's trainer returns are copied.

    Attributes:
        actions: ``[n, ...]``.
        outputs: by name ``[n, ...]``, recorded with each action for `learn`. The server adds
            ``is_logged``: whether the client chose the action itself; for a team by member. For
            such an action ``action_logp``, the log-probability, is infinite, so that its share of
            the policy's loss is 0; with ``recent`` it is the client's value, if given.
        states: n values of any kind, passed with the agent's next row; forgotten at the end of
            its episode. With ``initial_state`` a dict of arrays.
    """

    actions: Any
    outputs: Mapping[str, Any] = field(default_factory=dict)
    states: Any = None


class Asked(msgspec.Struct, gc=False):
    """The rows of one pass for one policy: one part of each of some blocks.

    Attributes:
        policy_id: the policy that is asked.
        blocks: the blocks that the rows come from.
        parts: for each block, the index of its part.
        should_explore: whether actions are drawn as in training; else the best ones are wanted.
        is_training: whether the steps are learned from.
        is_untrained: whether to act with the weights that the server began with.
        logged: actions that were chosen elsewhere, each ``[B, ...]``, with their first row.
    """

    policy_id: str
    blocks: Sequence[Block]
    parts: Sequence[int]
    should_explore: bool = False
    is_training: bool = False
    is_untrained: bool = False
    logged: Sequence[tuple[int, Logged]] = ()

    def __len__(self) -> int:
        return sum([len(block) * one.num_seats for block, one in self._each()])

    def _each(self) -> list[tuple[Block, Part]]:
        return [(b, b.served.parts[j]) for b, j in zip(self.blocks, self.parts, strict=True)]

    def observations(self, keys: Sequence[str] | None = None) -> Any:
        """Returns the observations, an array or a dict of arrays ``[B, ...]``.

        Args:
            keys: the keys to return of a dict; None: all.
        """
        seen = [block.observations[j] for block, j in zip(self.blocks, self.parts, strict=True)]
        if keys is not None:
            seen = [{key: one[key] for key in keys} for one in seen]
        return flat(seen[0]) if len(seen) == 1 else concatenated([flat(one) for one in seen])

    def states(self, initial: Callable[[], Any]) -> Any:
        """Returns recurrent states, a dict of arrays ``[B, ...]``.

        Args:
            initial: returns the state for a row that has none yet.
        """
        found = []
        for block, one in self._each():
            states, have = block.mode.seats.memory.states(
                self.policy_id, block.where, one.places_in_policy
            )
            if states is not None and have.all():
                found.append(flat(states))
                continue
            first = _repeated(initial(), len(block) * one.num_seats)
            found.append(first if states is None else _where(have.reshape(-1), flat(states), first))
        return found[0] if len(found) == 1 else concatenated(found)

    def agents(self) -> tuple[str, ...]:
        """Returns the id of the seat of each row."""
        found: tuple[str, ...] = ()
        for block, j in zip(self.blocks, self.parts, strict=True):
            found += block.served.parts[j].seat_ids * len(block.slots)
        return found

    def episodes(self) -> list[tuple[Block, int]]:
        """Returns for each row the block, and the row of the episode in that block."""
        return [
            (block, row)
            for block, one in self._each()
            for row in range(len(block))
            for _ in range(one.num_seats)
        ]

    def put_logged(self, actions: np.ndarray) -> None:
        """Replaces the policy's actions by the actions that were chosen elsewhere."""
        for first, (logged, is_given, _) in self.logged:
            rows = actions[first : first + len(logged)]
            rows[is_given] = logged[is_given]

    def are_logged(self, lead: tuple[int, ...]) -> np.ndarray:
        """Returns whether each action was chosen elsewhere, bool ``lead``; for a team by member."""
        found = np.zeros(lead, bool)
        for first, (_, is_given, _) in self.logged:
            found[first : first + len(is_given)] = is_given
        return found


def _repeated(states: Any, num: int) -> Any:
    # Copied, since torch takes no read-only arrays.
    return each_array(lambda one: np.array(np.broadcast_to(one, (num, *np.shape(one)))), states)


def _where(have: np.ndarray, states: Any, initial: Any) -> Any:
    if isinstance(states, Mapping):
        return {key: _where(have, own, initial[key]) for key, own in states.items()}
    return np.where(have.reshape(-1, *[1] * (states.ndim - 1)), states, initial)


class Acting(ABC):
    """Chooses the actions of a server.

    Attributes:
        weights_seq_no: version of the weights in use; always 0 if nothing is learned.
        lock: held while all waiting steps are computed, so that one version answers them.
    """

    weights_seq_no = 0
    lock: AbstractContextManager[Any] = contextlib.nullcontext()
    _rng: np.random.Generator
    _evaluation_rng: np.random.Generator  # so that what training draws depends on training alone

    @abstractmethod
    def answer(self, asked: Asked) -> Acted:
        """Answers the rows of one pass; recurrent states are read and returned, not stored."""

    def act(self, blocks: Sequence[Block]) -> list[tuple[list[Chosen], int]]:
        """Chooses the actions of some steps; `Block.finish` puts them into effect.

        Evaluation has separate passes, since the size of a batch changes the last bits of outputs.
        If one policy raises, no step has advanced.

        Returns:
            For each block the choices for its parts, and the version of the weights.
        """
        if len(blocks) == 1:  # the usual case with a single simulation
            (block,) = blocks
            with self.lock:
                own = [self._of_part(block, j) for j in range(len(block.observations))]
                return [(own, self.weights_seq_no)]
        passes: dict[Any, list[tuple[int, int]]] = {}
        for i, block in enumerate(blocks):
            mode = block.mode.should_explore, block.mode.is_training
            for j, one in enumerate(block.served.parts):
                key = self.pass_of(block), one.policy_id, mode, one.is_untrained
                passes.setdefault(key, []).append((i, j))
        chosen: list[list[Any]] = [[None] * len(block.served.parts) for block in blocks]
        with self.lock:
            for places in passes.values():
                asked = _asked([blocks[i] for i, _ in places], [j for _, j in places])
                acted = self.answer(asked)
                first = 0
                for i, j in places:
                    lead = len(blocks[i]), blocks[i].served.parts[j].num_seats
                    rows = slice(first, first := first + lead[0] * lead[1])
                    chosen[i][j] = _chosen(acted, rows, lead)
            version = self.weights_seq_no
        return [(own, version) for own in chosen]

    def _of_part(self, block: Block, number: int) -> Chosen:
        one = block.served.parts[number]
        asked = Asked(
            one.policy_id,
            (block,),
            (number,),
            block.mode.should_explore,
            block.mode.is_training,
            one.is_untrained,
            () if block.logged is None else [(0, _flat(block.logged[number]))],
        )
        return _chosen(self.answer(asked), None, (len(block.slots), one.num_seats))

    def pass_of(self, block: Block) -> Any:
        """Returns a key: blocks with equal keys may share a pass, if policy and mode are equal."""
        return None

    def get_random_state(self) -> dict[str, Any]:
        """Returns the state of the random generators; to be called in the thread that acts."""
        return {
            "training": self._rng.bit_generator.state,
            "evaluation": self._evaluation_rng.bit_generator.state,
        }

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restores the random generators to a state from `get_random_state`."""
        self._rng.bit_generator.state = state["training"]
        self._evaluation_rng.bit_generator.state = state["evaluation"]


def _chosen(acted: Acted, rows: slice | None, lead: tuple[int, int]) -> Chosen:
    return Chosen(
        shaped(acted.actions, rows, lead),
        shaped(acted.outputs, rows, lead),
        shaped(acted.states, rows, lead),
    )


def _flat(logged: Logged) -> Logged:
    """Returns logged actions ``[E, S, ...]`` as ``[B, ...]``."""
    return Logged(*(None if one is None else flat(one) for one in logged))  # type: ignore[arg-type]


def _asked(blocks: Sequence[Block], parts: Sequence[int]) -> Asked:
    """Returns one pass over parts of blocks that have the same policy and mode."""
    block, one = blocks[0], blocks[0].served.parts[parts[0]]
    mode = block.mode.should_explore, block.mode.is_training, one.is_untrained
    first, logged = 0, []
    for block, j in zip(blocks, parts, strict=True):
        if block.logged is not None:
            logged.append((first, _flat(block.logged[j])))
        first += len(block) * block.served.parts[j].num_seats
    return Asked(one.policy_id, blocks, parts, *mode, logged)
