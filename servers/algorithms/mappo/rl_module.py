"""MAPPO's networks: an actor that sees its own observation, a critic that sees the state.

An agent's observation is a Dict:

===============  ==================  ===============================================================
key              shape, dtype        meaning
===============  ==================  ===============================================================
``obs``          ``[obs]`` float32   the agent's own observation, all that it acts on
``state``        ``[state]`` float32 what the critic may see while training: the global state
``agent_id``     ``[n]`` float32     optional: which of n agents it is, one-hot
``alive``        ``[1]`` float32     optional: 0 = it does not act at this step (death masking)
``action_mask``  ``[k]`` float32     optional: 1 = the action is available
===============  ==================  ===============================================================

With ``use_lstm`` both networks are recurrent (rMAPPO). As in the paper's code, the critic's state
is recorded beside the actor's at every step, so that a learner begins a sequence with what the
critic remembered there. Copies that act for a learner therefore have the critic, too.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ACTOR, CRITIC, ENCODER_OUT
from ray.rllib.core.models.catalog import Catalog
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.rllib.action_masks import check_maskable, mask_logits
from muxrl.servers.rllib.numpy_mlp import is_pi_of_encoder

_SERVES_LEARNER = "serves_learner"
"""In ``model_config``: False in copies that act for no learner, which need no critic's state."""
_SMALLEST_STD = 1e-4
"""Of returns; avoids a division by 0 while all of them have been equal."""


class MAPPOTorchRLModule(TorchRLModule, InferenceOnlyAPI, ValueFunctionAPI):
    """Actor and critic of one policy; ``AGENT_ID`` tells agents that share it apart.

    ``model_config`` keys: RLlib's `DefaultModelConfig`, and ``agent_specific_state``,
    ``obs_agent_id``, ``normalize_values`` of `MAPPOConfig`. The inference-only copy has no critic,
    unless it has to record a recurrent one's state.

    Recurrent modules read sequences, ``[B, T, ...]``, and ``STATE_IN``, ``{"actor": {"h", "c"},
    "critic": {"h", "c"}}`` of ``[B, 1, lstm_cell_size]`` each. A step at which the agent is not
    ``ALIVE`` leaves the actor's state as it is: the agent has not seen anything. The critic's
    goes on, since the team has.
    """

    def setup(self) -> None:
        config = self.model_config
        assert isinstance(config, dict)
        sizes = _sizes(self.observation_space)
        if ACTION_MASK in sizes:
            check_maskable(self.action_space)
        self.actor_keys: tuple[str, ...] = (OBS,)
        if config["obs_agent_id"] and AGENT_ID in sizes:
            self.actor_keys += (AGENT_ID,)
        self.critic_keys: tuple[str, ...] = (STATE,)
        if config["agent_specific_state"]:
            self.critic_keys += tuple(key for key in (AGENT_ID, OBS) if key in sizes)
        self.acting_keys = self.actor_keys + ((ACTION_MASK,) if ACTION_MASK in sizes else ())
        # Always two networks, whatever vf_share_layers says: they read different inputs.
        config = {**config, "vf_share_layers": False}
        seen = spaces.Box(-float("inf"), float("inf"), (sum(sizes[k] for k in self.actor_keys),))
        catalog = PPOCatalog(seen, self.action_space, config)
        self.action_dist_cls = catalog.get_action_dist_cls("torch")
        self.encoder = Catalog(seen, self.action_space, config).build_encoder("torch")
        self.pi = catalog.build_pi_head("torch")
        self._is_recurrent = bool(config.get("use_lstm"))
        records_values = self._is_recurrent and config.get(_SERVES_LEARNER, True)
        self._has_critic = records_values or not self.inference_only
        if self._has_critic:
            self.critic = Critic(
                sum(sizes[key] for key in self.critic_keys),
                self.action_space,
                config,
                config["normalize_values"],
            )
        if self._is_recurrent:
            recorded_keys = self.critic_keys if records_values else ()
            remembering_keys = (*((ALIVE,) if ALIVE in sizes else ()), *recorded_keys)
            self.acting_keys = tuple(dict.fromkeys(self.acting_keys + remembering_keys))

    def get_non_inference_attributes(self) -> list[str]:
        return [] if self._is_recurrent else ["critic"]

    @property
    def frozen_model_config(self) -> dict[str, Any]:
        """The ``model_config`` of a copy that acts for no learner: it has no critic at all."""
        return {**self.model_config, _SERVES_LEARNER: False}

    def get_initial_state(self) -> dict[str, Any]:
        """Zeros in the form of ``STATE_IN`` without its first dimension; {} if not recurrent."""
        if not self._is_recurrent:
            return {}
        state = {ACTOR: self.encoder.get_initial_state()}
        if self._has_critic:
            state[CRITIC] = self.critic.encoder.get_initial_state()
        return state

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Values ``[B]``, or ``[B, T]``, in the units of rewards; `embeddings` are not used."""
        return self.critic.values(*self._critic_input(batch))

    def normalized_values(self, batch: dict[str, Any]) -> Tensor:
        """Values ``[B]``, or ``[B, T]``, in the units in which the critic learns."""
        values: Tensor = self.critic(*self._critic_input(batch))
        return values

    @is_pi_of_encoder
    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        seen = _joined(batch[Columns.OBS], self.actor_keys)
        if not self._is_recurrent:
            return self._decide(self.encoder({Columns.OBS: seen})[ENCODER_OUT], batch)
        alive, state = batch[Columns.OBS].get(ALIVE), batch[Columns.STATE_IN]
        features, after = advance(self.encoder, seen, state[ACTOR], alive)
        outputs = self._decide(features, batch)
        outputs[Columns.STATE_OUT] = {ACTOR: after}
        if self._has_critic:
            outputs[Columns.STATE_OUT][CRITIC] = self.critic.advance(*self._critic_input(batch))
        return outputs

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """As `_forward`, without ``STATE_OUT``; what it gives for absent agents means nothing."""
        if not self._is_recurrent:
            return self._forward(batch, **kwargs)
        obs = batch[Columns.OBS]
        seen, state = _joined(obs, self.actor_keys), batch[Columns.STATE_IN][ACTOR]
        return self._decide(encode(self.encoder, seen, state, obs.get(ALIVE)), batch)

    def _decide(self, features: Tensor, batch: dict[str, Any]) -> dict[str, Any]:
        logits = self.pi(features)
        if ACTION_MASK in self.acting_keys:
            logits = mask_logits(logits, batch[Columns.OBS][ACTION_MASK])
        return {Columns.ACTION_DIST_INPUTS: logits}

    def _critic_input(self, batch: dict[str, Any]) -> tuple[Tensor, Any]:
        """Returns what the critic reads, and its recurrent state, None if it has none."""
        state = batch[Columns.STATE_IN][CRITIC] if self._is_recurrent else None
        return _joined(batch[Columns.OBS], self.critic_keys), state


def _joined(obs: dict[str, Tensor], keys: tuple[str, ...]) -> Tensor:
    return obs[keys[0]] if len(keys) == 1 else torch.cat([obs[key] for key in keys], -1)


def _sizes(space: spaces.Space | None) -> dict[str, int]:
    """Returns the length of each part of an agent's observation."""
    optional = {AGENT_ID, ALIVE, ACTION_MASK}
    if isinstance(space, spaces.Dict):
        parts = space.spaces
        is_complete = {OBS, STATE} <= parts.keys() <= {OBS, STATE, *optional}
        if is_complete and all(isinstance(p, spaces.Box) and len(p.shape) == 1 for p in
                               parts.values()):  # fmt: skip
            return {key: int(part.shape[0]) for key, part in parts.items()}  # type: ignore[index]
    raise ValueError(
        f"MAPPO needs a Dict observation of one-dimensional Boxes 'obs' (what the agent sees) and "
        f"'state' (what the critic sees), beside them at most {sorted(optional)}; it got {space}"
    )


