"""`check_trainer`: tries a trainer's class without a run, for use in its tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from muxrl.protocol.spaces import Box, Discrete, MultiDiscrete
from muxrl.servers.checkpoints.resuming import get_random_state, set_random_state
from muxrl.servers.checkpoints.state_file import read_state, write_state
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.declared_settings import settings_class_of
from muxrl.servers.trainers.interface import PolicySpec, Rows
from muxrl.servers.trainers.plain_state import from_plain, leaves, shown, to_plain
from muxrl.servers.training.thread import limit_torch_threads

if TYPE_CHECKING:
    import gymnasium

_SIZE = 3
_AGENTS = ("a", "b")
_MEMBERS: Mapping[str, tuple[str, ...]] = {"a": ("a_0", "a_1"), "b": ("b_0", "b_1")}
"""Members of each team, for a class that forms teams."""
_PRESENT = 0.8
"""Probability that a member acts in a step; a team's first member always does."""


def check_trainer(
    make: Callable[..., Any],
    *,
    action_space: gymnasium.Space | None = None,
    has_masks: bool = False,
    num_batches: int = 200,
    min_return: float | None = 0.8,
    seed: int = 0,
    **settings: Any,
) -> None:
    """Checks that a trainer learns, resumes bit for bit, and copes with every kind of piece.

    The task is a contextual bandit: an agent observes a one-hot of three, and its reward is 1 for
    the action of that number, else 0 (for a Box: 1 less the distance to a target that it observes).
    Pieces of episodes end in every way, some have a single step, and some batches lack an agent.
    A class with ``forms_teams`` plays for teams of two, whose reward is the mean over the members
    that act.

    Args:
        make: the class; it is called with a `PolicySpec` and the settings.
        action_space: Discrete(3) if None; or a Box of one number, but not for teams.
        has_masks: whether rows have action masks, which forbid one wrong action.
        num_batches: batches of ``batch_env_steps`` env steps that it may learn from.
        min_return: mean reward of greedy actions that it has to reach; None: any.
        seed: of the task and of the trainer.
        **settings: of the class.

    Raises:
        AssertionError: a check failed; the sentence says what was expected and got.
        TrainerFailed: the trainer raised, or returned something invalid.
        LearnerDiverged: its updates make its numbers infinite.
    """
    space = action_space or to_gymnasium(Discrete(_SIZE))
    lead: tuple[int, ...] = ()
    state_size = _SIZE if getattr(make, "reads_state", False) else 0
    members: Mapping[str, tuple[str, ...]] = {}
    if getattr(make, "forms_teams", False):
        members, space = _MEMBERS, to_gymnasium(MultiDiscrete((_SIZE, _SIZE)))
        lead, state_size = (2,), 2 * _SIZE
    box: Any = to_gymnasium(Box((*lead, _SIZE), "float32", -1.0, 1.0))
    spec = PolicySpec(
        "default", _AGENTS, box, space, has_masks or bool(members), seed,
        state_size=state_size, members=members,
    )  # fmt: skip
    name = getattr(make, "__name__", repr(make))

    def made(policy: PolicySpec) -> Any:
        declared = settings_class_of(make)
        return make(policy, declared(**settings)) if declared else make(policy, **settings)

    def fresh() -> _Tried:
        actors = Actors(name, {"default": spec}, made, seed)
        return _Tried(actors, seed, forbids=has_masks)

    limit_torch_threads(1)
    tried = fresh()
    before = tried.greedy_return()
    for _ in range(num_batches // 2):
        tried.play_and_learn()
    where = get_random_state()
    resumed = fresh()
    resumed.continue_from(tried)
    assert np.array_equal(resumed.greedy_actions(), tried.greedy_actions()), (
        f"{name}: after load(state()) it takes other greedy actions than before"
    )
    for one in (tried, resumed):
        set_random_state(where)
        for _ in range(3):
            one.play_and_learn()
    assert not (different := _difference(tried.actors.get("state"), resumed.actors.get("state"))), (
        f"{name}: after load(state()) and three batches its {different} is another than without; "
        "does state() leave something out, or does it draw from a generator of its own?"
    )
    for _ in range(num_batches - num_batches // 2):
        tried.play_and_learn()
    if min_return is not None:
        after = tried.greedy_return()
        assert after >= min_return, (
            f"{name} earns {after:.2f} a step after {num_batches} batches, expected at least "
            f"{min_return}; {before:.2f} before"
        )


class _Tried:
    """A trainer, the bandit that it plays, and the random generators of both.

    Args:
        actors: hold the trainer.
        seed: of the generators.
        forbids: whether masks forbid one wrong action.
    """

    def __init__(self, actors: Actors, seed: int, *, forbids: bool) -> None:
        self.actors = actors
        self._forbids = forbids
        self._trainer: Any = actors.learners["default"]
        self._spec = actors.specs["default"]
        self._rng = np.random.default_rng(seed)
        self._act_rng = np.random.default_rng(seed + 1)
        self._num_played = 0
        self._lead = self._spec.observation_space.shape[:-1]
        """Shape of a row before the axis of the one-hot: the members of a team, or ()."""

    def continue_from(self, other: _Tried) -> None:
        """Takes over the state of another trainer, through a file as in a checkpoint."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.npz"
            write_state(path, other.actors.get("state"))
            self.actors.put("state", read_state(path))
        if hasattr(self._trainer, "replay_state"):  # the replay is saved apart
            replay = to_plain(other._trainer.replay_state())
            self._trainer.load_replay(from_plain(replay))
        self.actors.num_env_steps_sampled = other.actors.num_env_steps_sampled
        self._rng.bit_generator.state = other._rng.bit_generator.state
        self._act_rng.bit_generator.state = other._act_rng.bit_generator.state
        self._num_played = other._num_played

    def play_and_learn(self) -> None:
        """Plays a batch in pieces of every kind, and has the trainer learn from it."""
        fragments: list[Trajectory] = []
        left = int(self._trainer.batch_env_steps)
        while left > 0:
            num = min(left, int(self._rng.integers(1, 9)))
            left -= num
            fragments += [self._fragment(agent, num) for agent in self._present()]
            self._num_played += 1
        self.actors.num_env_steps_sampled += int(self._trainer.batch_env_steps)
        self.actors.learners.learn("default", fragments, self.actors.num_env_steps_sampled)
        self.actors.publish()

    def _present(self) -> Sequence[str]:
        """Returns the agents of the next piece: both, or one alone."""
        return (_AGENTS, _AGENTS[:1], _AGENTS, _AGENTS[1:])[self._num_played % 4]

    def _fragment(self, agent: str, num: int) -> Trajectory:
        observations, masks, present = self._contexts(num + 1)
        rows = Rows(
            observations[:-1], None if masks is None else masks[:-1], self._first_states(num),
            (agent,) * num, True, True, self._act_rng, None if present is None else present[:-1],
            env_steps=self.actors.num_env_steps_sampled,
        )  # fmt: skip
        acted = self.actors.ask("default", rows)
        kind = self._num_played % 3
        return Trajectory(
            id=f"e{self._num_played}_{agent}",
            episode_id=f"e{self._num_played}",
            seat_id=agent,
            policy_id="default",
            observations=observations,
            masks=masks,
            states=observations.reshape(num + 1, -1) if self._spec.state_size else None,
            present=present,
            actions=acted.actions,
            rewards=self._rewards(observations[:-1], acted.actions),
            outputs=acted.outputs,
            is_terminated=kind == 0,
            is_truncated=kind == 1,
        )

    def greedy_actions(self) -> np.ndarray:
        """Returns the trainer's greedy action in each context."""
        observations = self._each_context()
        num = len(observations)
        rows = Rows(
            observations, np.ones_like(observations) if self._spec.has_masks else None,
            self._first_states(num), ("a",) * num, False, False, self._act_rng,
            np.ones((num, *self._lead), np.float32) if self._lead else None,
        )  # fmt: skip
        return self.actors.ask("default", rows).actions

    def _first_states(self, num: int) -> Any:
        """Returns the initial recurrent states of `num` rows."""
        initial = self.actors.initial_state("default")
        if not initial:
            return [None] * num
        return {key: np.repeat(one[None], num, axis=0) for key, one in initial.items()}

    def greedy_return(self) -> float:
        """Returns the mean reward of the trainer's greedy actions."""
        return float(self._rewards(self._each_context(), self.greedy_actions()).mean())

    def _each_context(self) -> np.ndarray:
        """Returns an observation of each context, ``[n, ..., 3]``; for a team all combinations."""
        which: np.ndarray = np.arange(_SIZE)
        if self._lead:
            which = np.indices((_SIZE,) * self._lead[0]).reshape(self._lead[0], -1).T
        return np.eye(_SIZE, dtype=np.float32)[which]

    def _contexts(self, num: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Draws observations, masks and, for teams, the present members: the first one always is.

        Args:
            num: number of rows.
        """
        which = self._rng.integers(_SIZE, size=(num, *self._lead))
        observations = np.eye(_SIZE, dtype=np.float32)[which]
        masks = present = None
        if self._spec.has_masks:
            masks = np.ones_like(observations)
        if masks is not None and self._forbids:
            np.put_along_axis(masks, (which[..., None] + 1) % _SIZE, 0.0, axis=-1)
        if self._lead and masks is not None:
            present = np.ones(which.shape, np.float32)
            present[:, 1:] = self._rng.random(present[:, 1:].shape) < _PRESENT
            observations[present == 0] = 0.0
            masks[present == 0] = np.eye(_SIZE)[0]
        return observations, masks, present

    def _rewards(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        which = observations.argmax(axis=-1)
        if self._lead:
            acts = observations.any(axis=-1)
            return ((actions == which) & acts).sum(axis=1) / acts.sum(axis=1)
        if self._spec.action_space.shape == ():
            return (actions == which).astype(np.float64)
        target = (which - 1) / 2  # -0.5, 0, 0.5
        return 1.0 - np.abs(np.clip(actions[:, 0], -1.0, 1.0) - target).astype(np.float64)


def _difference(left: Any, right: Any) -> str:
    """Returns the first place where two plain states differ; "" if they are equal bit for bit."""
    ours, theirs = dict(leaves(left)), dict(leaves(right))
    for path in ours | theirs:
        if path not in ours or path not in theirs or not _is_equal(ours[path], theirs[path]):
            return f"state{shown(path)}"
    return ""


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    return type(left) is type(right) and bool(left == right or left != left)
