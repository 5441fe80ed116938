"""An RLlib `EnvRunner` without an environment: its episodes come over the network.

RLlib's algorithms ask it for episodes with `sample()`, as any env runner, and hand it new weights
with `set_state()`. It owns the modules that act (`Inference`) and reads batches from the `Feed`;
`muxrl.servers.episodes` records them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import gymnasium
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env import INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.policy.policy import PolicySpec
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import (
    NUM_AGENT_STEPS_SAMPLED,
    NUM_AGENT_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    NUM_MODULE_STEPS_SAMPLED_LIFETIME,
    WEIGHTS_SEQ_NO,
)

from muxrl.servers.agents.seats import Seat
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.trajectories import Chunk
from muxrl.servers.gymnasium_spaces import Spaces, spaces_of
from muxrl.servers.rllib.episodes import by_agent, episode_of
from muxrl.servers.rllib.inference import Inference
from muxrl.servers.rllib.metrics import GatheringLogger
from muxrl.servers.training.thread import PolicyLag


def _spaces_of(policy: Any) -> Spaces:
    """Returns a policy's spaces; RLlib hands policies on as PolicySpecs or as plain tuples."""
    if isinstance(policy, PolicySpec):
        return policy.observation_space, policy.action_space
    return policy[1], policy[2]


