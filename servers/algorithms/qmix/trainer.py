"""QMIX, VDN, QPLEX and independent Q-learning: one trainer with four mixers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.messages import PolicyNetwork
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, LAST_ACTION, OBS, STATE
from muxrl.servers.algorithms.columns import ACTIONS, LOSS_MASK, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.optimizers import rmsprop_of
from muxrl.servers.algorithms.qmix.mixers import DuplexMixer, Mixer, make_mixer
from muxrl.servers.algorithms.qmix.networks import (
    HIDDEN,
    AgentNetwork,
    NumpyAgent,
    layers_of,
    of_member,
)
from muxrl.servers.algorithms.qmix.returns import bootstrapped_returns, follow_absent
from muxrl.servers.algorithms.replay.episodes import EpisodeReplay
from muxrl.servers.algorithms.replay.replay import WEIGHTS
from muxrl.servers.algorithms.replay.team_trainer import TeamTrainer
from muxrl.servers.algorithms.settings.teams import (
    IQLSettings,
    QMIXSettings,
    QPLEXSettings,
    VDNSettings,
)
from muxrl.servers.algorithms.torch_trainer import Asked, tensor_of
from muxrl.servers.algorithms.update import Step, Targets, value_at
from muxrl.servers.trainers.interface import Acted, PolicySpec, Rows

MEMBERS, IMPORTANCE = "members", "importance"
"""Groups of parameters if QPLEX's importance weights have a learning rate of their own: all other
parameters, and those of the importance weights."""


class TeamNet(nn.Module):
    """The network that all members share, the mixer, and the target networks of both.

    Args:
        policy: has the sizes.
        own: the settings.
    """

    def __init__(self, policy: PolicySpec, own: QMIXSettings) -> None:
        super().__init__()
        self.agent, self.mixer = AgentNetwork(own, policy), make_mixer(own, policy)
        self.target_agent, self.target_mixer = copy.deepcopy(self.agent), copy.deepcopy(self.mixer)


class QMIX(TeamTrainer):
    """monotonic value mixing for teams (Rashid et al. 2018)

    Fits the mixed value of the members' actions to a target::

        Q_tot(t) = r(t) + gamma (1 - terminated(t)) Q_tot_target(t + 1)

    Metrics besides those of the update: ``reward_sum_mean``, the mean return of the episodes as the
    loss sees it, shows if rewards get lost. Where episodes are drawn by priority also
    ``importance_weight_mean``, and ``priority_max``, the highest that was measured.
    """

    Settings: ClassVar[type[QMIXSettings]] = QMIXSettings
    settings: QMIXSettings
    net: TeamNet
    targets: Targets
    scores_name = "q_values"
    saved = {**TeamTrainer.saved, "num_target_updates": "num_target_updates"}
    needs_whole_episodes = True  # a GRU must see an episode from its start

    def __init__(self, policy: PolicySpec, settings: QMIXSettings) -> None:
        super().__init__(policy, settings)
        net = self.net
        self.targets = Targets((net.agent, net.target_agent), (net.mixer, net.target_mixer))
        self.num_target_updates = 0

    @property
    def max_sequence_steps(self) -> int:
        """Steps after which a longer episode is cut."""
        return self.settings.max_sequence_steps

    def make_net(self) -> nn.Module:
        return TeamNet(self.policy, self.settings)

    def make_steps(self) -> dict[str, Step]:
        own, net = self.settings, self.net
        groups = {"": [*net.agent.parameters(), *net.mixer.parameters()]}
        factors = None
        if own.importance_lr_factor != 1.0 and isinstance(net.mixer, DuplexMixer):
            importance = list(net.mixer.importance.parameters())
            separate = {id(parameter) for parameter in importance}
            others = [parameter for parameter in groups[""] if id(parameter) not in separate]
            groups = {MEMBERS: others, IMPORTANCE: importance}
            factors = {MEMBERS: 1.0, IMPORTANCE: own.importance_lr_factor}

        eps = own.optimizer_epsilon
        rmsprop = partial(rmsprop_of, eps=eps, alpha=own.rmsprop_alpha)
        return {
            "": Step(
                groups,
                lambda: own.lr,
                clip=own.grad_clip,
                eps=eps,
                make=rmsprop if own.optimizer_name == "rmsprop" else None,
                factors=factors,
            )
        }

    def make_replay(self) -> EpisodeReplay:
        own, alpha = self.settings, self.settings.prioritized_replay_alpha
        by_priority = (alpha, own.prioritized_replay_beta) if alpha > 0.0 else None
        return EpisodeReplay(own.buffer_capacity_episodes, self.policy.seed, by_priority)

    # --- acting -------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """Current share of random actions."""
        return value_at(self.settings.epsilon, self.env_steps)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Returns a team's initial recurrent state, ``{"h": [n, hidden_dim]}``; {} without GRU."""
        agent = self.net.agent
        if not agent.is_recurrent:
            return {}
        return {HIDDEN: np.zeros((agent.num_members, agent.hidden_dim), np.float32)}

    def begin_acting(self) -> None:
        for name in ("mixer", "target_agent", "target_mixer"):  # these need not go to a GPU
            delattr(self.net, name)
        super().begin_acting()

    def acting_in_numpy(self) -> Callable[..., Any] | None:
        """Returns a step of the members' network in numpy; None: the network is on a GPU."""
        return NumpyAgent(self.net.agent).step if self.device.type == "cpu" else None

    def act(self, rows: Rows) -> Acted:
        values, after = self.values(rows)
        epsilon = value_at(self.settings.epsilon, rows.env_steps) if rows.should_explore else 0.0
        assert rows.masks is not None
        actions = epsilon_greedy(values, rows.masks, epsilon, rows.rng)
        return Acted(actions, states=None if after is None else {HIDDEN: after})

    def values(self, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the values of all members' actions ``[B, n, k]``, and the next h."""
        obs, last_action, after = rows.observations, rows.inputs[LAST_ACTION], None
        h: np.ndarray | None = None if rows.states is None else rows.states[HIDDEN]

        def ask(net: Any, seen: dict[str, Tensor]) -> Tensor:
            nonlocal after
            before = None if h is None else tensor_of(h).to(seen[OBS].device)
            values, left = net.agent.step(seen, before)
            after = None if left is None else left.cpu().numpy()
            return values

        if self._gpu is not None:
            answered = self._gpu.asked(ask, self.net, {OBS: obs, LAST_ACTION: last_action})
            if answered is not None:
                return answered, after
        assert self._in_numpy is not None, "a copy acts, on the CPU"
        return self._in_numpy(obs, last_action, h)

    def acting_modules(self) -> list[nn.Module]:
        return [self.net.agent]

    def acting_network(self) -> PolicyNetwork | None:
        """Returns the layers of a member's network; None: they are not on the CPU."""
        agent = self.net.agent
        if self.device.type != "cpu":
            return None
        return PolicyNetwork(layers_of(agent), agent.has_last_action, agent.has_ids)

    @property
    def input_keys(self) -> tuple[str, ...]:
        agent = self.net.agent
        return (OBS,) + (LAST_ACTION,) * agent.has_last_action + (AGENT_ID,) * agent.has_ids

    def network(self) -> nn.Module:
        """Returns a member's network, for files."""
        return Asked(self.net.agent, of_member)

    # --- learning -----------------------------------------------------------------------

    def update_on(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        loss, metrics, priorities = self.loss(batch)
        self.update({"": loss}, [batch])
        own, step = self.settings, self.steps[""]
        if own.tau < 1.0 or self.num_updates % own.target_update_freq == 0:
            self.targets.follow(own.tau)
            self.num_target_updates += 1
        for (name, norm), group in zip(
            step.norms.items(), step.optimizer.param_groups, strict=False
        ):
            metrics[f"{name}_grad_norm" if name else "grad_norm"] = norm
            metrics[f"{name or 'default_optimizer'}_learning_rate"] = group["lr"]
        metrics["num_target_updates"] = self.num_target_updates
        metrics["epsilon"] = self.epsilon
        return metrics, priorities

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any], Tensor | None]:
        """Returns ``sum(mask * td^2) / sum(mask)``; Rashid et al. 2018, equation 6.

        The values at t + 1 are those of the members' greedy available actions; with double Q (van
        Hasselt et al. 2016) the online network chooses these, else the target network. Truncated
        episodes are bootstrapped: the observation after the last action is in the batch.

        If episodes are drawn by priority, each one's terms are weighted before the sum; the divisor
        stays as it is (Schaul et al. 2016, algorithm 1).

        Args:
            batch: from `EpisodeReplay.sample`, in tensors.

        Returns:
            The loss, metrics, and priorities ``[B]`` if the batch has weights.
        """
        own, net = self.settings, self.net
        inputs = net.agent.inputs_of(batch[OBS])
        with torch.no_grad():
            target_values = net.target_agent.values(inputs)
        values, mixers = net.agent.values(inputs), (net.mixer, net.target_mixer)
        q_taken, target = td_terms(mixers, values, target_values, batch, own)
        mask = batch[LOSS_MASK].unsqueeze(-1)
        if not net.mixer.is_joint:
            # Each member has its own error; an absent member has none.
            mask = mask * batch[OBS][ALIVE][:, :-1]
        num_terms = mask.sum().clamp(min=1.0)
        td_error = (q_taken - target) * mask
        squares = td_error.square()
        errors, taken = td_error.detach(), q_taken.detach()
        metrics: dict[str, Any] = {
            "td_error_abs": lambda: errors.abs().sum() / num_terms,
            "q_taken_mean": lambda: (taken * mask).sum() / num_terms,
            "target_mean": lambda: (target * mask).sum() / num_terms,
            "reward_sum_mean": lambda: (batch[REWARDS] * batch[LOSS_MASK]).sum(1).mean(),
            "num_module_steps_trained": lambda: batch[LOSS_MASK].sum(),
        }
        priorities = None
        if WEIGHTS in batch:
            weights = batch[WEIGHTS]
            squares = weights[:, None, None] * squares
            priorities = episode_priorities(errors, mask, own.prioritized_replay_eta)
            metrics["importance_weight_mean"] = weights.mean
            metrics["priority_max"] = priorities.max
        loss = squares.sum() / num_terms
        metrics["loss"] = metrics["total_loss"] = loss.detach()
        return loss, metrics, priorities


