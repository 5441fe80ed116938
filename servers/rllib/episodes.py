"""RLlib's door: episodes of RLlib, made from what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import gymnasium
import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from muxrl.servers.episodes.trajectories import Chunk, Trajectory
from muxrl.servers.gymnasium_spaces import Spaces

_REWARDS = gymnasium.spaces.Box(-np.inf, np.inf, (), np.float32)
PolicyFor = Callable[..., str]
"""RLlib's agent-to-module mapping function."""


class OrderedEpisode(MultiAgentEpisode):
    """An episode of RLlib's whose agents always have the same order.

    RLlib's learner connectors walk over `agent_ids`, which is a set there: with another hash seed
    of Python (each process draws its own) rows come in another order, and minibatches differ.
    """

    @property
    def agent_ids(self) -> Any:
        """The agents, in the order in which they were seated; has the operations of a set."""
        return self.agent_episodes.keys()


def episode_of(
    chunk: Chunk, spaces: Mapping[str, Spaces], policy_for: PolicyFor
) -> MultiAgentEpisode:
    """Returns a chunk in RLlib's form; arrays are handed over, not copied.

    RLlib's own `MultiAgentEpisode.add_env_step` and `cut` do not fit a server: an episode in which
    every agent *seen so far* is done counts as terminated (later agents are dropped, truncated
    agents not bootstrapped), and a cut loses the action of an agent that has not observed since, or
    the last transition of an agent that ends without a final observation.

    Args:
        chunk: of an episode.
        spaces: of the server's seats.
        policy_for: RLlib's agent-to-module mapping function.
    """
    episode = OrderedEpisode(
        id_=chunk.episode_id,
        observation_space={seat_id: observed for seat_id, (observed, _) in spaces.items()},
        action_space={seat_id: acted for seat_id, (_, acted) in spaces.items()},
        agent_to_module_mapping_fn=policy_for,
        env_t_started=chunk.t_started,
    )
    # RLlib's learners read these, and nothing else of it.
    episode.agent_episodes = {
        one.key: single_of(one, spaces[one.seat_id]) for one in chunk.trajectories
    }
    episode.env_t = chunk.t_started + chunk.num_env_steps
    episode.is_terminated, episode.is_truncated = chunk.is_terminated, chunk.is_truncated
    return episode


def single_of(trajectory: Trajectory, spaces: Spaces) -> SingleAgentEpisode:
    """Returns a trajectory in RLlib's form."""
    num_lookback = trajectory.num_lookback

    def buffer(columns: Any, space: gymnasium.Space | None = None) -> InfiniteLookbackBuffer:
        made = InfiniteLookbackBuffer(columns, space=space)
        made.lookback = num_lookback  # its constructor takes the number of keys for a length
        return made

    return SingleAgentEpisode(
        id_=trajectory.id,
        observations=buffer(trajectory.observations),
        observation_space=spaces[0],
        infos=[{}] * (len(trajectory.rewards) + 1),
        actions=buffer(trajectory.actions),
        action_space=spaces[1],
        rewards=buffer(trajectory.rewards, _REWARDS),
        extra_model_outputs={name: buffer(rows) for name, rows in trajectory.outputs.items()},
        terminated=trajectory.is_terminated,
        truncated=trajectory.is_truncated,
        t_started=trajectory.t,
        len_lookback_buffer=num_lookback,
        agent_id=trajectory.seat_id,
        module_id=trajectory.policy_id,
        multi_agent_episode_id=trajectory.episode_id,
    )


def trajectory_of(single: SingleAgentEpisode) -> Trajectory:
    """Returns the trajectory of an episode that is in arrays; see `SingleAgentEpisode.to_numpy`."""
    return Trajectory(
        id=single.id_,
        episode_id=single.multi_agent_episode_id,
        seat_id=single.agent_id,
        policy_id=single.module_id or DEFAULT_MODULE_ID,
        observations=single.observations.data,
        actions=single.actions.data,
        rewards=single.rewards.data,
        outputs={name: buffer.data for name, buffer in single.extra_model_outputs.items()},
        t=single.t_started,
        num_lookback=single.observations.lookback,
        is_terminated=single.is_terminated,
        is_truncated=single.is_truncated,
    )


def by_agent(episode: MultiAgentEpisode) -> list[MultiAgentEpisode]:
    """Splits a chunk by agent for RLlib's multi-agent replay buffers; nothing is copied.

    Those buffers join the chunks of an episode again and sample single steps of single agents. But
    their capacity, and so the size of their priority trees, is in env steps, and what they index is
    agent steps, so that a policy shared by three agents overflows. In an episode of one agent both
    counts are the same.

    Args:
        episode: made by a `Recorder`, without agents that have no step.
    """
    episodes = []
    for key, single in episode.agent_episodes.items():
        single.multi_agent_episode_id = f"{episode.id_}/{key}"
        episodes.append(alone(single, episode.agent_to_module_mapping_fn))
    return episodes


class _SameSteps:
    """RLlib's list of each env step's agent step, where they are the same; it does not grow."""

    lookback = 0

    @property
    def data(self) -> Self:
        return self

    def index(self, agent_step: int) -> int:
        return agent_step

    def __getitem__(self, steps: slice) -> tuple[()]:
        return ()  # of what is appended next


def alone(single: SingleAgentEpisode, policy_for: PolicyFor) -> MultiAgentEpisode:
    """Returns an episode of one agent, by its `multi_agent_episode_id`; `single` is not copied.

    Args:
        single: the agent's.
        policy_for: RLlib's agent-to-module mapping function.
    """
    agent_id = single.agent_id
    episode = MultiAgentEpisode(
        id_=single.multi_agent_episode_id,
        observation_space={agent_id: single.observation_space},
        action_space={agent_id: single.action_space},
        agent_to_module_mapping_fn=policy_for,
        env_t_started=single.t_started,
    )
    episode.agent_episodes = {agent_id: single}
    episode.agent_t_started[agent_id] = single.t_started
    episode.env_t_to_agent_t[agent_id] = _SameSteps()
    episode.env_t = single.t
    episode.is_terminated, episode.is_truncated = single.is_terminated, single.is_truncated
    return episode
