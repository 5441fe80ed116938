"""Chunks as RLlib's replay buffers for several agents can keep them.

Those buffers glue the chunks of an episode together again and draw single steps of single agents
from it. Their book-keeping mixes two counts, though: capacity is in env steps, and the trees of
priorities are sized by it, but what they index is agent steps, so that a policy of three agents
runs out of room. So every agent has an episode of its own here, in which both are the same.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode


class _EveryStep:
    """An agent's step `t` is its episode's env step `t`; RLlib looks that up for a metric.

    RLlib's own list would have to be searched for every step drawn, and loses count where the
    beginning of an episode has left the buffer before its end has come.
    """

    @property
    def data(self) -> _EveryStep:
        return self

    def index(self, agent_t: int) -> int:
        return agent_t

    def __getitem__(self, item: Any) -> tuple[()]:
        return ()


def by_agent(episode: MultiAgentEpisode) -> list[MultiAgentEpisode]:
    """Returns one episode for each agent of a chunk; the single episodes are not copied.

    Args:
        episode: as the `Recorder` makes it, agents without a step removed.
    """
    episodes = []
    for agent_id, single in episode.agent_episodes.items():
        alone = MultiAgentEpisode(
            id_=f"{episode.id_}/{agent_id}",
            observation_space={agent_id: single.observation_space},
            action_space={agent_id: single.action_space},
            agent_to_module_mapping_fn=episode.agent_to_module_mapping_fn,
            env_t_started=single.t_started,
        )
        single.multi_agent_episode_id = alone.id_
        alone.agent_episodes = {agent_id: single}
        alone.agent_t_started[agent_id] = single.t_started
        alone.env_t_to_agent_t[agent_id] = _EveryStep()
        alone.env_t = single.t
        alone.is_terminated, alone.is_truncated = single.is_terminated, single.is_truncated
        episodes.append(alone)
    return episodes
