"""RLlib's replay buffers for several agents, drawing every stored step, the last ones too.

RLlib's sampler redraws a step from which fewer than n steps follow in its episode. So with
``n_step`` > 1 the last n - 1 steps of an episode, and the reward that a game pays at its end, are
never trained on; and with no stored episode of n steps ``sample()`` never returns. Here such a step
is given the return over the k < n steps that there are, bootstrapped from the observation after
them with gamma**k: the losses read ``n_step`` row by row.

Episodes have one agent each (see `replay_episodes`), so a stored step is an agent's step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import (
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
)


class _DrawsEveryStep:
    """`_sample_independent`, which both buffers of RLlib spell out, without redrawing."""

    def _draw(
        self, module_id: str, num_items: int, beta: float | None
    ) -> Iterator[tuple[tuple[Any, ...], float]]:
        """Yields, `num_items` times, a step's place (episode, agent, its t, ...) and weight."""
        raise NotImplementedError

    def _sample_independent(
        self: Any,
        *,
        n_step: int | tuple[int, int] | None,
        gamma: float,
        modules_to_sample: set[str] | None,
        beta: float | None = None,
        **sizes: Any,
    ) -> list[SingleAgentEpisode]:
        """Returns ``batch_size_B`` steps for each module, each as an episode of one step."""
        num_items = sizes["batch_size_B"]
        drawn: list[SingleAgentEpisode] = []
        by_module: dict[str, list[SingleAgentEpisode]] = defaultdict(list)
        by_agent: dict[str, list[SingleAgentEpisode]] = defaultdict(list)
        for module_id in sorted(modules_to_sample or self._module_to_indices):
            for (number, agent_id, t, *_), weight in self._draw(module_id, num_items, beta):
                n = int(self.rng.integers(*n_step)) if isinstance(n_step, tuple) else n_step or 1
                whole = self.episodes[number - self._num_episodes_evicted].agent_episodes[agent_id]
                step = transition(whole, t, n, gamma, weight)
                drawn.append(step)
                by_module[module_id].append(step)
                by_agent[agent_id].append(step)
            self.sampled_timesteps_per_module[module_id] += len(by_module[module_id])
        self.sampled_timesteps += num_items
        self._update_sample_metrics(
            num_env_steps_sampled=len(drawn),
            num_episodes_per_sample=_num_episodes(drawn),
            num_env_steps_per_sample=_num_steps(drawn),
            sampled_n_step=_mean_n_step(drawn),
            num_resamples=0,
            **_metrics_by("agent", by_agent),
            **_metrics_by("module", by_module),
        )
        return drawn


class EveryStepEpisodeReplayBuffer(_DrawsEveryStep, MultiAgentEpisodeReplayBuffer):
    """Draws steps uniformly."""

    def _draw(
        self, module_id: str, num_items: int, beta: float | None
    ) -> Iterator[tuple[tuple[Any, ...], float]]:
        indices = self._module_to_indices[module_id]
        for _ in range(num_items):
            yield indices[self.rng.integers(len(indices))], 1.0


class EveryStepPrioritizedEpisodeReplayBuffer(
    _DrawsEveryStep, MultiAgentPrioritizedEpisodeReplayBuffer
):
    """Draws steps by priority, with weights that correct for it (Schaul et al. 2016, eq. 1)."""

    def _draw(
        self, module_id: str, num_items: int, beta: float | None
    ) -> Iterator[tuple[tuple[Any, ...], float]]:
        assert beta is not None, "RLlib hands over the beta of replay_buffer_config"
        priorities = self._module_to_sum_segment[module_id]
        total = priorities.sum()
        size = self.get_num_timesteps(module_id)
        most = (self._module_to_min_segment[module_id].min() / total * size) ** -beta
        for _ in range(num_items):
            node = priorities.find_prefixsum_idx(self.rng.random() * total)
            weight = (priorities[node] / total * size) ** -beta / most
            # RLlib gives these nodes their new priorities after the update.
            self._module_to_last_sampled_indices[module_id].append(node)
            index = self._module_to_tree_idx_to_sample_idx[module_id][node]
            yield self._module_to_indices[module_id][index], weight


def transition(
    episode: SingleAgentEpisode, t: int, n: int, gamma: float, weight: float = 1.0
) -> SingleAgentEpisode:
    """Returns the step at `t` as the losses read it: an episode of one step.

    Its observations are those of t and t + k, its reward is the sum of gamma**i * r_{t+i} over
    i < k, and it is terminated or truncated if the episode is by then. k, kept as ``n_step``, is
    `n`, or the number of steps that follow if they are fewer.

    Args:
        episode: of one agent.
        t: index of a step in it.
        n: how many rewards to add up at most.
        gamma: the discount.
        weight: of the step in the loss.
    """
    k = min(n, len(episode) - t)
    is_last = t + k == len(episode)
    reward = 0.0
    for value in reversed(episode.get_rewards(slice(t, t + k))):
        reward = value + gamma * reward
    return SingleAgentEpisode(
        id_=episode.id_,
        agent_id=episode.agent_id,
        module_id=episode.module_id,
        multi_agent_episode_id=episode.multi_agent_episode_id,
        observations=[episode.get_observations(t), episode.get_observations(t + k)],
        observation_space=episode.observation_space,
        actions=[episode.get_actions(t)],
        action_space=episode.action_space,
        rewards=[reward],
        terminated=is_last and episode.is_terminated,
        truncated=is_last and episode.is_truncated,
        extra_model_outputs={"weights": [weight], "n_step": [k]},
        len_lookback_buffer=0,
        t_started=t,
    )


def _num_episodes(steps: list[SingleAgentEpisode]) -> int:
    return len({step.id_ for step in steps})


def _num_steps(steps: list[SingleAgentEpisode]) -> int:
    return len({(step.id_, step.t_started) for step in steps})


def _mean_n_step(steps: list[SingleAgentEpisode]) -> float:
    return sum(step.get_extra_model_outputs("n_step", 0) for step in steps) / max(len(steps), 1)


def _metrics_by(what: str, steps: dict[str, list[SingleAgentEpisode]]) -> dict[str, Any]:
    """RLlib's metrics of a sample by agent or by module."""
    return {
        f"{what}_to_num_steps_sampled": {key: len(s) for key, s in steps.items()},
        f"{what}_to_num_episodes_per_sample": {k: _num_episodes(s) for k, s in steps.items()},
        f"{what}_to_num_steps_per_sample": {k: _num_steps(s) for k, s in steps.items()},
        f"{what}_to_sampled_n_step": {k: _mean_n_step(s) for k, s in steps.items()},
        f"{what}_to_num_resamples": Counter(),
    }
