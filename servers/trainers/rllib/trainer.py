"""One of RLlib's algorithms as a trainer; see `muxrl.servers.trainers.interface`.

Each policy is an `Algorithm` of RLlib's new API stack with one RLModule, and a `QueuedEnvRunner` in
place of an environment. RLlib sees a step of an agent as an env step, and an agent's life as an
episode.
"""

from __future__ import annotations

import pickle
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
import tree
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.algorithms.dqn.dqn import calculate_rr_weights
from ray.rllib.algorithms.impala.impala_learner import IMPALALearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.utils.metrics import LEARNER_RESULTS
from torch import Tensor

from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.agents.seating import MASKED_AGENTS, Seating
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.gymnasium_spaces import Spaces
from muxrl.servers.trainers.interface import Acted, LearnsFrom, PolicySpec, Rows
from muxrl.servers.trainers.rllib.connector_callers import find_callers_without_source
from muxrl.servers.trainers.rllib.draws import all_draw_by, torch_draws_by
from muxrl.servers.trainers.rllib.learner_tables import follow_schedules, get_tables, set_tables
from muxrl.servers.trainers.rllib.learners import in_place
from muxrl.servers.trainers.rllib.object_store import keep_objects_here
from muxrl.servers.trainers.rllib.runner import QueuedEnvRunner, episode_of, observed_by_module
from muxrl.servers.trainers.spaces import AgentSpaces

_ALONE = "MultiAgent"
"""Prefix of the names of RLlib's replays of multi-agent episodes."""
_ENV_STEPS = "env_steps"
"""Key in a state; older checkpoints have it among the weights, too."""
_BEFORE, _AFTER = "state_in_", "state_out_"
"""Prefixes of the outputs with the parts of the recurrent state before and after an action."""


