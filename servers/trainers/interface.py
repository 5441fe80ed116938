"""The interface of a trainer: what a person or a library brings to learn on a server.

A server makes one trainer for each of its policies:

.. code-block:: python

    class Mine:
        learns_from = "newest"
        batch_env_steps = 1_000

        def __init__(self, policy: PolicySpec, lr: float = 1e-3) -> None: ...
        def act(self, rows: Rows) -> np.ndarray: ...
        def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]: ...
        def state(self) -> dict[str, Any]: ...
        def load(self, state: dict[str, Any]) -> None: ...

Everything else is the server's: messages, episodes, the gate, masks, normalising, evaluation,
checkpoints, restarts. What a class may have beyond this, by name:

``needs_whole_episodes``
    Whether `learn` gets ended episodes only; False.
``weights()``, ``set_weights(weights)``
    What `act` reads, as plain values; ``initialize_from`` and a POOL need them.
``acts_while_learning``
    Whether a second trainer acts while `learn` runs, by the ``weights()`` of the first; False:
    acting waits for `learn`. Worth it where an update takes long.
``learned_state()``
    The part of ``state()`` that `learn` may spoil, without a replay; `load` takes it alone, too.
    The server looks at it and copies it in 2 % of the time, and at ``weights()`` after each update:
    one that has made a number infinite is undone. Without this method ``state()`` is copied.
``network()``
    The torch module behind `act`, for ``muxrl export``: from observations as those of `Rows` to a
    score of each action, of which the largest is chosen (of a MultiDiscrete those of one choice
    after another; masks are applied to them), or to the actions of a Box.
``probabilities(rows)``
    How likely it draws each action of a Discrete space, ``[n, num_actions]``, 0 for unavailable
    ones; `muxrl.load_policy` and exact games ask.
``value(rows)``
    The return that it expects from each row on, ``[n]``, in units of the rewards that it learns
    from; `muxrl.load_policy` asks.
``reads_state``
    Whether trajectories have the simulation's global state, ``states``, for a critic. It is not
    acted on.
``forms_teams``
    Whether it learns for teams, the ``groups`` of the server, whose members have Discrete actions:
    a row is a team then, and what `Rows` and `Trajectory` have of an agent they have of each
    member, ``[n, members, ...]``, in an axis after the first. False: a row is an agent.
``gamma``
    Discount, which ``normalize_rewards`` needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from muxrl.servers.episodes.trajectories import Trajectory

if TYPE_CHECKING:
    import gymnasium

LearnsFrom = Literal["newest", "recent", "replay"]


@dataclass(frozen=True)
class PolicySpec:
    """What a trainer is made for.

    Attributes:
        policy_id: of the policy.
        agents: those that it acts for, by name; with ``forms_teams`` the teams.
        observation_space: of a row of `Rows.observations`: a Box of float32, flat or an image.
            Other observations are flattened; what is scaled, normalised or stacked is so already.
        action_space: of a row of actions: Discrete (from 0), MultiDiscrete, or a Box of one
            dimension with the simulation's own bounds. Actions beyond them are clipped on their
            way to the simulation, and recorded as they were chosen.
        has_masks: whether rows have action masks; those of teams always have.
        seed: of this policy.
        device: "cpu", or "cuda" if the server has a GPU (``resources.num_gpus``).
        state_size: length of the global state; 0 without ``reads_state`` or ``forms_teams``. Where
            the simulation sends none, a team's is what its members observe.
        members: of each team, in the order of its rows; {} without ``forms_teams``. All teams of a
            policy have as many.
    """

    policy_id: str
    agents: tuple[str, ...]
    observation_space: gymnasium.spaces.Box
    action_space: gymnasium.Space
    has_masks: bool = False
    seed: int = 0
    device: str = "cpu"
    state_size: int = 0
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """All that a policy is asked in one turn, a row for each agent that acts; its arrays are free
    to be written into.

    Attributes:
        observations: float32 ``[n, ...]``.
        masks: float32 ``[n, num_actions]``, 1 for available actions (of a MultiDiscrete those of
            one choice after another); None without masks.
        states: what `Acted.states` had for this agent's last action in its episode, None for its
            first: a list of n.
        agents: whose row it is: names of agents, or of teams.
        should_explore: whether to draw actions as in training; else the best ones are wanted.
        is_training: whether the steps are learned from.
        rng: the server's generator for this kind of rows. Actions drawn from it are the same after
            a resumed run, and training's do not depend on evaluations.
        present: of teams, float32 ``[n, members]``: 1 for the members that act now. Of the others
            the observation is 0, the mask allows the action 0, and any action will do.
    """

    observations: np.ndarray
    masks: np.ndarray | None
    states: list[Any]
    agents: tuple[str, ...]
    should_explore: bool
    is_training: bool
    rng: np.random.Generator
    present: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.agents)


@dataclass(frozen=True)
class Acted:
    """What `Trainer.act` may return in place of the actions alone; arrays are copied.

    Attributes:
        actions: ``[n, ...]``.
        outputs: by name ``[n, ...]``, recorded beside each action for `learn`: a log-probability,
            say. The server adds ``is_logged``: whether the client chose the action itself; of a
            team by member.
        states: n values of any kind, given back with the agent's next row; forgotten at the end of
            its episode.
    """

    actions: Any
    outputs: Mapping[str, Any] = field(default_factory=dict)
    states: Sequence[Any] | None = None


class Trainer(Protocol):
    """Learns one policy.

    Attributes:
        learns_from: ``newest``: whole batches, played with the very weights that are updated;
            simulations wait for the update. ``recent``: whole batches that may be some versions
            older. ``replay``: anything; the trainer keeps its own replay.
        batch_env_steps: env steps between two calls of `learn`.
    """

    learns_from: LearnsFrom
    batch_env_steps: int

    def act(self, rows: Rows) -> Any:
        """Returns an action for each row, an array ``[n, ...]``; or an `Acted`."""

    def learn(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float] | None:
        """Learns from what was played; returns metrics by name ("loss" is the run's loss).

        Args:
            trajectories: pieces of episodes, by agent, in arrays. A piece that is neither
                terminated nor truncated goes on in a later batch, unless its episode is aborted.
        """

    def state(self) -> dict[str, Any]:
        """Returns all that `load` needs to continue to the bit: numbers, texts, arrays, tensors,
        None, in dicts, lists and tuples."""

    def load(self, state: dict[str, Any]) -> None:
        """Continues from what `state` returned, in this or another process."""