class ValueNormalizer(nn.Module):
    """The running mean and standard deviation of all returns seen so far.

    Yu et al. 2022, "value normalization". All returns count alike; the paper's own code, with its
    decay of 0.99999 an update, comes to the same. The three numbers are buffers, so that every
    checkpoint of the module has them.
    """

    count: Tensor
    mean: Tensor
    sum_of_squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("sum_of_squares", torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """The standard deviation, 1 before the first return."""
        if self.count == 0:
            return torch.ones_like(self.mean)
        return (self.sum_of_squares / self.count).sqrt().clamp(min=_SMALLEST_STD)

    def update(self, returns: Tensor) -> None:
        """Adds returns ``[N]`` to the statistics (Chan et al. 1983, parallel variance)."""
        if returns.numel() == 0:
            return
        returns = returns.double()
        num, mean = returns.numel(), returns.mean()
        total = self.count + num
        delta = mean - self.mean
        self.sum_of_squares += (returns - mean).square().sum()
        self.sum_of_squares += delta.square() * self.count * num / total
        self.mean += delta * num / total
        self.count.copy_(total)

    def normalize(self, returns: Tensor) -> Tensor:
        """Scales returns to mean 0 and deviation 1, float32 of the same shape."""
        return ((returns - self.mean) / self.std).float()

    def denormalize(self, values: Tensor) -> Tensor:
        """The inverse of `normalize`, float32 of the same shape."""
        return (values * self.std + self.mean).float()


class Critic(nn.Module):
    """``V``, a network like the actor's: an MLP, with ``use_lstm`` an LSTM behind it.

    Args:
        input_dim: length of what it reads.
        action_space: RLlib's catalog needs it.
        model_config: fields of RLlib's `DefaultModelConfig`.
        should_normalize: whether its output is in units of a `ValueNormalizer`.
    """

    def __init__(
        self,
        input_dim: int,
        action_space: spaces.Space,
        model_config: dict[str, Any],
        should_normalize: bool,
    ) -> None:
        super().__init__()
        space = spaces.Box(-float("inf"), float("inf"), (input_dim,))
        self.encoder = Catalog(space, action_space, model_config).build_encoder("torch")
        self.head = PPOCatalog(space, action_space, model_config).build_vf_head("torch")
        self.normalizer = ValueNormalizer() if should_normalize else None

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        """Normalised values ``[B]`` of inputs ``[B, input_dim]``.

        A recurrent critic takes sequences ``[B, T, input_dim]`` and the state before them, and
        returns ``[B, T]``.
        """
        values: Tensor = self.head(self.encoder(inputs_of(x, state))[ENCODER_OUT]).squeeze(-1)
        return values

    def values(self, x: Tensor, state: Any = None) -> Tensor:
        """As `forward`, in the units of rewards."""
        values: Tensor = self(x, state)
        return values if self.normalizer is None else self.normalizer.denormalize(values)

    def advance(self, x: Tensor, state: Any) -> Any:
        """Returns the recurrent state after inputs ``[B, T, input_dim]``."""
        return self.encoder(inputs_of(x, state))[Columns.STATE_OUT]

    def normalize(self, returns: Tensor) -> Tensor:
        """Returns in the units of `forward`."""
        return returns if self.normalizer is None else self.normalizer.normalize(returns)

    @torch.no_grad()
    def learn_units(self, returns: Tensor) -> None:
        """Adds returns ``[N]`` to the statistics without changing `values`.

        The last layer is rescaled to cancel the change of units: PopArt, van Hasselt et al. 2016
        (arXiv 1602.07714), equations 3 and 4. The first returns are an exception: before them
        there is nothing to preserve.
        """
        if self.normalizer is None:
            return
        is_first = bool(self.normalizer.count == 0)
        old_mean, old_std = self.normalizer.mean.clone(), self.normalizer.std.clone()
        self.normalizer.update(returns)
        if is_first:
            return
        mean, std = self.normalizer.mean, self.normalizer.std
        last = [layer for layer in self.head.modules() if isinstance(layer, nn.Linear)][-1]
        last.weight.mul_((old_std / std).float())
        last.bias.copy_((old_std * last.bias + old_mean - mean) / std)


# --- recurrent encoders over sequences in which an agent may be absent ----------------------
#
# A step at which the agent is absent leaves the encoder's state as it is, as if the agent had not
# been recorded there: PPO's agents, which are recorded only where they act, remember likewise. An
# encoder takes ``{"obs": [B, T, n], "state_in": {"h", "c"}}``, states of ``[B, layers, cells]``.


def inputs_of(x: Tensor, state: Any) -> dict[str, Any]:
    """Returns an encoder's inputs; `state` is None for one that has none."""
    return {Columns.OBS: x} if state is None else {Columns.OBS: x, Columns.STATE_IN: state}


def advance(encoder: Any, x: Tensor, state: Any, alive: Tensor | None) -> tuple[Tensor, Any]:
    """Goes over sequences step by step, as acting does.

    Args:
        encoder: RLlib's.
        x: ``[B, T, n]``.
        state: before the first step.
        alive: ``[B, T, 1]``, 0 where the agent is absent; None: nowhere.

    Returns:
        Features ``[B, T, cells]``, and the state after the last step. An absent agent's features
        are those of what is given for it, in the state that it has.
    """
    features = []
    for t in range(x.shape[1]):
        outputs = encoder(inputs_of(x[:, t : t + 1], state))
        features.append(outputs[ENCODER_OUT])
        after = outputs[Columns.STATE_OUT]
        if alive is not None:
            is_there = alive[:, t, :, None] > 0
            after = {key: torch.where(is_there, after[key], state[key]) for key in after}
        state = after
    return torch.cat(features, 1), state


def encode(encoder: Any, x: Tensor, state: Any, alive: Tensor | None) -> Tensor:
    """Goes over sequences at once, as learning does; arguments are those of `advance`.

    The steps of each sequence are put into another order, those at which the agent is there first:
    so the encoder goes over these as if there were no others, in one pass.

    Returns:
        Features ``[B, T, cells]``: where the agent is there, those of `advance`; elsewhere they
        mean nothing.
    """
    if alive is None:
        return encoder(inputs_of(x, state))[ENCODER_OUT]
    order = (alive[..., 0] <= 0).int().argsort(dim=1, stable=True)
    features = encoder(inputs_of(x.take_along_dim(order[..., None], 1), state))[ENCODER_OUT]
    back = order.argsort(dim=1)
    return features.take_along_dim(back[..., None], 1)