class VDN(QMIX):
    """sum of values for teams (Sunehag et al. 2017)"""

    Settings = VDNSettings


class QPLEX(QMIX):
    """duplex dueling value mixing for teams (Wang et al. 2021)"""

    Settings = QPLEXSettings


class IQL(QMIX):
    """independent Q-learning on the team's reward (Tan 1993)"""

    Settings = IQLSettings


def epsilon_greedy(
    values: np.ndarray, masks: np.ndarray, epsilon: float, rng: np.random.Generator
) -> np.ndarray:
    """Chooses among available actions, for each member independently.

    Args:
        values: ``[B, n, k]``.
        masks: ``[B, n, k]``, 1 for available actions.
        epsilon: share of random actions.
        rng: draws ``[B, n, k + 1]`` numbers, if epsilon is above 0.

    Returns:
        ``[B, n]`` int64.
    """
    actions = np.where(masks, values, -np.inf).argmax(-1)
    if epsilon > 0.0:
        # The largest of independent uniforms is a uniform draw; + 1 keeps available actions
        # above the unavailable ones, which are 0.
        draws = rng.random((*masks.shape[:-1], masks.shape[-1] + 1), np.float32)
        explores = draws[..., -1] < epsilon
        if np.count_nonzero(explores):  # rare with a single team
            any_action = ((draws[..., :-1] + 1.0) * masks).argmax(-1)
            actions = np.where(explores, any_action, actions)
    return actions