class RLlibTrainer:
    """Base class of the trainers of RLlib's algorithms.

    A state has RLlib's counters, and its replay, as pickles: load only states that you trust.

    Args:
        policy: the policy that it learns.
        config: RLlib's config, with the user's settings.
    """

    learns_from: ClassVar[LearnsFrom]
    seating: ClassVar[Seating] = MASKED_AGENTS
    space_check: ClassVar[AgentSpaces] = AgentSpaces()
    recorded: ClassVar[tuple[str, ...]] = ()
    """RLlib's columns to record with actions that are learned from."""
    samples_actions: ClassVar[bool] = True
    gamma: float = 0.99

    def __init__(self, policy: PolicySpec, config: AlgorithmConfig) -> None:
        self._seed, self._device = policy.seed, policy.device
        self._num_drawn = 0
        self.spaces = module_spaces(policy)
        self._build(config)
        learners = self._algorithm.learner_group.foreach_learner(lambda learner: learner)
        self._learner: Any = next(iter(learners)).get()
        self._module: Any = self._learner.module[DEFAULT_MODULE_ID].unwrapped()
        self._module.eval()
        self._runner: Any = self._algorithm.env_runner
        self._runner.module = self._module
        self._initial_state = tree.map_structure(np.asarray, self._module.get_initial_state())
        self.env_steps = 0
        self._num_env_steps = 0
        """Env steps that RLlib has counted."""
        self.gamma = config.gamma
        self.batch_env_steps = self._find_batch_env_steps(config)

    def _build(self, config: AlgorithmConfig) -> None:
        self._configure(config)
        config.environment(env=None, observation_space=self.spaces[0], action_space=self.spaces[1])
        config.env_runners(env_runner_cls=QueuedEnvRunner, num_env_runners=0)
        config.learners(num_learners=0, num_gpus_per_learner=int(self._device == "cuda"))
        config.reporting(  # one training step at a time
            min_time_s_per_iteration=None,
            min_sample_timesteps_per_iteration=0,
            min_train_timesteps_per_iteration=0,
        )
        # Else a thread keeps measuring the system's load, which is never read.
        config.debugging(seed=self._seed, log_sys_usage=False)
        keep_objects_here()
        find_callers_without_source()
        with all_draw_by(self._seed, self._device):
            self._algorithm = config.build_algo()
        # Tune makes a folder in the user's home for every Trainable; this one writes nothing there.
        shutil.rmtree(self._algorithm.logdir, ignore_errors=True)

    def _configure(self, config: AlgorithmConfig) -> None:
        """Sets what the server needs in a config of this kind of algorithm."""

    def _find_batch_env_steps(self, config: AlgorithmConfig) -> int:
        return int(config.total_train_batch_size)

    # --- acting -------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, rows: Rows) -> Acted:
        outputs = self.recorded if rows.is_training else ()
        module, batch = self._module, self._batch(rows)
        with torch_draws_by(int(rows.rng.integers(2**63)), self._device):
            if rows.should_explore:
                answered = module.forward_exploration(batch, t=rows.env_steps)
            else:
                answered = module.forward_inference(batch)
            answered = {**answered}
            if Columns.ACTIONS not in answered:
                if rows.should_explore:
                    kind = module.get_exploration_action_dist_cls()
                else:
                    kind = module.get_inference_action_dist_cls()
                distribution = kind.from_logits(answered[Columns.ACTION_DIST_INPUTS])
                if not rows.should_explore:
                    distribution = distribution.to_deterministic()
                answered[Columns.ACTIONS] = distribution.sample()
                if LOG_PROB in outputs and rows.should_explore:
                    answered[LOG_PROB] = distribution.logp(answered[Columns.ACTIONS])
        found = {name: self._row_of(answered[name]) for name in outputs if name in answered}
        states = None
        if self._module.is_stateful():
            before, after = (
                [part.cpu().numpy() for part in tree.flatten(whole)]
                for whole in (batch[Columns.STATE_IN], answered[Columns.STATE_OUT])
            )
            found |= {f"{_BEFORE}{i}": part for i, part in enumerate(before)}
            found |= {f"{_AFTER}{i}": part for i, part in enumerate(after)}
            states = list(zip(*after, strict=True))
        return Acted(self._row_of(answered[Columns.ACTIONS]), found, states)

    def _row_of(self, column: Tensor) -> np.ndarray:
        """Returns a column of the module's outputs in numpy, without the axis of time."""
        return (column.squeeze(1) if self._module.is_stateful() else column).cpu().numpy()

    def _batch(self, rows: Rows) -> dict[str, Any]:
        """Returns the module's input, as tensors: one step of each row."""
        batch = {Columns.OBS: observed_by_module(rows.observations, rows.masks)}
        if self._module.is_stateful():
            batch = tree.map_structure(lambda column: column[:, None], batch)
            first = tree.flatten(self._initial_state)
            states = [first if state is None else state for state in rows.states]
            parts = [np.stack(part) for part in zip(*states, strict=True)]
            batch[Columns.STATE_IN] = tree.unflatten_as(self._initial_state, parts)
        return tree.map_structure(lambda c: torch.as_tensor(c, device=self._device), batch)

    @torch.no_grad()
    def probabilities(self, rows: Rows) -> Any:
        """Returns the probabilities of all actions, ``[n, num_actions]``."""
        answered = self._module.forward_exploration(self._batch(rows), t=rows.env_steps)
        return answered[Columns.ACTION_DIST_INPUTS].softmax(-1).reshape(len(rows), -1)

    @torch.no_grad()
    def value(self, rows: Rows) -> Any:
        """Returns the critic's values, or the highest values over the actions, ``[n]``."""
        batch = self._batch(rows)
        if not self.samples_actions:
            return self._module.compute_q_values(batch)[QF_PREDS].amax(-1)
        return self._module.compute_values(batch).reshape(len(rows))

    def network(self) -> torch.nn.Module:
        """Returns the module behind `act`, for files.

        Raises:
            ValueError: the module is recurrent.
        """
        if self._module.is_stateful():
            raise ValueError("a recurrent RLModule cannot be exported")
        return _Greedy(self._module, self.spaces, has_values=not self.samples_actions)

    # --- learning -----------------------------------------------------------------------

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        # The server's env steps since the last call; at least a batch, until which PPO samples.
        env_steps = max(self.batch_env_steps, self.env_steps - self._num_env_steps)
        follow_schedules(self._learner, self._num_env_steps)
        self._num_env_steps += env_steps
        self._num_drawn += 1
        episodes = [self._episode(one) for one in trajectories]
        self._runner.put(episodes, env_steps, self._num_portions)
        seed = np.random.SeedSequence((self._seed, self._num_drawn)).generate_state(1)
        with all_draw_by(int(seed[0]), self._device):
            result = self._algorithm.train()
        self._module.eval()  # else each action would switch the mode twice
        metrics = result.get(LEARNER_RESULTS, {}).get(DEFAULT_MODULE_ID, {})
        return {
            name: float(value) for name, value in metrics.items() if isinstance(value, int | float)
        }

    _num_portions = 1
    """How often the algorithm samples before it learns."""

    def _episode(self, one: Trajectory) -> Any:
        outputs = {k: one.outputs[k] for k in (DISTRIBUTION, LOG_PROB) if k in one.outputs}
        num_states = len(tree.flatten(self._initial_state))
        before, after = (
            [one.outputs[f"{name}{i}"] for i in range(num_states)] for name in (_BEFORE, _AFTER)
        )
        if num_states:
            outputs[Columns.STATE_OUT] = tree.unflatten_as(self._initial_state, after)
        name = one.id if self.learns_from == "replay" else f"{one.id}@{one.t}"
        return episode_of(one, self.spaces, outputs, [part[0] for part in before], name=name)

    # --- what is saved ------------------------------------------------------------------

    def weights(self) -> dict[str, Any]:
        """Returns the module's parameters."""
        return dict(self._module.state_dict())

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Puts parameters into the module."""
        parameters = {name: one for name, one in weights.items() if name != _ENV_STEPS}
        self._module.load_state_dict(parameters)

    def learned_state(self) -> dict[str, Any]:
        """Returns the part of the state that an update changes: all but counters and a replay."""
        return {
            "module": self._module.state_dict(),
            "optimizers": {name: one.state_dict()["state"] for name, one in self._optimizers()},
            "tables": get_tables(self._learner),
        }

    def state(self) -> dict[str, Any]:
        rllib = {
            "algorithm": self._algorithm.metrics.get_state(),
            "learner": self._learner.metrics.get_state(),
        }
        return {
            **self.learned_state(),
            _ENV_STEPS: self._num_env_steps,
            "num_drawn": self._num_drawn,
            # Compressed, since most of a replay's trees of priorities is empty.
            "rllib": zlib.compress(pickle.dumps({**rllib, **self._replay_state()}), 1),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._module.load_state_dict(state["module"])
        for name, optimizer in self._optimizers():
            # The learning rate and the like stay as the present settings say; `learn` follows
            # schedules.
            own = optimizer.state_dict()
            optimizer.load_state_dict({**own, "state": state["optimizers"][name]})
        set_tables(self._learner, state["tables"])
        if "rllib" not in state:  # undoes an update
            return
        self._num_env_steps, self._num_drawn = state[_ENV_STEPS], state["num_drawn"]
        rllib = pickle.loads(zlib.decompress(state["rllib"]))
        self._algorithm.metrics.set_state(rllib["algorithm"])
        self._learner.metrics.set_state(rllib["learner"])
        self._load_replay(rllib)

    def _optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        found: Any = self._learner.get_optimizers_for_module(DEFAULT_MODULE_ID)
        return list(found)

    def _replay_state(self) -> dict[str, Any]:
        return {}

    def _load_replay(self, rllib: Mapping[str, Any]) -> None:
        """Loads the replay that `_replay_state` returned."""


class OnPolicy(RLlibTrainer):
    """PPO and its variants, which learn from batches of the newest weights."""

    learns_from: ClassVar[LearnsFrom] = "newest"
    gives_log_probs: ClassVar[bool] = True

    recorded = (DISTRIBUTION, LOG_PROB)


class Corrected(OnPolicy):
    """IMPALA and APPO, which learn from batches whose weights may be some versions older."""

    learns_from: ClassVar[LearnsFrom] = "recent"

    def _configure(self, config: AlgorithmConfig) -> None:
        learner = config.learner_class
        if issubclass(learner, IMPALALearner):
            config.learners(learner_class=in_place(learner))
        # One sample of RLlib's is what was recorded between two updates, and so has to be a batch.
        fragment = config.get_rollout_fragment_length()
        config.env_runners(num_envs_per_env_runner=-(-config.total_train_batch_size // fragment))


class Replayed(RLlibTrainer):
    """SAC, which learns from RLlib's replay and draws its actions."""

    learns_from = "replay"
    seating = replace(MASKED_AGENTS, one_choice=True)
    space_check = AgentSpaces((Discrete, Box), can_act_unbounded=False)
    value = None  # type: ignore[assignment]

    def _configure(self, config: AlgorithmConfig) -> None:
        replay = config.replay_buffer_config
        kind = replay.get("type")
        if isinstance(kind, str):
            config.replay_buffer_config = {**replay, "type": kind.removeprefix(_ALONE)}
        self._num_portions, _ = calculate_rr_weights(config)

    def _find_batch_env_steps(self, config: AlgorithmConfig) -> int:
        return int(config.get_rollout_fragment_length()) * self._num_portions

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        # RLlib's replay has a generator of its own, without a seed.
        seed = (self._seed, self._num_drawn, 1)
        self._algorithm.local_replay_buffer.rng = np.random.default_rng(seed)
        return super().learn(trajectories)

    def _replay_state(self) -> dict[str, Any]:
        return {"replay": self._algorithm.local_replay_buffer.get_state()}

    def _load_replay(self, rllib: Mapping[str, Any]) -> None:
        self._algorithm.local_replay_buffer.set_state(rllib["replay"])


