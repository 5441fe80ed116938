"""DQN: learns action values from a replay; Mnih et al. 2015 (doi 10.1038/nature14236).

With double Q (van Hasselt et al. 2016, arXiv 1509.06461), dueling heads (Wang et al. 2016, arXiv
1511.06581), n-step returns as in Rainbow (Hessel et al. 2018, arXiv 1710.02298), and distributions
of returns on atoms (C51; Bellemare et al. 2017, arXiv 1707.06887).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from muxrl.protocol.dense import forward
from muxrl.protocol.messages import DenseLayer
from muxrl.servers.agents.keys import OBS
from muxrl.servers.algorithms.columns import ACTIONS, NEXT_OBS, REWARDS
from muxrl.servers.algorithms.distributions import masked
from muxrl.servers.algorithms.networks import Encoder, dense_layers, head
from muxrl.servers.algorithms.off_policy import OffPolicy, at, split
from muxrl.servers.algorithms.replay.replay import WEIGHTS
from muxrl.servers.algorithms.settings.off_policy import DQNSettings
from muxrl.servers.algorithms.update import Step, Targets, value_at
from muxrl.servers.trainers.interface import Acted, Rows

OPTIMIZER = "default_optimizer"


class QNetwork(nn.Module):
    """Action values ``[B, n]``: an encoder, and one head or, with dueling, two."""

    atoms: Tensor

    def __init__(self, own: DQNSettings, shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.num_atoms = own.num_atoms
        self.encoder = Encoder(own.model, shape)

        def head_of(num: int) -> nn.Sequential:
            return head(own.model, self.encoder.size, num, initializes_last=True)

        self.advantage = head_of(num_actions * own.num_atoms)
        """Head of the advantages; without dueling of the values, with atoms of their logits."""
        is_dueling = own.dueling and own.num_atoms == 1
        self.state_value = head_of(1) if is_dueling else None
        width = (own.v_max - own.v_min) / max(1, own.num_atoms - 1)
        self.register_buffer("atoms", own.v_min + width * torch.arange(float(own.num_atoms)))

    def forward(self, obs: Tensor) -> Tensor:
        if self.num_atoms > 1:
            return self.expected(self.logits(obs).softmax(-1))
        features = self.encoder(obs)
        values: Tensor = self.advantage(features)
        if self.state_value is None:
            return values
        # Wang et al. 2016, equation 9
        return values - values.mean(-1, keepdim=True) + self.state_value(features)

    def logits(self, obs: Tensor) -> Tensor:
        """Returns the logits of each action's atoms, ``[B, n, num_atoms]``."""
        found: Tensor = self.advantage(self.encoder(obs))
        return found.unflatten(-1, (-1, self.num_atoms))

    def expected(self, probs: Tensor) -> Tensor:
        """Returns the expected values of distributions ``[..., num_atoms]``."""
        return (probs * self.atoms).sum(-1)


