"""Episodes to one training batch for each module, advantages included, in one pass.

RLlib's default pipeline goes over the episodes once for every column, and adds a step to each of
them for the bootstrap value. For modules without a state that takes most of the time of a small
update. Here the columns are concatenated once and the values computed once. The result is the
same, but without the added steps, so that no mask is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import tree
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing

from muxrl.servers.algorithms.recorded_rows import recorded_rows

_RECORDED = (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)
# RLlib's floor for the standard deviation of advantages.
_MIN_STD = 1e-4


class EpisodesToBatch(ConnectorV2):
    """A learner connector that does all of it: from episodes to the columns of a batch.

    Columns: ``OBS``, ``ACTIONS``, ``ACTION_LOGP`` and ``ACTION_DIST_INPUTS`` where they were
    recorded, ``ADVANTAGES``, ``VALUE_TARGETS``; tensors whose first dimension is the transition.

    Args:
        gamma: discount.
        lambda_: of generalized advantage estimation, Schulman et al. 2016, equation 16.
        should_standardize: whether a module's advantages are shifted to mean 0 and scaled to
            standard deviation 1, those of actions that it has chosen.
    """

    def __init__(self, *, gamma: float, lambda_: float, should_standardize: bool) -> None:
        super().__init__()
        self.gamma = gamma
        self.lambda_ = lambda_
        self.should_standardize = should_standardize

    def __call__(
        self,
        *,
        rl_module: MultiRLModule,
        batch: dict[str, Any],
        episodes: Sequence[MultiAgentEpisode | SingleAgentEpisode],
        **kwargs: Any,
    ) -> dict[str, Any]:
        for module_id, singles in singles_by_module(episodes).items():
            if module_id in rl_module:
                batch[module_id] = self._columns(rl_module[module_id].unwrapped(), singles)
        return batch

    def _columns(self, module: Any, singles: list[SingleAgentEpisode]) -> dict[str, Any]:
        device = next(module.parameters()).device
        lengths = np.array([len(single) for single in singles])
        # One observation more than there are transitions: the value after the last one.
        observations = _concatenated([recorded_rows(single.observations) for single in singles])
        all_obs = _tensors(observations, device)
        is_last = np.zeros(lengths.sum() + len(lengths), bool)
        is_last[np.cumsum(lengths + 1) - 1] = True
        before = torch.from_numpy(np.flatnonzero(~is_last)).to(device)
        columns: dict[str, Any] = {
            Columns.OBS: tree.map_structure(lambda x: x[before], all_obs),
            Columns.ACTIONS: _tensors(
                _concatenated([recorded_rows(s.actions) for s in singles]), device
            ),
        }
        for name in _RECORDED:
            if name in singles[0].extra_model_outputs:
                recorded = [recorded_rows(s.extra_model_outputs[name]) for s in singles]
                columns[name] = _tensors(_concatenated(recorded), device)
        if not isinstance(module, ValueFunctionAPI):
            return columns
        with torch.no_grad():
            values = module.compute_values({Columns.OBS: all_obs}).cpu().numpy()
        advantages = advantages_of(
            values,
            np.concatenate([np.asarray(recorded_rows(s.rewards), np.float32) for s in singles]),
            lengths,
            np.array([single.is_terminated for single in singles]),
            gamma=self.gamma,
            lambda_=self.lambda_,
        )
        targets = advantages + values[~is_last]
        if self.should_standardize:
            own = advantages[_are_own(columns)]
            if len(own):
                advantages = (advantages - own.mean()) / max(_MIN_STD, own.std())
        columns[Postprocessing.ADVANTAGES] = torch.from_numpy(advantages).to(device)
        columns[Postprocessing.VALUE_TARGETS] = torch.from_numpy(targets).to(device)
        return columns


def _are_own(columns: dict[str, Any]) -> Any:
    """Returns which actions the policy has chosen; the others train its values alone."""
    logp = columns.get(Columns.ACTION_LOGP)
    return slice(None) if logp is None else np.isfinite(logp.cpu().numpy())


def advantages_of(
    values: np.ndarray,
    rewards: np.ndarray,
    lengths: np.ndarray,
    is_terminated: np.ndarray,
    *,
    gamma: float,
    lambda_: float,
) -> np.ndarray:
    """Generalized advantage estimation over many pieces of episodes at a time.

    Args:
        values: ``[sum(lengths + 1)]``, piece after piece: of every observation, the last too.
        rewards: ``[sum(lengths)]``.
        lengths: ``[C]`` transitions of each piece.
        is_terminated: ``[C]``; a piece that has not terminated is bootstrapped from its last
            value, whether it was truncated or only cut.
        gamma: discount.
        lambda_: 0 trusts the values, 1 sums rewards up to the end of the piece.

    Returns:
        ``[sum(lengths)]`` float32.
    """
    num_pieces, longest = len(lengths), int(lengths.max())
    has_step = np.arange(longest) < lengths[:, None]
    has_value = np.arange(longest + 1) < lengths[:, None] + 1
    padded_values = np.zeros((num_pieces, longest + 1), np.float32)
    padded_values[has_value] = values
    padded_values[is_terminated, lengths[is_terminated]] = 0.0
    errors = np.zeros((num_pieces, longest), np.float32)
    errors[has_step] = rewards
    errors += gamma * padded_values[:, 1:] - padded_values[:, :-1]
    errors *= has_step
    running = np.zeros(num_pieces, np.float32)
    for t in reversed(range(longest)):
        running = errors[:, t] + gamma * lambda_ * running
        errors[:, t] = running
    return errors[has_step]


def singles_by_module(
    episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode],
) -> dict[str, list[SingleAgentEpisode]]:
    """Returns agents' pieces of episodes, in the order in which a module's batch has their rows."""
    by_module: dict[str, list[SingleAgentEpisode]] = {}
    for single in _singles(episodes):
        if len(single):
            by_module.setdefault(single.module_id or DEFAULT_MODULE_ID, []).append(single)
    return by_module


def _singles(
    episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode],
) -> Iterator[SingleAgentEpisode]:
    for episode in episodes:
        if isinstance(episode, MultiAgentEpisode):
            yield from episode.agent_episodes.values()
        else:
            yield episode


def _concatenated(parts: list[Any]) -> Any:
    return tree.map_structure(lambda *leaves: np.concatenate(leaves), *parts)


def _tensors(values: Any, device: torch.device) -> Any:
    def tensor(leaf: np.ndarray) -> torch.Tensor:
        if leaf.dtype == np.float64:
            leaf = leaf.astype(np.float32)
        return torch.from_numpy(leaf).to(device)

    return tree.map_structure(tensor, values)
