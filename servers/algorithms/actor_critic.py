"""Actor-critics that learn from whole batches: the base of PPO, A2C, IMPALA and APPO."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.messages import DenseLayer
from muxrl.protocol.rows import each_array, pick
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB, log_probs_of
from muxrl.servers.algorithms.columns import ADVANTAGES, TARGETS
from muxrl.servers.algorithms.distributions import (
    Categorical,
    Distribution,
    Gaussian,
    distribution_of,
    masked,
)
from muxrl.servers.algorithms.networks import Encoder, dense_layers, head, joined
from muxrl.servers.algorithms.rollout import (
    Padded,
    Rollout,
    advantages_of,
    explained_variance,
    minibatches,
    standardised,
)
from muxrl.servers.algorithms.settings.model import ModelSettings
from muxrl.servers.algorithms.torch_trainer import Asked, TorchTrainer, tensor_of, tensors_of
from muxrl.servers.algorithms.update import Step, value_at
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.interface import Acted, Rows

ACTOR, CRITIC = "actor", "critic"
Parts = Mapping[str, Tensor]
IS_STEP, OWN = "is_step", "own"
STATES = "states"


class ActorCriticNet(nn.Module):
    """An encoder and a head each for the policy and the value.

    Attributes:
        keys: by encoder: keys of the parts of an observation that it reads side by side.

    Args:
        model: settings of the networks.
        shape: of the actor's input.
        distribution: of actions.
        critic_shape: of the critic's input; None: the actor's.
    """

    keys: Mapping[str, tuple[str, ...]] = MappingProxyType({ACTOR: (OBS,), CRITIC: (OBS,)})

    def __init__(
        self,
        model: ModelSettings,
        shape: tuple[int, ...],
        distribution: Distribution,
        critic_shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.actor = Encoder(model, shape)
        self.critic = self.actor if model.vf_share_layers else Encoder(model, critic_shape or shape)
        is_gaussian = isinstance(distribution, Gaussian)
        num_outputs = distribution.num_inputs
        self.log_std: nn.Parameter | None = None
        if is_gaussian and model.free_log_std:
            num_outputs //= 2
            self.log_std = nn.Parameter(torch.zeros(num_outputs))
        self._limit = model.log_std_clip_param if is_gaussian else None
        self.pi = head(model, self.actor.size, num_outputs)
        self.vf = head(model, self.critic.size, 1)
        self.is_shared = model.vf_share_layers
        self.is_recurrent = model.use_lstm

    def inputs(self, features: Tensor) -> Tensor:
        """Returns the inputs of the distribution, ``[..., k]``, from the actor's features."""
        predicted: Tensor = self.pi(features)
        if self._limit is None:
            return predicted
        if self.log_std is not None:
            logs = self.log_std.expand_as(predicted)
        else:
            predicted, logs = predicted.chunk(2, -1)
        return torch.cat([predicted, logs.clamp(-self._limit, self._limit)], -1)

    def values(self, features: Tensor) -> Tensor:
        """Returns values ``[...]`` from the critic's features."""
        return self.vf(features).squeeze(-1)

    def forward(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Returns the distribution's inputs, and values, of observations ``[B, ...]``."""
        features = self.actor(joined(parts, self.keys[ACTOR]))
        if self.is_shared:
            return self.inputs(features), self.values(features)
        return self.inputs(features), self.values(self.critic(joined(parts, self.keys[CRITIC])))

    def unroll(self, parts: Parts, states: Parts) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns the distribution's inputs and values of sequences, and the states after them.

        Args:
            parts: of the observations, ``[B, T, ...]``.
            states: recurrent states before the sequences, ``[B, size]``: ``actor.h`` and
                ``actor.c``, and the critic's if the encoder is not shared.
        """
        features, after = self.unroll_one(ACTOR, parts, states)
        seen = features
        if not self.is_shared:
            seen, of_critic = self.unroll_one(CRITIC, parts, states)
            after |= of_critic
        return self.inputs(features), self.values(seen), after

    def unroll_one(
        self, name: str, parts: Parts, states: Parts
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Unrolls the encoder `name`; returns features ``[B, T, size]``, and the states after."""
        encoder: Any = getattr(self, name)
        before = states[f"{name}.h"], states[f"{name}.c"]
        features, h, c = encoder.unroll(joined(parts, self.keys[name]), *before)
        return features, {f"{name}.h": h, f"{name}.c": c}

    def values_alone(self, parts: Parts, states: Parts | None = None) -> Tensor:
        """Returns only values: of rows ``[B, ...]``, or with `states` of sequences."""
        name = ACTOR if self.is_shared else CRITIC
        if states is not None:
            return self.values(self.unroll_one(name, parts, states)[0])
        encoder: Any = getattr(self, name)
        return self.values(encoder(joined(parts, self.keys[name])))


class ActorCritic(TorchTrainer):
    """Draws actions from a distribution, and values observations.

    Subclasses have the loss; see `learn_batch`.
    """

    scores_name = "logits"
    net: ActorCriticNet

    def make_net(self) -> nn.Module:
        space = self.policy.observation_space
        self.distribution = distribution_of(self.policy.action_space)
        return ActorCriticNet(self.settings.model, space.shape, self.distribution)

    def make_steps(self) -> dict[str, Step]:
        own = self.settings
        groups, clip = {"": list(self.net.parameters())}, own.grad_clip
        eps = getattr(own, "optimizer_epsilon", 1e-8)
        return {"": Step(groups, lambda: own.lr, clip=clip, clip_by=own.grad_clip_by, eps=eps)}

    # --- acting -------------------------------------------------------------------------

    def acting_modules(self) -> Sequence[nn.Module]:
        net = self.net
        if net.is_recurrent:  # learned sequences begin with the critic's state, too
            return [net]
        log_std = [] if net.log_std is None else [nn.ParameterList([net.log_std])]
        return [net.actor, net.pi, *log_std]

    @property
    def critic_weights(self) -> tuple[str, ...]:
        """Prefixes of the names in `weights` that only the critic reads."""
        if [*self.acting_modules()] != [self.net]:
            return ()
        return ("0.vf.",) if self.net.is_shared else ("0.critic.", "0.vf.")

    def acting_layers(self) -> list[DenseLayer] | None:
        net, is_gaussian = self.net, isinstance(self.distribution, Gaussian)
        if net.is_recurrent or is_gaussian:
            return None
        return dense_layers(net.actor.layers, net.pi)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Returns the initial recurrent state of a row; {} without an LSTM."""
        if not self.net.is_recurrent:
            return {}
        size = np.zeros(self.settings.model.lstm_cell_size, np.float32)
        names = (ACTOR,) if self.net.is_shared else (ACTOR, CRITIC)
        return {f"{name}.{part}": size for name in names for part in "hc"}

    def act(self, rows: Rows) -> Acted:
        inputs, before, after = self._inputs(rows)
        one = self.distribution
        actions = one.draw(inputs, rows.rng) if rows.should_explore else one.best(inputs)
        outputs: dict[str, Any] = {DISTRIBUTION: inputs}
        if rows.is_training:  # not read in evaluations
            outputs[LOG_PROB] = one.log_prob(inputs, actions)
            if before:
                outputs[STATES] = before
        return Acted(actions, outputs, after)

    def _inputs(self, rows: Rows) -> tuple[np.ndarray, Any, Any]:
        """Returns the distribution's inputs, and the recurrent states before and after."""
        if not self.net.is_recurrent:
            return self.asked_of_net(rows, _inputs_of), None, None
        before: Any = rows.states
        after: dict[str, np.ndarray] = dict(before)
        has_critic = not self.net.is_shared and self.carries_critic(rows)

        def ask(net: Any, seen: dict[str, Tensor]) -> Tensor:
            states = {k: tensor_of(v).to(seen[OBS].device) for k, v in before.items()}
            sequences = each_array(lambda part: part.unsqueeze(1), seen)
            features, left = net.unroll_one(ACTOR, sequences, states)
            if has_critic:
                left |= net.unroll_one(CRITIC, sequences, states)[1]
            after.update({key: one.cpu().numpy() for key, one in left.items()})
            return net.inputs(features.squeeze(1))

        return self.asked_of_net(rows, ask), before, after

    def carries_critic(self, rows: Rows) -> bool:
        """Whether the critic's recurrent state is updated, too, when acting on these rows."""
        return True

    def probabilities(self, rows: Rows) -> np.ndarray:
        """Returns the probabilities of all actions of a Discrete space, ``[n, num_actions]``."""
        assert isinstance(self.distribution, Categorical)
        return np.exp(log_probs_of(self._inputs(rows)[0].astype(np.float64)))

    def value(self, rows: Rows) -> np.ndarray:
        """Returns the expected return from each row on, ``[n]``."""
        with torch.inference_mode():
            parts: Any = tensors_of(rows.parts)
            if not self.net.is_recurrent:
                return self.net.values_alone(parts).numpy()
            states: Any = tensors_of(rows.states)
            sequences: Any = each_array(lambda part: part.unsqueeze(1), parts)
            return self.net.values_alone(sequences, states).squeeze(1).numpy()

    def network(self) -> nn.Module:
        """Returns the module behind `act`, for files."""
        return Asked(self.net, _acting)

    @property
    def greedy(self) -> Callable[[Tensor], Tensor] | None:
        """Turns the network's output into the actions of a Box; None for discrete actions."""
        return _means if isinstance(self.distribution, Gaussian) else None

    # --- learning -----------------------------------------------------------------------

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        rollout = self.begin_batch(trajectories)
        return self.reported(self.learn_batch(rollout), rollout)

    def begin_batch(self, trajectories: Sequence[Trajectory]) -> Rollout:
        """Prepares the trainer for an update, and returns the batch."""
        self.begin_learning()
        self.net.train()
        return Rollout.of(trajectories)

    def reported(self, metrics: Mapping[str, Any], rollout: Rollout) -> dict[str, float]:
        """Returns an update's metrics, and those that all actor-critics have."""
        step = self.steps[""]
        norms = {
            f"gradients_{name or 'default_optimizer'}_global_norm": norm
            for name, norm in step.norms.items()
        }
        return {name: float(number) for name, number in metrics.items()} | {
            "default_optimizer_learning_rate": step.lr,
            **norms,
            "curr_entropy_coeff": self.entropy_coeff,
            "num_module_steps_trained": len(rollout.rewards),
        }

    @abstractmethod
    def learn_batch(self, rollout: Rollout) -> Mapping[str, Any]:
        """Learns from a batch; returns the metrics of its last update."""

    @property
    def entropy_coeff(self) -> float:
        """Current weight of the entropy."""
        return value_at(self.settings.entropy_coeff, self.env_steps)

    def predicted(
        self, batch: Mapping[str, Any], net: ActorCriticNet | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the distribution's inputs, masked, and values, of rows or of sequences.

        Args:
            batch: columns; of sequences ``[S, L, ...]`` with states.
            net: the network to use; None: the one that is learned.
        """
        net = net or self.net
        if net.is_recurrent:
            inputs, values, _ = net.unroll(batch, batch[STATES])
        else:
            inputs, values = net(batch)
        return masked(inputs, batch.get(ACTION_MASK)), values

    def values_of(self, rollout: Rollout) -> np.ndarray:
        """Returns values of all observations, with each piece's last, ``[sum(lengths + 1)]``."""
        parts = self.on_device(rollout.parts)
        with torch.no_grad():
            if not self.net.is_recurrent:
                return self.net.values_alone(parts).cpu().numpy()
            padded = Padded.of(rollout.lengths, self.settings.model.max_seq_len, has_last=True)
            states = self._states_at(rollout, padded, has_last=True)
            rows = torch.from_numpy(padded.rows)
            sequences: Any = each_array(lambda part: part[rows], parts)
            values = self.net.values_alone(sequences, states).cpu().numpy()
            return values[padded.is_step]

    def _states_at(self, rollout: Rollout, padded: Padded, *, has_last: bool) -> dict[str, Tensor]:
        """Returns the recorded recurrent states at the beginnings of the sequences."""
        begins = padded.begins
        if has_last:  # every earlier piece has one more observation than actions
            fragment = np.searchsorted(np.cumsum(rollout.lengths + 1), begins, "right")
            begins = begins - fragment
        recorded = rollout.outputs[STATES]
        return self.on_device({key: one[begins] for key, one in recorded.items()})

    def columns_of(self, rollout: Rollout, **more: np.ndarray) -> dict[str, Any]:
        """Returns the columns of a batch: rows, or sequences with `IS_STEP`, False at padding.

        Args:
            rollout: the batch.
            more: further columns of the transitions.
        """
        columns = self.on_device({**rollout.columns(), **more, OWN: rollout.is_own})
        if not self.net.is_recurrent:
            return columns
        padded = Padded.of(rollout.lengths, self.settings.model.max_seq_len)
        rows = torch.from_numpy(padded.rows).to(self.device)
        columns = {key: one[rows] for key, one in columns.items()}
        columns[IS_STEP] = torch.from_numpy(padded.is_step).to(self.device)
        columns[STATES] = self._states_at(rollout, padded, has_last=False)
        return columns


def steps_of(batch: Mapping[str, Any], *of_steps: Tensor) -> list[Tensor]:
    """Returns columns of steps, ``[B]`` or ``[S, L]`` each, without the padding: ``[N]``."""
    if IS_STEP not in batch:
        return list(of_steps)
    return [one[batch[IS_STEP]] for one in of_steps]


def mean_of_own(batch: Mapping[str, Any], of_steps: Tensor) -> Tensor:
    """Returns the mean over the steps whose actions the policy itself chose; 0 without any."""
    values, is_own = steps_of(batch, of_steps.detach(), batch[OWN])
    return values.masked_fill(~is_own, 0.0).sum() / is_own.sum().clamp(min=1)


class OnPolicy(ActorCritic):
    """Estimates advantages once for each batch, and updates the policy that has played it."""

    should_standardize = True
    """Whether advantages are standardised, if no setting says."""

    def learn_batch(self, rollout: Rollout) -> Mapping[str, Any]:
        return self.learn_columns(self.batch_of(rollout), rollout)

    def learn_columns(
        self, columns: Mapping[str, Any], rollout: Rollout, part: tuple[int, int] = (0, 1)
    ) -> Mapping[str, Any]:
        """Makes the updates of a batch; returns the metrics of the last one.

        Args:
            columns: from `batch_of`.
            rollout: the batch.
            part: index of this policy's share in the update, and the number of shares, for
                `note_progress`.
        """
        own, num = self.settings, len(columns[ADVANTAGES])
        rng = self.rng if getattr(own, "shuffle_batch_per_epoch", False) else None
        size, epochs = getattr(own, "minibatch_size", None), getattr(own, "num_epochs", 1)
        every = list(minibatches(num, len(rollout.rewards), size, epochs, rng))
        metrics: Mapping[str, Any] = {}
        for i, rows in enumerate(every, start=1):
            self.note_progress((part[0] + i / len(every)) / part[1])
            batch = columns if isinstance(rows, slice) else pick(columns, torch.from_numpy(rows))
            loss, metrics = self.loss(batch, is_reported=i == len(every))
            self.update({"": loss}, rollout.trajectories)
        return metrics

    def estimates_of(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
        """Returns each step's GAE advantage, and the TD(lambda) target of its value."""
        own, values = self.settings, self.values_of(rollout)
        advantages = advantages_of(values, rollout, gamma=own.gamma, lambda_=own.lambda_)
        return advantages, advantages + values[rollout.before]

    def batch_of(self, rollout: Rollout) -> dict[str, Any]:
        """Returns the columns of a batch, with advantages and value targets."""
        advantages, targets = self.estimates_of(rollout)
        if getattr(self.settings, "standardize_advantages", self.should_standardize):
            advantages = standardised(advantages, rollout.is_own)
        return self.columns_of(rollout, **{ADVANTAGES: advantages, TARGETS: targets})

    @abstractmethod
    def loss(self, batch: Mapping[str, Any], *, is_reported: bool) -> tuple[Tensor, dict[str, Any]]:
        """Returns the loss of a minibatch, and its metrics; needed only if `is_reported`."""

    def measured(
        self, targets: Tensor, values: Tensor, loss: Tensor, *parts: Tensor
    ) -> dict[str, Any]:
        """Returns the metrics that all losses have.

        Args:
            targets: of the values of all steps.
            values: of all steps.
            loss: the whole loss.
            parts: the policy's loss, the values' loss, and the entropy.
        """
        names = ("total_loss", "policy_loss", "vf_loss", "entropy")
        found = {n: one.detach() for n, one in zip(names, (loss, *parts), strict=True)}
        return {**found, "vf_explained_var": explained_variance(targets, values.detach())}


def _acting(net: ActorCriticNet, *given: Any) -> Any:
    """Returns the distribution's inputs, and with a recurrent state also the next one.

    Args:
        net: the network.
        given: the parts that the actor reads, and the recurrent state, if there is one.
    """
    keys = net.keys[ACTOR]
    parts = dict(zip(keys, given, strict=False))
    if len(given) == len(keys):
        return _inputs_of(net, parts)
    sequences = {key: part.unsqueeze(1) for key, part in parts.items()}
    features, after = net.unroll_one(ACTOR, sequences, given[-1])
    return net.inputs(features.squeeze(1)), after


def _means(inputs: Tensor) -> Tensor:
    return inputs.chunk(2, -1)[0]


def _inputs_of(net: Any, parts: Parts) -> Tensor:
    return net.inputs(net.actor(joined(parts, net.keys[ACTOR])))