def td_terms(
    mixers: tuple[Mixer, Mixer],
    values: Tensor,
    target_values: Tensor,
    batch: Mapping[str, Any],
    own: QMIXSettings,
) -> tuple[Tensor, Tensor]:
    """Returns the two terms of the temporal difference.

    Args:
        mixers: online and target.
        values: of the online network, ``[B, T + 1, n, k]``.
        target_values: of the target network, ``[B, T + 1, n, k]``.
        batch: from `EpisodeReplay.sample`, in tensors.
        own: the settings.

    Returns:
        The mixed values of the actions taken, and their targets without gradient, both
        ``[B, T, 1]``, or ``[B, T, n]`` if every member has a target of its own.
    """
    (mixer, target_mixer), obs = mixers, batch[OBS]
    state, alive, available = obs[STATE], obs[ALIVE], obs[ACTION_MASK]
    now, later = slice(None, -1), slice(1, None)

    def mixed(mix: Callable[..., Tensor], q: Tensor, actions: Tensor, at: slice) -> Tensor:
        """Mixes the values of `actions` ``[B, T, n]``; `q` has the values of all actions."""
        q = q[:, at]
        choice: tuple[Tensor, ...] = ()
        if mixer.mixes_advantages:
            best = _taken(q, _greedy(q, available[:, at])).detach()
            choice = best, actions
        return mix(_taken(q, actions), state[:, at], alive[:, at], *choice)

    q_taken = mixed(mixer, values, batch[ACTIONS], now)
    with torch.no_grad():
        judge = values if own.double_q else target_values
        greedy = _greedy(judge[:, later], available[:, later])
        following = mixed(target_mixer, target_values, greedy, later)
        rewards, terminated, mask = (
            batch[key].unsqueeze(-1) for key in (REWARDS, TERMINATEDS, LOSS_MASK)
        )
        if not mixer.is_joint:
            following = follow_absent(
                following, alive[:, 1:], rewards, terminated, mask, gamma=own.gamma
            )
        target = bootstrapped_returns(rewards, following, terminated, mask, own)
    return q_taken, target


def _greedy(values: Tensor, available: Tensor) -> Tensor:
    """Returns the available actions of the highest values ``[..., k]``, int64 ``[...]``."""
    return values.masked_fill(available == 0, -torch.inf).argmax(-1)


def _taken(values: Tensor, actions: Tensor) -> Tensor:
    # A lookup, not a masked maximum, so that no infinity meets the padding.
    return values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def episode_priorities(td_error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """Returns ``eta max |td| + (1 - eta) mean |td|`` of each episode.

    Kapturowski et al. 2019, for sequences: the mean of a long one hides its large errors.

    Args:
        td_error: ``[B, T, k]``, 0 where `mask` is 0.
        mask: ``[B, T, k]``, 1 where there is an error.
        eta: weight of the maximum, 0.9 in the paper.

    Returns:
        ``[B]``.
    """
    size = td_error.abs()
    mean = size.sum((1, 2)) / mask.sum((1, 2)).clamp(min=1.0)
    return eta * size.amax((1, 2)) + (1.0 - eta) * mean