class DQNNet(nn.Module):
    """The online network and the target network."""

    def __init__(self, own: DQNSettings, shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.online = QNetwork(own, shape, num_actions)
        self.target = QNetwork(own, shape, num_actions)


class DQN(OffPolicy):
    """deep Q-learning, with double Q, dueling, n-step, atoms (Mnih et al. 2015)

    ::

        (Q(s, a) - r - gamma**k (1 - terminated) Q_target(s', a'))^2

    where ``a'`` is the best available action by the online network with double Q, else by the
    target network.
    """

    scores_name = "q_values"
    Settings = DQNSettings
    settings: DQNSettings
    net: DQNNet

    def make_net(self) -> nn.Module:
        shape = self.policy.observation_space.shape
        num_actions: int = self.policy.action_space.n  # type: ignore[attr-defined]
        return DQNNet(self.settings, shape, num_actions)

    def make_targets(self) -> Targets:
        return Targets((self.net.online, self.net.target))

    def make_steps(self) -> dict[str, Step]:
        own = self.settings
        params = list(self.net.online.parameters())
        return {
            OPTIMIZER: Step(
                {"": params}, lambda: own.lr, clip=own.grad_clip, clip_by=own.grad_clip_by
            )
        }

    # --- acting -------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """Current probability of a random action."""
        return value_at(self.settings.epsilon, self.env_steps)

    def act(self, rows: Rows) -> Acted:
        values = self.asked_of_net(rows, lambda net, seen: net.online(seen[OBS]))  # type: ignore[operator]
        actions = values.argmax(-1)
        if rows.should_explore:
            explores = rows.rng.random(len(rows)) < value_at(self.settings.epsilon, rows.env_steps)
            if explores.any():
                # The largest of independent uniforms is a uniform draw.
                draws = rows.rng.random(values.shape)
                if rows.masks is not None:
                    draws[rows.masks <= 0] = -1.0
                actions = np.where(explores, draws.argmax(-1), actions)
        return Acted(actions)

    def value(self, rows: Rows) -> np.ndarray:
        """Returns the value of the greedy policy, the highest value of an available action, ``[n]``
        (Watkins and Dayan 1992)."""
        obs, mask = self.seen(rows)
        with torch.inference_mode():
            return masked(self.net.online(obs), mask).amax(-1).cpu().numpy()

    def network(self) -> nn.Module:
        """Returns the module behind `act`, for files: action values, with atoms their means."""
        return self.net.online

    def acting_modules(self) -> Sequence[nn.Module]:
        return [self.net.online]

    def _heads(self) -> tuple[list[DenseLayer], list[DenseLayer], list[DenseLayer]] | None:
        """Returns the layers of the encoder, the advantage head and the state-value head.

        The latter has none without dueling. None: numpy cannot compute the network.
        """
        net = self.net.online
        parts = (net.encoder.layers, net.advantage, net.state_value or nn.Sequential())
        shared, advantage, state_value = map(dense_layers, parts)
        if net.num_atoms > 1 or shared is None or advantage is None or state_value is None:
            return None
        return shared, advantage, state_value

    def acting_in_numpy(self) -> Callable[..., Any] | None:
        if (heads := self._heads()) is None:
            return None
        shared, advantage, state_value = heads

        def values_of(obs: np.ndarray) -> np.ndarray:
            features = forward(shared, obs)
            values = forward(advantage, features)
            if state_value:
                values -= values.mean(-1, keepdims=True)
                values += forward(state_value, features)
            return values

        return values_of

    def acting_layers(self) -> list[DenseLayer] | None:
        """Returns one chain of layers.

        Dueling heads go side by side, and the linear ``Q = V + A - mean(A)`` is part of the last
        layer. The arrays are then no views of the parameters.
        """
        if (heads := self._heads()) is None:
            return None
        shared, advantage, state_value = heads
        if not state_value:
            return [*shared, *advantage]
        chain = [
            _side_by_side(a, v, is_first=i == 0)
            for i, (a, v) in enumerate(zip(advantage, state_value, strict=True))
        ]
        last = chain.pop()
        assert last.bias is not None
        num_actions = advantage[-1].weight.shape[1]
        centred = np.eye(num_actions, dtype=np.float32) - np.float32(1 / num_actions)
        combined = np.concatenate([centred, np.ones((1, num_actions), np.float32)])
        return [*shared, *chain, DenseLayer(last.weight @ combined, last.bias @ combined)]

    # --- learning -----------------------------------------------------------------------

    def update_on(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        learn = self._learn_atoms if self.settings.num_atoms > 1 else self._learn_values
        losses, errors, values, metrics = learn(batch)
        loss = (batch[WEIGHTS] * losses).mean()
        self.update({OPTIMIZER: loss}, [batch])
        self.move_targets()
        return {
            "total_loss": loss.detach(),
            "qf_loss": loss.detach(),
            "qf_mean": values.mean,
            "qf_max": values.max,
            "qf_min": values.min,
            "td_error_mean": errors.mean,
            **metrics,
        }, errors

    def _learn_values(
        self, batch: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Returns losses, absolute TD errors and values, ``[B]`` each, and further metrics."""
        own, net = self.settings, self.net
        obs, _ = split(batch[OBS])
        with torch.no_grad():
            following, mask = split(batch[NEXT_OBS])
            values = net.target(following)
            judged = net.online(following) if own.double_q else values
            best = masked(judged, mask).argmax(-1)
            target = batch[REWARDS] + self.discounts_of(batch) * at(values, best)
        taken = at(net.online(obs), batch[ACTIONS])
        loss_of = functional.huber_loss if own.td_error_loss_fn == "huber" else functional.mse_loss
        losses = loss_of(taken, target, reduction="none")
        return losses, (taken.detach() - target).abs(), taken.detach(), {}

    def _learn_atoms(
        self, batch: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Does the same as `_learn_values`, with the cross-entropy to the target distribution as
        error."""
        own, net = self.settings, self.net
        (obs, _), rows = split(batch[OBS]), torch.arange(len(batch[WEIGHTS]), device=self.device)
        with torch.no_grad():
            following, mask = split(batch[NEXT_OBS])
            probs = net.target.logits(following).softmax(-1)
            judged = net.online(following) if own.double_q else net.target.expected(probs)
            best = masked(judged, mask).argmax(-1)
            atoms = net.online.atoms
            moved = batch[REWARDS].unsqueeze(-1) + self.discounts_of(batch).unsqueeze(-1) * atoms
            target = projected(probs[rows, best], moved, atoms)
        logits = net.online.logits(obs)
        actions = batch[ACTIONS].long()
        losses = functional.cross_entropy(logits[rows, actions], target, reduction="none")
        probs = logits.detach().softmax(-1)
        errors, values = losses.detach(), at(net.online.expected(probs), actions)
        return losses, errors, values, _metrics_of_atoms(probs.mean(0), atoms)

    def reports(self) -> dict[str, float]:
        return {**super().reports(), "epsilon": self.epsilon}


def projected(probs: Tensor, moved: Tensor, atoms: Tensor) -> Tensor:
    """Projects distributions on moved atoms onto the fixed atoms, ``[B, K]``.

    Each probability is divided between the two atoms around its place, more to the nearer one;
    beyond the ends it goes to the last atom. Bellemare et al. 2017, algorithm 1.

    Args:
        probs: probabilities of the moved atoms, ``[B, K]``.
        moved: places of the moved atoms, ``[B, K]``.
        atoms: places of the fixed atoms, ``[K]``, at equal distances.
    """
    last = len(atoms) - 1
    places = ((moved - atoms[0]) / (atoms[1] - atoms[0])).clamp(0, last)
    below = places.floor()
    share = places - below
    found = torch.zeros_like(probs)
    found.scatter_add_(1, below.long(), probs * (1.0 - share))
    found.scatter_add_(1, (below + 1).clamp(max=last).long(), probs * share)
    return found


def _metrics_of_atoms(probs: Tensor, atoms: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Returns RLlib's metrics of the returns' distributions: how actions differ, and the entropy.

    Args:
        probs: probabilities of the atoms of each action, mean over a batch, ``[n, K]``.
        atoms: places of the atoms, ``[K]``.
    """
    return {
        "expectations_abs_diff": lambda: (probs * atoms).sum(1).diff().mean(0).abs(),
        "dist_total_variation_dist": lambda: 0.5 * probs.diff(dim=0).abs().sum(),
        "dist_max_abs_distance": lambda: probs.diff(dim=0).abs().max(),
        "action_dist_mean_entropy": lambda: (probs * probs.log()).sum(1).mean(),
    }


def _side_by_side(one: DenseLayer, other: DenseLayer, *, is_first: bool) -> DenseLayer:
    """Returns a layer that computes two layers side by side.

    Args:
        one: the first layer.
        other: the second layer.
        is_first: whether both read the same input; else each has its own, side by side.
    """
    assert one.bias is not None
    assert other.bias is not None
    if is_first:
        weight = np.concatenate([one.weight, other.weight], axis=1)
    else:
        both = map(torch.from_numpy, (one.weight, other.weight))
        weight = torch.block_diag(*both).numpy()
    return DenseLayer(weight, np.concatenate([one.bias, other.bias]), one.activation)