class ReplayedValues(Replayed):
    """DQN, which takes the action of the highest value, or a random one."""

    space_check = AgentSpaces((Discrete,))
    samples_actions = False
    probabilities = None  # type: ignore[assignment]
    value = RLlibTrainer.value  # type: ignore[assignment]


class _Greedy(torch.nn.Module):
    """Returns the scores of discrete actions, or the greedy actions of a Box."""

    def __init__(self, module: Any, spaces: Spaces, *, has_values: bool) -> None:
        super().__init__()
        self._has_values = has_values
        self.module = module
        self._mask = (
            spaces[0][ACTION_MASK].shape if isinstance(spaces[0], gymnasium.spaces.Dict) else None
        )
        self._is_box = isinstance(spaces[1], gymnasium.spaces.Box)

    def forward(self, observed: Tensor) -> Any:
        seen: Any = observed
        if self._mask is not None:  # the caller masks the scores
            seen = {OBS: observed, ACTION_MASK: observed.new_ones((observed.shape[0], *self._mask))}
        batch = {Columns.OBS: seen}
        if self._has_values:
            return self.module.compute_q_values(batch)[QF_PREDS]
        outputs = self.module.forward_inference(batch)
        if Columns.ACTION_DIST_INPUTS not in outputs:
            raise ValueError(
                f"the forward_inference of {type(self.module).__name__} returns "
                f"{', '.join(outputs)} and no {Columns.ACTION_DIST_INPUTS}"
            )
        scores = outputs[Columns.ACTION_DIST_INPUTS]
        if not self._is_box:
            return scores
        kind = self.module.get_inference_action_dist_cls()
        return kind.from_logits(scores).to_deterministic().sample()


def module_spaces(policy: PolicySpec) -> Spaces:
    """Returns the observation space and the action space of a policy's RLModule."""
    observed: gymnasium.Space = policy.observation_space
    actions: Any = policy.action_space
    if policy.has_masks:
        num = int(np.sum(actions.nvec)) if hasattr(actions, "nvec") else int(actions.n)
        mask = gymnasium.spaces.Box(0.0, 1.0, (num,), np.float32)
        observed = gymnasium.spaces.Dict({OBS: observed, ACTION_MASK: mask})
    return observed, actions
