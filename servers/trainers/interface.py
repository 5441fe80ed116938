"""The interface of a trainer: the class that a person or a library brings to learn on a server.

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

The server does everything else: messages, episodes, the gate, masks, normalising, evaluation,
checkpoints, restarts. A class may also have any of these:

``weights()``, ``set_weights(weights)``
    The parameters that `act` reads, as plain values; ``initialize_from`` and a POOL need them.
``critic_weights``
    Prefixes of the names in ``weights()`` on which no action depends: of a critic whose recurrent
    states are carried along while acting. ``initialize_only: actor`` leaves these weights fresh;
    default ().
``acts_while_learning``
    Of the class: whether a second trainer acts while `learn` runs, with the ``weights()`` of the
    first. By default False: acting waits for `learn`. Worth it if an update takes long.
``learned_state()``
    The part of ``state()`` that an update may corrupt, without a replay; `load` takes it alone,
    too. The server checks ``weights()`` after each update, and spends 2 % of the time on checking
    and copying this state: an update that has made a number infinite is undone. Without this
    method ``state()`` is copied.
``network()``
    The torch module behind `act`, for ``muxrl export``. It takes observations as in `Rows`, and
    returns a score of each action, of which the highest is chosen (for a MultiDiscrete the scores
    of one choice after another; masks are applied to them), or the actions of a Box.

    It is called with each of the ``acting_keys`` in their order, ``[B, ...]``, without the mask.
    A recurrent one also gets the state as its last argument, a dict with the keys of
    ``initial_state``, and returns the scores and the next state; the file has those parts of the
    state that the module changes. With ``forms_teams`` it is the network of a single member, and
    without it no member can be loaded as the policy of one agent. It is called with the member's
    row of each part and of the state, its last action as a number, -1 for none, and as
    ``agent_id`` its place in the team, one-hot. The observation of a member that does not act
    while others do is 0, its last action -1.
``acting_keys``
    Keys of the parts of an observation that `act` reads; by default "obs" and "action_mask".
``greedy(scores)``
    Turns what ``network()`` returns into the actions of a Box; without this method it returns the
    actions themselves.
``scores_name``
    What an exported file calls the scores: "scores" by default, or "logits", "q_values".
``acting_network()``
    The layers behind `act`, up to one number for each Discrete action, as views of the parameters,
    a `muxrl.protocol.messages.PolicyNetwork`: for clients that act in the server's place, and to
    ask members of a POOL together. None: they are not plain layers. Steps that such clients have
    played have the outputs "action_logp" and "action_dist_inputs", or none with ``replay``; `act`
    has to give the same. Without ``epsilon`` actions are drawn with the numbers as logits.
``epsilon``
    Current probability of a random action; otherwise the action of the largest number is taken.
``probabilities(rows)``
    The probability of each action of a Discrete space, ``[n, num_actions]``, 0 for unavailable
    actions; `muxrl.load_policy` and exact games use it.
``value(rows)``
    The expected return from each row on, ``[n]``, in units of the rewards that it learns from;
    None if it cannot tell. `muxrl.load_policy` uses it.
``value_keys``, ``critic_remembers``
    Keys of the parts that `value` reads; with "state" it is given the global state. And whether
    `value` depends on recurrent states that acting does not have, so that only the first step of
    an episode can be valued; default False.
``preset``
    Settings that a user cannot change, by name, of a class with ``Settings`` that is a variant of
    another.
``space_check``
    Which spaces it cannot learn in, a `muxrl.servers.trainers.spaces.SpaceCheck`.
``samples_actions``
    Whether its policy is a distribution to draw from, so that ``should_explore`` makes a
    difference in evaluations; default True.
``find_milestones(settings)``, ``replay_size(settings, seats)``, ``learns_jointly(settings)``
    Class methods of a class with ``Settings``: how much has to be played before it learns, how
    much memory its replay takes, and whether the members of a team learn differently than alone.
    Runs are warned by these (`muxrl.servers.trainers.budget`).
``learns_when_absent``
    Whether `learn` is also called for batches without steps of its policy; default False.
``reads_state``
    Whether trajectories have the simulation's global state, ``states``, for a critic. `act` does
    not get it.
``forms_teams``
    Whether it learns for teams, the ``groups`` of the server, whose members have Discrete actions.
    A row is then a team, and the arrays of `Rows` and `Trajectory` have an axis of members after
    the first, ``[n, members, ...]``. False: a row is an agent.
``gamma``
    Discount factor, which ``normalize_rewards`` needs.
``Settings``
    A dataclass of its settings; the trainer is then made by ``(policy, settings)``. In a subclass
    of `muxrl.servers.trainers.declared_settings.Settings` each setting has a default, a sentence
    and perhaps a range; its field ``model``, of such a subclass, too, has the config's ``model``.
``seating``
    Which agents share a seat and what they observe, a `muxrl.servers.agents.seating.Seating`.
``initial_state()``
    The initial recurrent state of one row, a dict of arrays; `Rows.states` and `Acted.states` are
    then dicts of arrays ``[n, ...]``. {}: it is not recurrent.
``begin_acting()``, ``follow(other)``
    Called on the second trainer of ``acts_while_learning``: once, before it only acts, and after
    each update, to act like the first one. Without ``follow``, ``set_weights`` is called instead.
``is_trusted``
    Whether its answers are used unchecked: they have the right shapes and available actions,
    nobody writes into their arrays again, and rows are left unchanged. False: the server checks
    and copies.
``asked_keys``
    The parts of observations that rows to act on need, if these are not all of its ``seating``.
``env_steps``, ``note_progress``, ``skipped``
    Attributes that the server sets: the env steps recorded so far, before each `learn`; a function
    to report which share of an update is done, so that simulations are held a little at a time;
    and a `SkippedUpdates`, for a trainer that skips unsound updates by itself.
``num_updates``
    Attribute of a trainer that does not update in each `learn`: the number of updates so far. The
    weights get a new version only if it has risen.
``needs_whole_episodes``, ``max_sequence_steps``, ``updates_by_steps``
    How episodes are cut: only at their ends (`learn` then gets ended episodes only, with
    ``newest`` also some that were begun with older weights), or also after so many steps; and
    whether a batch with more env steps than asked for brings more updates in proportion, so that
    it need not be split.
``networks()``, ``set_networks(networks)``
    Everything that was learned, including critics and targets, for ``initialize_from``; without
    them it uses ``weights()``.
``learn_together(trainers, played)``
    A class method that learns all policies of a server in one call, and returns their metrics by
    policy id.
``replay_bytes()``, ``replay_state()``, ``load_replay(state)``, ``refill_replay(env_steps)``
    Methods for a replay that is not part of ``state()``: a checkpoint leaves it out if it is
    larger than ``checkpoint.replay_max_mib``, and `refill_replay` then makes learning wait until
    it is filled again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from muxrl.servers.acting import Acted as Acted
from muxrl.servers.episodes.trajectories import Trajectory, parts_of

if TYPE_CHECKING:
    import gymnasium

LearnsFrom = Literal["newest", "recent", "replay"]


@dataclass(frozen=True)
class PolicySpec:
    """Describes the policy that a trainer is made for.

    Attributes:
        policy_id: of the policy.
        agents: names of the agents that it acts for; with ``forms_teams`` of the teams.
        observation_space: of a row of `Rows.observations`: a Box of float32, flat or an image.
            Other observations are flattened; scaling, normalising and stacking are already done.
        action_space: of a row of actions: Discrete (from 0), MultiDiscrete, or a Box of one
            dimension with the simulation's own bounds. Actions out of bounds are clipped on their
            way to the simulation, and recorded as they were chosen.
        has_masks: whether rows have action masks; rows of teams always do.
        seed: of this policy.
        device: "cpu", or "cuda" if the server has a GPU (``resources.num_gpus``).
        state_size: length of the global state; 0 without ``reads_state`` or ``forms_teams``. If
            the simulation sends none, a team's state is what its members observe.
        members: of each team, in the order of its rows; {} without ``forms_teams``. All teams of a
            policy have the same number of members.
        parts: by key, the spaces of all parts of an observation that its ``seating`` names.
        teams: the group of each of its agents that is in one.
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
    parts: Mapping[str, gymnasium.spaces.Box] = field(default_factory=dict)
    teams: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Rows:
    """The observations that a policy acts on in one turn, a row for each agent that acts.

    `act` may write into the arrays.

    Attributes:
        observations: float32 ``[n, ...]``.
        masks: float32 ``[n, num_actions]``, 1 for available actions (for a MultiDiscrete the masks
            of one choice after another); None without masks.
        states: for each row the entry of `Acted.states` at this agent's last action in its
            episode, None for its first: a list of n. With ``initial_state`` a dict of arrays
            ``[n, ...]``.
        agents: the agent, or team, of each row, by name.
        should_explore: whether to draw actions as in training; else the best actions are wanted.
        is_training: whether the steps are learned from.
        rng: the server's generator for this kind of rows. Actions drawn from it are the same after
            a resumed run, and in training they do not depend on evaluations.
        present: for teams, float32 ``[n, members]``: 1 for the members that act now. The others
            have the observation 0 and a mask that allows the action 0; any action will do.
        inputs: further parts of its ``seating`` by key, ``[n, ...]``: state, agent id, last action.
        env_steps: env steps recorded so far, for schedules.
    """

    observations: np.ndarray
    masks: np.ndarray | None
    states: Any
    agents: tuple[str, ...]
    should_explore: bool
    is_training: bool
    rng: np.random.Generator
    present: np.ndarray | None = None
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    env_steps: int = 0

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def parts(self) -> dict[str, np.ndarray]:
        """All parts of the observations by key; see `muxrl.servers.agents.keys`."""
        return parts_of(self.observations, self.masks, self.present, self.inputs)


class Trainer(Protocol):
    """Learns one policy.

    Attributes:
        learns_from: ``newest``: whole batches, played with the very weights that are updated;
            simulations wait for the update. ``recent``: whole batches whose weights may be some
            versions older. ``replay``: any steps; the trainer keeps its own replay.
        batch_env_steps: env steps between two calls of `learn`.
    """

    learns_from: LearnsFrom
    batch_env_steps: int

    def act(self, rows: Rows) -> Any:
        """Returns an action for each row, an array ``[n, ...]``; or an `Acted`."""

    def learn(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float] | None:
        """Learns from a batch; returns metrics by name ("loss" is the run's loss).

        Args:
            trajectories: pieces of episodes, each of one agent, in arrays. A piece that is neither
                terminated nor truncated continues in a later batch, unless its episode is aborted.
        """

    def state(self) -> dict[str, Any]:
        """Returns everything that `load` needs to continue bit for bit: numbers, texts, arrays,
        tensors and None, in dicts, lists and tuples."""

    def load(self, state: dict[str, Any]) -> None:
        """Continues from what `state` returned, in this or another process."""
