"""RLlib's replay buffers for several agents, drawing every stored step, the last ones too.

RLlib's sampler redraws a step from which fewer than n steps follow in its episode. So with
``n_step`` > 1 the last n - 1 steps of an episode, and the reward that a game pays at its end, are
never trained on; and with no stored episode of n steps ``sample()`` never returns. Here such a step
is given the return over the k < n steps that there are, bootstrapped from the observation after
them with gamma**k: the losses read ``n_step`` row by row.

Episodes have one agent each (see `rllib.episodes.by_agent`), so a stored step is an agent's step.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import (
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
)

from muxrl.servers.episodes.columns import pack_trajectories, unpack_trajectories
from muxrl.servers.rllib.episodes import Spaces, alone, num_bytes, single_of, trajectory_of

_COUNTS = (
    "_num_episodes_evicted",
    "_num_timesteps",
    "_num_timesteps_added",
    "_num_agent_timesteps",
    "_num_agent_timesteps_added",
    "sampled_timesteps",
)
_COUNTS_BY_MODULE = (
    "_num_module_timesteps",
    "_num_module_timesteps_added",
    "_num_module_episodes",
    "_num_module_episodes_evicted",
    "sampled_timesteps_per_module",
)


class _DrawsEveryStep:
    """`_sample_independent`, which both buffers of RLlib spell out, without redrawing.

    And a state of plain values and arrays, generator included. RLlib's own holds pickled episodes
    and leaves out the generator.
    """

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
            if not self._module_to_indices.get(module_id):
                continue  # its agents stay away, and what they played has been replaced
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

    @property
    def num_bytes(self: Any) -> int:
        """Size of the stored episodes."""
        return sum(num_bytes(single) for single in self._singles())

    def _singles(self: Any) -> list[SingleAgentEpisode]:
        return [single for whole in self.episodes for single in whole.agent_episodes.values()]

    def get_state(self: Any) -> dict[str, Any]:
        """Returns all that is stored, as plain values and arrays."""
        return {
            "episodes": pack_trajectories([trajectory_of(s) for s in self._singles()]),
            "counts": {name: int(getattr(self, name)) for name in _COUNTS},
            "counts_by_module": {name: dict(getattr(self, name)) for name in _COUNTS_BY_MODULE},
            "indices": _as_array(self._indices),
            "modules": {
                # An episode has one agent, which need not be named.
                module_id: _as_array([(i[0], *i[2:]) for i in indices])
                for module_id, indices in self._module_to_indices.items()
            },
            "rng": self.rng.bit_generator.state,
        }

    def restore(
        self: Any,
        state: Mapping[str, Any],
        spaces_of: Mapping[str, Spaces],
        policy_for: Callable[..., str],
    ) -> None:
        """Goes on as the buffer whose state it is.

        Args:
            state: from `get_state`.
            spaces_of: of observations and actions, by module id.
            policy_for: RLlib's agent-to-module mapping function.
        """
        singles = [
            single_of(one, spaces_of[one.policy_id]).to_numpy()
            for one in unpack_trajectories(state["episodes"])
        ]
        self.episodes = deque(alone(single, policy_for) for single in singles)
        for name, count in state["counts"].items():
            setattr(self, name, count)
        for name, counts in state["counts_by_module"].items():
            getattr(self, name).update(counts)
        self.episode_id_to_index = {}
        for i, episode in enumerate(self.episodes, self._num_episodes_evicted):
            self.episode_id_to_index[episode.id_] = i
            for agent_id in episode.agent_episodes:
                episode.module_for(agent_id)  # which RLlib looks up when it drops the episode
        self._indices = [tuple(index) for index in state["indices"].tolist()]
        agent_ids = [single.agent_id for single in singles]
        for module_id, indices in state["modules"].items():
            self._module_to_indices[module_id] = [
                (number, agent_ids[number - self._num_episodes_evicted], *rest)
                for number, *rest in indices.tolist()
            ]
        self.rng.bit_generator.state = state["rng"]


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

    def get_state(self) -> dict[str, Any]:
        """See `_DrawsEveryStep`; priorities included."""
        return {
            **super().get_state(),
            "priorities": {
                module_id: {
                    "sums": np.array(self._module_to_sum_segment[module_id].value),
                    "minima": np.array(self._module_to_min_segment[module_id].value),
                    "free_nodes": np.array(self._module_to_free_nodes[module_id]),
                    "samples": _as_array(
                        list(self._module_to_tree_idx_to_sample_idx[module_id].items())
                    ),
                    "last_sampled": list(self._module_to_last_sampled_indices[module_id]),
                    "highest": float(self._module_to_max_priority[module_id]),
                    "last_node": int(self._module_to_max_idx[module_id]),
                }
                for module_id in self._module_to_indices
            },
            # RLlib keeps a tree of env steps, too, which nothing is drawn from.
            "env_steps": {
                "free_nodes": np.array(self._free_nodes),
                "samples": _as_array(list(self._tree_idx_to_sample_idx.items())),
                "last_node": int(self._max_idx),
            },
        }

    def restore(
        self,
        state: Mapping[str, Any],
        spaces_of: Mapping[str, Spaces],
        policy_for: Callable[..., str],
    ) -> None:
        """See `_DrawsEveryStep`.

        Raises:
            ValueError: it has no priorities, or its trees are of another size.
        """
        if "priorities" not in state:
            raise ValueError(
                "a replay without priorities was kept, and the replay now draws by priority "
                "(replay_buffer_config, type)"
            )
        num_nodes = len(self._sum_segment.value)
        for priorities in state["priorities"].values():
            if len(priorities["sums"]) != num_nodes:
                raise ValueError(
                    f"priorities of {len(priorities['sums']) // 4} steps were kept, and the replay "
                    f"now has {num_nodes // 4} (replay_buffer_config, capacity)"
                )
        super().restore(state, spaces_of, policy_for)
        for module_id, priorities in state["priorities"].items():
            self._module_to_sum_segment[module_id].value = priorities["sums"].tolist()
            self._module_to_min_segment[module_id].value = priorities["minima"].tolist()
            _refill(self._module_to_free_nodes[module_id], priorities["free_nodes"])
            self._module_to_tree_idx_to_sample_idx[module_id] = dict(priorities["samples"].tolist())
            self._module_to_last_sampled_indices[module_id] = priorities["last_sampled"]
            self._module_to_max_priority[module_id] = priorities["highest"]
            self._module_to_max_idx[module_id] = priorities["last_node"]
        _refill(self._free_nodes, state["env_steps"]["free_nodes"])
        samples = dict(state["env_steps"]["samples"].tolist())
        self._tree_idx_to_sample_idx = samples
        self._sample_idx_to_tree_idx = {sample: node for node, sample in samples.items()}
        self._max_idx = state["env_steps"]["last_node"]


def _refill(nodes: deque[int], numbers: np.ndarray) -> None:
    nodes.clear()
    nodes.extend(numbers.tolist())


def _as_array(rows: list[tuple[int, ...]]) -> np.ndarray:
    return np.array(rows, np.int64)


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
