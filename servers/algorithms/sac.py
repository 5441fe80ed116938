"""SAC: actor-critic that maximises entropy, too; Haarnoja et al. 2018 (arXiv 1812.05905).

For Discrete actions as in Christodoulou 2019 (arXiv 1910.07207), with expectations as sums over all
actions instead of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from muxrl.protocol.messages import DenseLayer, PolicyNetwork
from muxrl.servers.agents.keys import OBS
from muxrl.servers.agents.log_probs import log_probs_of
from muxrl.servers.algorithms.columns import ACTIONS, NEXT_OBS, REWARDS
from muxrl.servers.algorithms.distributions import (
    Categorical,
    clipped,
    masked,
    squashed,
    squashed_actions,
)
from muxrl.servers.algorithms.networks import (
    Encoder,
    dense_layers,
    head,
    initialize,
)
from muxrl.servers.algorithms.off_policy import OffPolicy, at, split
from muxrl.servers.algorithms.replay.replay import WEIGHTS
from muxrl.servers.algorithms.settings.model import activation_of
from muxrl.servers.algorithms.settings.off_policy import SACModelSettings, SACSettings
from muxrl.servers.algorithms.temperature import ALPHA, Temperature
from muxrl.servers.algorithms.torch_trainer import Asked
from muxrl.servers.algorithms.update import Points, Step, Targets
from muxrl.servers.trainers.interface import Acted, Rows

POLICY = "policy"
CRITICS = ("qf", "qf_twin")

SHARE = 0.3
"""Target entropy for Discrete actions, as a share of the highest entropy, ``log n``. A policy that
takes one of n = 5 actions nine times out of ten, and the others with equal probabilities, has 0.29
of it, with n = 2 actions 0.47, with n = 18 0.21.
"""
_EPS = 1e-7
"""Adam's epsilon, as in RLlib."""


