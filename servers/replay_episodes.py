"""Splits episodes by agent for RLlib's multi-agent replay buffers.

Those buffers join the chunks of an episode again and sample single steps of single agents. But
they mix two counts: their capacity, and so the size of their priority trees, is in env steps, and
what they index is agent steps, so that a policy shared by three agents overflows. In an episode of
one agent both counts are the same.
"""

from __future__ import annotations

from collections.abc import Callable

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode


def by_agent(episode: MultiAgentEpisode) -> list[MultiAgentEpisode]:
    """Returns one episode for each agent of a chunk; the single episodes are not copied.

    Args:
        episode: made by a `Recorder`, without agents that have no step.
    """
    episodes = []
    for agent_id, single in episode.agent_episodes.items():
        single.multi_agent_episode_id = f"{episode.id_}/{agent_id}"
        episodes.append(alone(single, episode.agent_to_module_mapping_fn))
    return episodes


def alone(single: SingleAgentEpisode, policy_for: Callable[..., str]) -> MultiAgentEpisode:
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
    # Agent steps are env steps here, so nothing looks this up; a list would grow with them.
    episode.env_t_to_agent_t[agent_id] = ()
    episode.env_t = single.t
    episode.is_terminated, episode.is_truncated = single.is_terminated, single.is_truncated
    return episode