class ExternalEnvRunner(EnvRunner, Checkpointable):
    """Gives RLlib the episodes that remote simulations have played on this server.

    Args:
        config: RLlib's.
        **kwargs: RLlib's, ``spaces`` among them: ``{module_id: (obs space, action space)}``.
    """

    def __init__(self, config: AlgorithmConfig, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.metrics = GatheringLogger(stats_cls_lookup=config.stats_cls_lookup, root=False)
        self._feed: Feed | None = None
        self._seats: Mapping[str, Seat] = {}
        self.inference = Inference(
            self._build_module,
            seed=config.seed or 0,
            on_gpu=config.num_gpus_per_learner > 0,
        )
        self.policy_lag = PolicyLag()
        self._fills_replay = False

    def attach(
        self,
        feed: Feed,
        seats: Mapping[str, Seat],
        *,
        needs_log_probabilities: bool,
        corrects_off_policy: bool = False,
        fills_replay: bool = False,
    ) -> None:
        """Connects the runner, which RLlib has built, to the server that feeds it.

        Not an argument of the constructor, because RLlib copies and pickles its config.

        Args:
            feed: where batches come from.
            seats: of the server, by id.
            needs_log_probabilities: whether the learner reads them.
            corrects_off_policy: see `Inference`.
            fills_replay: whether RLlib's replay buffer for several agents takes the episodes.
        """
        self._feed = feed
        self._seats = seats
        self._fills_replay = fills_replay
        self.inference.needs_log_probabilities = needs_log_probabilities
        self.inference.corrects_off_policy = corrects_off_policy

    @property
    def module(self) -> Any:
        """For RLlib: the modules in use; DQN asks whether they are recurrent."""
        return self.inference.modules

    def _build_module(self) -> Any:
        spec = self.config.get_multi_rl_module_spec(spaces=self.get_spaces(), inference_only=True)
        module = spec.build()
        for _, single in module.items():
            single.eval()
        return module

    def get_spaces(self) -> dict[str, Spaces]:
        """Returns each module's spaces, and those of the whole environment that RLlib demands."""
        spaces = {
            module_id: _spaces_of(policy) for module_id, policy in self.config.policies.items()
        }
        return {
            INPUT_ENV_SPACES: (
                gymnasium.spaces.Dict({m: s[0] for m, s in spaces.items()}),
                gymnasium.spaces.Dict({m: s[1] for m, s in spaces.items()}),
            ),
            **spaces,
        }

    # --- sampling -----------------------------------------------------------------------

    def take(self) -> list[Chunk]:
        """Blocks until a batch is complete and returns its chunks.

        Raises:
            FeedClosed: the server is stopping. If this returned nothing instead, RLlib's
                ``synchronous_parallel_sample`` would ask again for ever.
        """
        assert self._feed is not None, "attach() comes before take()"
        chunks = self._feed.take()
        self.policy_lag = PolicyLag.of(chunks, self.inference.weights_seq_no)
        self._log(chunks)
        return chunks

    def sample(self, **kwargs: Any) -> list[MultiAgentEpisode]:
        """Returns a batch as RLlib's episodes; see `take`."""
        episodes: list[MultiAgentEpisode] = []
        for chunk in self.take():
            if chunk.trajectories:  # RLlib's learner connectors cannot take an empty one
                episode = episode_of(chunk, self._spaces, self.config.policy_mapping_fn)
                episodes += by_agent(episode) if self._fills_replay else [episode]
        return episodes

    @cached_property
    def _spaces(self) -> dict[str, Spaces]:
        return {seat_id: spaces_of(seat) for seat_id, seat in self._seats.items()}

    def _log(self, chunks: list[Chunk]) -> None:
        log = self.metrics.log_value
        steps = sum(chunk.num_env_steps for chunk in chunks)
        log(NUM_ENV_STEPS_SAMPLED, steps, reduce="sum")
        log(NUM_ENV_STEPS_SAMPLED_LIFETIME, steps, reduce="lifetime_sum", with_throughput=True)
        self.num_env_steps_sampled_lifetime += steps
        self.inference.num_env_steps_sampled = self.num_env_steps_sampled_lifetime
        num_ended = sum(chunk.is_done for chunk in chunks)
        if num_ended:
            log(NUM_EPISODES, num_ended, reduce="sum")
            log(NUM_EPISODES_LIFETIME, num_ended, reduce="lifetime_sum")
        for one in (one for chunk in chunks for one in chunk.trajectories):
            num = len(one)
            log((NUM_AGENT_STEPS_SAMPLED, one.seat_id), num, reduce="sum")
            log((NUM_AGENT_STEPS_SAMPLED_LIFETIME, one.seat_id), num, reduce="lifetime_sum")
            log((NUM_MODULE_STEPS_SAMPLED, one.policy_id), num, reduce="sum")
            log((NUM_MODULE_STEPS_SAMPLED_LIFETIME, one.policy_id), num, reduce="lifetime_sum")

    def get_metrics(self) -> Any:
        """Returns what was logged since the last call."""
        return self.metrics.reduce()

    # --- state --------------------------------------------------------------------------

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Returns the counters and, unless left out, the weights."""
        state: dict[str, Any] = {
            NUM_ENV_STEPS_SAMPLED_LIFETIME: self.num_env_steps_sampled_lifetime
        }
        if self._check_component(COMPONENT_RL_MODULE, components, not_components):
            state[COMPONENT_RL_MODULE] = self.inference.modules.get_state(
                components=self._get_subcomponents(COMPONENT_RL_MODULE, components),
                not_components=self._get_subcomponents(COMPONENT_RL_MODULE, not_components),
                **kwargs,
            )
            state[WEIGHTS_SEQ_NO] = self.inference.weights_seq_no
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts new weights into use, which may open the gate."""
        if COMPONENT_RL_MODULE in state:
            weights = state[COMPONENT_RL_MODULE]
            if not isinstance(weights, Mapping):  # IMPALA puts it into the object store
                weights = ray.get(weights)
            # The learner counts updates from 0: its initial weights are version 0.
            version = state.get(WEIGHTS_SEQ_NO, self.inference.weights_seq_no + 1)
            self.inference.load(weights, version)
            if self._feed is not None:
                self._feed.finish_learning()
        if NUM_ENV_STEPS_SAMPLED_LIFETIME in state:
            self.num_env_steps_sampled_lifetime = state[NUM_ENV_STEPS_SAMPLED_LIFETIME]
            self.inference.num_env_steps_sampled = self.num_env_steps_sampled_lifetime

    def follow(self, learned: Mapping[str, Any], weights_seq_no: int) -> None:
        """Puts the weights of modules of this process into use, which may open the gate."""
        self.inference.follow(learned, weights_seq_no)
        if self._feed is not None:
            self._feed.finish_learning()

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        """For RLlib, which restores from a checkpoint with these."""
        return (), {"config": self.config}

    def get_metadata(self) -> dict[str, Any]:
        """For RLlib, with the time of writing."""
        return {**Checkpointable.get_metadata(self), "written_at_s": time.time()}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """For RLlib: the modules."""
        return [(COMPONENT_RL_MODULE, self.inference.modules)]

    def assert_healthy(self) -> None:
        """For RLlib: there is no environment that could fail."""

    def stop(self) -> None:
        """Nothing to close: the server owns the network."""