class Critic(nn.Module):
    """Values actions of a Box: encoders of observations and actions, and a net that fuses them.

    Each layer of the fusion net reads both encodings, and the output of the layer before. The
    action's encoder has layers of the same sizes as the observation's, without its initializers and
    its normalisation.
    """

    def __init__(self, model: SACModelSettings, shape: tuple[int, ...], num_inputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(model, shape)
        size = self.encoder.size
        activation = activation_of(model.fcnet_activation) or nn.Identity
        layers: list[nn.Module] = []
        for num in (*model.fcnet_hiddens[:-1], size):
            layers += [nn.Linear(num_inputs, num), activation()]
            num_inputs = num
        self.of_action = nn.Sequential(*layers)
        self.fused, num_before = nn.ModuleList(), 0
        for num in (*model.fusionnet_hiddens, size):
            layer = nn.Linear(num_before + 2 * size, num)
            initialize(layer, model, "fusionnet")
            self.fused.append(layer)
            num_before = num
        self.activation = (activation_of(model.fusionnet_activation) or nn.Identity)()
        self.head = head(model, size, 1)

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        """Returns values ``[B]`` of actions ``[B, k]``, with features from `encoder`."""
        encoded = torch.cat([self.of_action(actions), features], -1)
        x = self.activation(self.fused[0](encoded))
        for layer in self.fused[1:]:
            x = self.activation(layer(torch.cat([x, encoded], -1)))
        return self.head(x).squeeze(-1)


class SACNet(nn.Module):
    """A policy, one or two critics, and the critics' targets.

    Args:
        own: the settings.
        shape: of an observation.
        num_actions: of a Discrete space; a critic then returns a value for each. 0 for a Box.
        num_numbers: dimensions of a Box; 0 for a Discrete space.
    """

    def __init__(
        self, own: SACSettings, shape: tuple[int, ...], num_actions: int, num_numbers: int
    ) -> None:
        super().__init__()
        model = own.model
        self.actor = Encoder(model, shape)
        self.pi = head(model, self.actor.size, num_actions or 2 * num_numbers)

        def critics() -> nn.ModuleList:
            num = len(CRITICS) if own.twin_q else 1
            if num_numbers:
                return nn.ModuleList([Critic(model, shape, num_numbers) for _ in range(num)])
            encoders = [Encoder(model, shape) for _ in range(num)]
            return nn.ModuleList(
                [nn.Sequential(one, head(model, one.size, num_actions)) for one in encoders]
            )

        self.critics, self.targets = critics(), critics()
        self.is_continuous = bool(num_numbers)

    def inputs(self, obs: Tensor) -> Tensor:
        """Returns logits ``[B, n]``, or means and log-deviations ``[B, 2 k]``."""
        inputs: Tensor = self.pi(self.actor(obs))
        return clipped(inputs) if self.is_continuous else inputs


_Found = tuple[Tensor, Tensor, list[Tensor], Tensor, dict[str, Any]]
"""For a batch: the policy's loss; the log-probabilities of actions, or their expectations, ``[B]``,
by which the temperature is adapted; each critic's values of the actions taken, ``[B]``; the target
of these values; and further metrics."""


class SAC(OffPolicy):
    """soft actor-critic, continuous or discrete (Haarnoja et al. 2018)

    ::

        critics        huber(Q(s, a) - r - gamma**k (1 - terminated) V(s'))
        policy         E alpha log pi(a|s) - min Q(s, a)
        temperature    - log alpha (E log pi(a|s) + target entropy)

    where ``V(s') = E min Q_target(s', a') - alpha log pi(a'|s')``, and each loss has a gradient by
    its own parameters alone. An unavailable action has probability 0, so its value has no part in
    any of them.
    """

    scores_name = "logits"
    Settings = SACSettings
    saved = {**OffPolicy.saved, ALPHA: "temperature"}
    settings: SACSettings
    net: SACNet

    def make_net(self) -> nn.Module:
        space, shape = self.policy.action_space, self.policy.observation_space.shape
        if isinstance(space, gymnasium.spaces.Discrete):
            return SACNet(self.settings, shape, int(space.n), 0)
        return SACNet(self.settings, shape, 0, math.prod(space.shape or ()))

    def make_targets(self) -> Targets:
        return Targets((self.net.critics, self.net.targets))

    def make_steps(self) -> dict[str, Step]:
        own, net = self.settings, self.net
        self.temperature = Temperature(own.initial_alpha, self.device)
        learned: dict[str, tuple[list[nn.Parameter], Callable[[], Points]]] = {
            POLICY: ([*net.actor.parameters(), *net.pi.parameters()], lambda: own.actor_lr),
            ALPHA: ([self.temperature.log], lambda: own.alpha_lr),
        }
        for name, critic in zip(CRITICS, net.critics, strict=False):
            learned[name] = [*critic.parameters()], lambda: own.critic_lr
        return {
            name: Step({"": params}, lr, clip=own.grad_clip, clip_by=own.grad_clip_by, eps=_EPS)
            for name, (params, lr) in learned.items()
        }

    # --- acting -------------------------------------------------------------------------

    def acting_modules(self) -> Sequence[nn.Module]:
        return [self.net.actor, self.net.pi]

    def acting_layers(self) -> list[DenseLayer] | None:
        return dense_layers(self.net.actor.layers, self.net.pi)

    def acting_network(self) -> PolicyNetwork | None:
        return None if self.net.is_continuous else super().acting_network()

    def act(self, rows: Rows) -> Acted:
        predicted, rng = self._predicted(rows), rows.rng if rows.should_explore else None
        if self.net.is_continuous:
            return Acted(squashed_actions(predicted, rng))
        one = Categorical(predicted.shape[-1])
        return Acted(one.best(predicted) if rng is None else one.draw(predicted, rng))

    def _predicted(self, rows: Rows) -> np.ndarray:
        return self.asked_of_net(rows, lambda net, seen: net.pi(net.actor(seen[OBS])))  # type: ignore[operator]

    def probabilities(self, rows: Rows) -> np.ndarray:
        """Returns the probabilities of all actions of a Discrete space, ``[n, num_actions]``."""
        return np.exp(log_probs_of(self._predicted(rows).astype(np.float64)))

    def value(self, rows: Rows) -> np.ndarray | None:
        """Returns the policy's value by its critics, ``[n]``: ``sum over a of pi(a) Q(a)``.

        This is Christodoulou's equation 10 without the entropy of the action itself. None for a
        Box, for which it would have to be sampled.
        """
        if self.net.is_continuous:
            return None
        obs, mask = self.seen(rows)
        with torch.inference_mode():
            probs = masked(self.net.inputs(obs), mask).softmax(-1)
            worth = _lowest([critic(obs) for critic in self.net.critics])
            return (probs * worth).sum(-1).cpu().numpy()

    def network(self) -> nn.Module:
        """Returns the module behind `act`, for files; for a Box its output is before ``tanh``."""
        return Asked(self.net, SACNet.inputs)

    @property
    def greedy(self) -> Callable[[Tensor], Tensor] | None:
        """Turns the network's output into the actions of a Box; None for Discrete actions."""
        return _likeliest if self.net.is_continuous else None

    # --- learning -----------------------------------------------------------------------

    def update_on(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        learn = self._learn_box if self.net.is_continuous else self._learn_discrete
        policy_loss, log_probs, values, target, metrics = learn(batch)
        alpha, target_entropy = self.temperature.alpha, self._target_entropy(split(batch[OBS])[1])
        surplus = log_probs.detach() + target_entropy
        losses = {POLICY: policy_loss, ALPHA: self.temperature.loss(surplus)}
        for name, of_one in zip(CRITICS, values, strict=False):
            errors = functional.huber_loss(of_one, target, reduction="none")
            losses[name] = (batch[WEIGHTS] * errors).mean()
        self.update(losses, [batch])
        self.move_targets()
        with torch.no_grad():
            errors = torch.stack([(one - target).abs() for one in values]).mean(0)
        return {
            **{f"{name}_loss": loss.detach() for name, loss in losses.items()},
            "total_loss": lambda: torch.stack([*losses.values()]).detach().sum(),
            "alpha_value": alpha,
            "log_alpha_value": alpha.log,
            "target_entropy": target_entropy,
            "td_error_mean": errors.mean,
            **metrics,
        }, errors

    def _learn_box(self, batch: Mapping[str, Any]) -> _Found:
        net: Any = self.net
        alpha = self.temperature.alpha
        (obs, _), (following, _) = split(batch[OBS]), split(batch[NEXT_OBS])
        actions = batch[ACTIONS]
        noise = self.rng.standard_normal((2, *actions.shape), np.float32)
        now, then = torch.from_numpy(noise).to(self.device)
        with torch.no_grad():
            drawn, log_probs = squashed(net.inputs(following), then)
            worth = _lowest([one(one.encoder(following), drawn) for one in net.targets])
            value = worth - alpha * log_probs
            target = batch[REWARDS] + self.discounts_of(batch) * value
        drawn, log_probs = squashed(net.inputs(obs), now)
        both = [(one, one.encoder(obs)) for one in net.critics]
        # The policy's loss has no gradient through the critics' encoders of observations.
        worth = _lowest([one(seen.detach(), drawn) for one, seen in both])
        loss = (alpha * log_probs - worth).mean()
        values = [one(seen, actions) for one, seen in both]
        return loss, log_probs, values, target, _about(worth.detach(), log_probs.detach())

    def _learn_discrete(self, batch: Mapping[str, Any]) -> _Found:
        net, alpha = self.net, self.temperature.alpha
        (obs, mask), (following, next_mask) = split(batch[OBS]), split(batch[NEXT_OBS])
        with torch.no_grad():
            probs, log_probs = _policy(net.inputs(following), next_mask)
            worth = _lowest([one(following) for one in net.targets])
            value = (probs * (worth - alpha * log_probs)).sum(-1)
            target = batch[REWARDS] + self.discounts_of(batch) * value
        probs, log_probs = _policy(net.inputs(obs), mask)
        of_actions = [one(obs) for one in net.critics]
        worth = _lowest(of_actions).detach()
        loss = (probs * (alpha * log_probs - worth)).sum(-1).mean()
        values = [at(one, batch[ACTIONS]) for one in of_actions]
        about = _about(of_actions[0].detach(), log_probs.detach())
        return loss, (probs * log_probs).sum(-1), values, target, about

    def _target_entropy(self, mask: Tensor | None) -> Tensor | float:
        """Returns the target entropy of the temperature.

        RLlib's rule, minus the number of action dimensions, is meant for densities: for Discrete
        actions it is -1, while their entropy is never below 0, so that the temperature would fall
        for ever. For these, `auto` is `SHARE` of the entropy of the uniform policy over the
        available actions, averaged over a batch; Christodoulou takes a share of 0.98, for which a
        policy has to be almost uniform.
        """
        wanted, space = self.settings.target_entropy, self.policy.action_space
        if wanted is None or (wanted == "auto" and self.net.is_continuous):
            return -float(math.prod(space.shape or ()))
        if wanted != "auto":
            return float(wanted)
        if mask is None:
            return SHARE * math.log(space.n)  # type: ignore[attr-defined]
        return SHARE * (mask > 0).sum(-1).clamp(min=1).float().log().mean()


def _lowest(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.min(*values)


def _policy(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns probabilities and log-probabilities, ``[B, n]`` each; both 0 where unavailable.

    Real log-probabilities of unavailable actions would overflow for alpha above 1, and 0 times
    infinity is NaN.
    """
    log_probs = masked(logits, mask).log_softmax(-1)
    probs = log_probs.exp()
    return probs, log_probs if mask is None else torch.where(mask > 0, log_probs, 0.0)


def _about(values: Tensor, log_probs: Tensor) -> dict[str, Any]:
    return {
        "logps": log_probs.mean,
        "qf_mean": values.mean,
        "qf_max": values.max,
        "qf_min": values.min,
    }


def _likeliest(inputs: Tensor) -> Tensor:
    return inputs.chunk(2, -1)[0].tanh()
