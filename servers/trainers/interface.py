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

``weights()``, ``set_weights(weights)``
    What `act` reads, as plain values; ``initialize_from`` and a POOL need them.
``critic_weights``
    What names of ``weights()`` begin with on which no action depends: those of a critic whose
    recurrent states acting carries. ``initialize_only: actor`` leaves them fresh; ().
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

    It is called with each of the ``acting_keys`` in their order, ``[B, ...]``, but for the mask.
    With a recurrent state it gets that behind them, a dict of all that ``initial_state`` has, and
    returns scores and the state after, of which the file has what it changes. With
    ``forms_teams`` it is what each member acts by, and only those of a team with it can be loaded
    as policies of one agent: it is called with the member's row of each part and of the state,
    its last action as a number, -1 for none, and as ``agent_id`` its place in the team, one-hot.
    Of a member that does not act while others do, the observation is 0 and the last action -1.
``acting_keys``
    Which parts of an observation `act` reads, by their keys; ("obs",) and "action_mask".
``greedy(scores)``
    Of a Box: the actions for what ``network()`` returns; else these are the actions.
``scores_name``
    What an exported file calls them: "scores", or "logits", "q_values".
``acting_network()``
    The layers behind `act` to a number for each Discrete action, as views of the parameters, a
    `muxrl.protocol.messages.PolicyNetwork`: for clients that act in the server's place, and to ask
    members of a POOL together. None: they are not plain. What such clients played has
    "action_logp" and "action_dist_inputs" as outputs, with ``replay`` none: `act` is to give the
    same. Without ``epsilon`` actions are drawn from the numbers as logits.
``epsilon``
    Probability of an action at random now, where else the one of the largest number is taken.
``probabilities(rows)``
    How likely it draws each action of a Discrete space, ``[n, num_actions]``, 0 for unavailable
    ones; `muxrl.load_policy` and exact games ask.
``value(rows)``
    The return that it expects from each row on, ``[n]``, in units of the rewards that it learns
    from, None for what it cannot tell; `muxrl.load_policy` asks.
``value_keys``, ``critic_remembers``
    Which parts `value` reads: with "state" it is given that. And whether it depends on recurrent
    states that acting does not have, so that only an episode's first step is valued; False.
``preset``
    Of a class with ``Settings`` that is a variant: those that a user cannot change, by name.
``space_check``
    What spaces it cannot learn in, a `muxrl.servers.trainers.spaces.SpaceCheck`.
``samples_actions``
    Whether its policy is a distribution to draw from, so that ``should_explore`` means something
    where it is evaluated; True.
``find_milestones(settings)``, ``replay_size(settings, seats)``, ``learns_jointly(settings)``
    Class methods, of a class with ``Settings``: what has to be played before it learns, how much
    memory its replay takes, and whether the members of a team learn otherwise than alone. A run is
    warned of these (`muxrl.servers.trainers.budget`).
``learns_when_absent``
    Whether `learn` is called for batches that have nothing of its policy, too; False.
``reads_state``
    Whether trajectories have the simulation's global state, ``states``, for a critic. It is not
    acted on.
``forms_teams``
    Whether it learns for teams, the ``groups`` of the server, whose members have Discrete actions:
    a row is a team then, and what `Rows` and `Trajectory` have of an agent they have of each
    member, ``[n, members, ...]``, in an axis after the first. False: a row is an agent.
``gamma``
    Discount, which ``normalize_rewards`` needs.
``Settings``
    A dataclass of its settings; then it is made by ``(policy, settings)``. A subclass of
    `muxrl.servers.trainers.declared_settings.Settings` has a default, a sentence and perhaps a
    range each. Its field ``model``, such a subclass, too, has what the config says under ``model``.
``seating``
    How agents are seated and what they observe, a `muxrl.servers.agents.seating.Seating`.
``initial_state()``
    Recurrent state of a row that has none yet, a dict of arrays; then `Rows.states` and
    `Acted.states` are dicts of arrays ``[n, ...]``. {}: it is not recurrent.
``begin_acting()``, ``follow(other)``
    Of the second trainer of ``acts_while_learning``: it is told once that it only acts, and after
    each update to act as the first one has learned to. Without them ``set_weights`` does it.
``is_trusted``
    Whether its answers are taken as they are: right shapes, available actions, arrays that nobody
    writes into again, rows left as they were. False: the server looks, and copies.
``asked_keys``
    Parts of observations that rows to act on have, where not all of its ``seating`` are needed.
``env_steps``, ``note_progress``, ``skipped``
    Attributes that the server sets: env steps recorded so far, before each `learn`; a function to
    tell which share of an update is done, so that simulations are held a little at a time; and
    the `SkippedUpdates` of a trainer that leaves unsound updates out by itself.
``num_updates``
    Attribute of one that does not update in each `learn`: how many updates it has made; weights
    count as new where it has risen.
``needs_whole_episodes``, ``max_sequence_steps``, ``updates_by_steps``
    How episodes are cut: at their ends alone (`learn` gets ended episodes only, with ``newest``
    some that were begun with older weights); or after so many steps as well; and whether a batch of
    more env steps than asked for brings as many more updates, so that it need not be split.
``networks()``, ``set_networks(networks)``
    All that was learned, critics and targets too, for ``initialize_from``; else ``weights()``.
``learn_together(trainers, played)``
    A class method that learns the policies of a server in one call, by policy id, and returns
    metrics by policy.
``replay_bytes()``, ``replay_state()``, ``load_replay(state)``, ``refill_replay(env_steps)``
    A replay that is not part of ``state()``: a checkpoint leaves it out where it is larger than
    ``checkpoint.replay_max_mib``, and `refill_replay` has learning wait until it is filled again.
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
        parts: spaces of all parts of an observation by key: those of its ``seating``.
        teams: of its agents that are in a group, the group.
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
    """All that a policy is asked in one turn, a row for each agent that acts; its arrays are free
    to be written into.

    Attributes:
        observations: float32 ``[n, ...]``.
        masks: float32 ``[n, num_actions]``, 1 for available actions (of a MultiDiscrete those of
            one choice after another); None without masks.
        states: what `Acted.states` had for this agent's last action in its episode, None for its
            first: a list of n. With ``initial_state`` a dict of arrays ``[n, ...]``.
        agents: whose row it is: names of agents, or of teams.
        should_explore: whether to draw actions as in training; else the best ones are wanted.
        is_training: whether the steps are learned from.
        rng: the server's generator for this kind of rows. Actions drawn from it are the same after
            a resumed run, and training's do not depend on evaluations.
        present: of teams, float32 ``[n, members]``: 1 for the members that act now. Of the others
            the observation is 0, the mask allows the action 0, and any action will do.
        inputs: further parts of its ``seating`` by key, ``[n, ...]``: state, agent id, last action.
        env_steps: recorded so far, by which schedules go.
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
                terminated nor truncated continues in a later batch, unless its episode is aborted.
        """

    def state(self) -> dict[str, Any]:
        """Returns all that `load` needs to continue to the bit: numbers, texts, arrays, tensors,
        None, in dicts, lists and tuples."""

    def load(self, state: dict[str, Any]) -> None:
        """Continues from what `state` returned, in this or another process."""
