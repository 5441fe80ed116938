"""The engine that chooses actions: one pass for each policy over all that waits.

A policy is asked for the rows of any number of episodes and agents at once (`Asked`), and answers
with as many (`Acted`). What it is, its `Acting` knows: a trainer, a script, the
networks of a checkpoint, or whoever of a pool plays an episode.
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
    """What a policy says to rows; what `Trainer.act` may return in place of the actions alone.

    Arrays of a trainer that is not trusted are copied.

    Attributes:
        actions: ``[n, ...]``.
        outputs: by name ``[n, ...]``, recorded with each action for `learn`. The server adds
            ``is_logged``: whether the client chose the action itself; of a team by member. Of
            such an action ``action_logp``, the log-probability, is infinite: its share of the
            policy's loss is to be 0; or with ``recent`` what the client says, if it does.
        states: n values of any kind, given back with the agent's next row; forgotten at the end of
            its episode. With ``initial_state`` a dict of arrays.
    """

    actions: Any
    outputs: Mapping[str, Any] = field(default_factory=dict)
    states: Any = None


class Asked(msgspec.Struct, gc=False):
    """Rows of one pass, of one policy: a part of each of some blocks.

    Attributes:
        policy_id: whose.
        blocks: where the rows come from.
        parts: of each block, the number of its part.
        should_explore: whether actions are drawn as in training; else the best are wanted.
        is_training: whether the steps are learned from.
        is_untrained: whether the weights that the server began with are to act.
        logged: actions that were chosen elsewhere, each ``[B, ...]``, and the first of their rows.
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
        """Returns them, an array ``[B, ...]`` or a dict; of a dict these keys, all with None."""
        seen = [block.observations[j] for block, j in zip(self.blocks, self.parts, strict=True)]
        if keys is not None:
            seen = [{key: one[key] for key in keys} for one in seen]
        return flat(seen[0]) if len(seen) == 1 else concatenated([flat(one) for one in seen])

    def states(self, initial: Callable[[], Any]) -> Any:
        """Returns recurrent states, a dict of arrays ``[B, ...]``.

        Args:
            initial: returns that of a row that has none yet.
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
        """Returns the seat of each row."""
        found: tuple[str, ...] = ()
        for block, j in zip(self.blocks, self.parts, strict=True):
            found += block.served.parts[j].seat_ids * len(block.slots)
        return found

    def episodes(self) -> list[tuple[Block, int]]:
        """Returns the block of each row, and the row of its episode there."""
        return [
            (block, row)
            for block, one in self._each()
            for row in range(len(block))
            for _ in range(one.num_seats)
        ]

    def put_logged(self, actions: np.ndarray) -> None:
        """Replaces the policy's actions by those that were chosen elsewhere."""
        for first, (logged, is_given, _) in self.logged:
            rows = actions[first : first + len(logged)]
            rows[is_given] = logged[is_given]

    def are_logged(self, lead: tuple[int, ...]) -> np.ndarray:
        """Returns whether each action was chosen elsewhere; of a team by member, ``lead`` so."""
        found = np.zeros(lead, bool)
        for first, (_, is_given, _) in self.logged:
            found[first : first + len(is_given)] = is_given
        return found


def _repeated(states: Any, num: int) -> Any:
    # Copied, since torch takes no arrays that cannot be written into.
    return each_array(lambda one: np.array(np.broadcast_to(one, (num, *np.shape(one)))), states)


def _where(have: np.ndarray, states: Any, initial: Any) -> Any:
    if isinstance(states, Mapping):
        return {key: _where(have, own, initial[key]) for key, own in states.items()}
    return np.where(have.reshape(-1, *[1] * (states.ndim - 1)), states, initial)


class Acting(ABC):
    """Chooses the actions of a server.

    Attributes:
        weights_seq_no: version of the weights in use; always 0 where nothing is learned.
        lock: held while all that waits is asked, so that one version answers.
    """

    weights_seq_no = 0
    lock: AbstractContextManager[Any] = contextlib.nullcontext()
    _rng: np.random.Generator
    _evaluation_rng: np.random.Generator  # its own: what training draws depends on training alone

    @abstractmethod
    def answer(self, asked: Asked) -> Acted:
        """Answers the rows of one pass; recurrent states are only read and returned."""

    def act(self, blocks: Sequence[Block]) -> list[tuple[list[Chosen], int]]:
        """Chooses the actions of some steps; `Block.finish` puts them into effect.

        Evaluation has passes of its own: the size of a batch changes the outputs' last bits. If one
        policy raises, none has advanced.

        Returns:
            For each block what is chosen for its parts, and the version of the weights.
        """
        if len(blocks) == 1:  # of a single simulation
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
        """Returns what is equal for blocks that are asked together, besides policy and mode."""
        return None

    def get_random_state(self) -> dict[str, Any]:
        """Returns where its random generators are; for the thread that acts."""
        return {
            "training": self._rng.bit_generator.state,
            "evaluation": self._evaluation_rng.bit_generator.state,
        }

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Puts its random generators where those of `get_random_state` were."""
        self._rng.bit_generator.state = state["training"]
        self._evaluation_rng.bit_generator.state = state["evaluation"]


def _chosen(acted: Acted, rows: slice | None, lead: tuple[int, int]) -> Chosen:
    return Chosen(
        shaped(acted.actions, rows, lead),
        shaped(acted.outputs, rows, lead),
        shaped(acted.states, rows, lead),
    )


def _flat(logged: Logged) -> Logged:
    """Returns what is ``[E, S, ...]`` as ``[B, ...]``."""
    return Logged(*(None if one is None else flat(one) for one in logged))  # type: ignore[arg-type]


def _asked(blocks: Sequence[Block], parts: Sequence[int]) -> Asked:
    """Returns what parts of blocks ask of one policy, all in one mode."""
    block, one = blocks[0], blocks[0].served.parts[parts[0]]
    mode = block.mode.should_explore, block.mode.is_training, one.is_untrained
    first, logged = 0, []
    for block, j in zip(blocks, parts, strict=True):
        if block.logged is not None:
            logged.append((first, _flat(block.logged[j])))
        first += len(block) * block.served.parts[j].num_seats
    return Asked(one.policy_id, blocks, parts, *mode, logged)
