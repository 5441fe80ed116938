"""The network that all members of a team share, in torch to learn and in numpy to act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.dense import forward, forward_recurrent
from muxrl.protocol.messages import DenseLayer, GruLayer, Layer
from muxrl.servers.agents.keys import LAST_ACTION, OBS
from muxrl.servers.algorithms.settings.teams import QMIXSettings
from muxrl.servers.trainers.interface import PolicySpec

HIDDEN = "h"


def num_actions_of(policy: PolicySpec) -> int:
    """Returns how many actions a member has."""
    space: Any = policy.action_space
    return int(space.nvec[0])


class AgentNetwork(nn.Module):
    """Returns a value of each action, from a member's own history; PyMARL's ``RNNAgent``.

    The layers are ``Linear - ReLU - GRU - Linear``, or with a Linear and ReLU instead of the GRU.
    They read a member's observation, its last action, one-hot, and its id, one-hot.

    Args:
        own: the settings.
        policy: has the sizes.
    """

    _action_ids: Tensor
    _member_ids: Tensor

    def __init__(self, own: QMIXSettings, policy: PolicySpec) -> None:
        super().__init__()
        (num_members, obs_dim), num_actions = policy.observation_space.shape, num_actions_of(policy)
        self.num_members, self.num_actions = num_members, num_actions
        self.hidden_dim = hidden_dim = own.hidden_dim
        self.is_recurrent = own.agent == "gru"
        self.has_last_action, self.has_ids = own.obs_last_action, own.obs_agent_id
        input_dim = obs_dim + num_actions * self.has_last_action + num_members * self.has_ids
        self.fc_in = nn.Linear(input_dim, hidden_dim)
        self.core: nn.GRUCell | nn.Linear = (
            nn.GRUCell(hidden_dim, hidden_dim)
            if self.is_recurrent
            else nn.Linear(hidden_dim, hidden_dim)
        )
        self.fc_out = nn.Linear(hidden_dim, num_actions)
        self.register_buffer("_action_ids", torch.arange(num_actions), persistent=False)
        self.register_buffer("_member_ids", torch.eye(num_members), persistent=False)

    def inputs_of(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Returns the layers' input, time first, ``[T, B, n, input_dim]``, contiguous.

        Args:
            obs: parts of a team's observations, ``[B, T, n, ...]``.
        """
        parts = [obs[OBS].transpose(0, 1)]
        if self.has_last_action:
            parts.append(self.one_hot(obs[LAST_ACTION].transpose(0, 1)))
        if self.has_ids:
            parts.append(self._member_ids.expand(*parts[0].shape[:-1], self.num_members))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0].contiguous()

    def one_hot(self, last_action: Tensor) -> Tensor:
        """Returns last actions as one-hot rows ``[..., k]``; -1, none yet, is a row of zeros."""
        return (last_action.unsqueeze(-1) == self._action_ids).float()

    def values(self, inputs: Tensor) -> Tensor:
        """Returns the values ``[B, T, n, k]`` of whole episodes.

        Args:
            inputs: from `inputs_of`, ``[T, B, n, input_dim]``.
        """
        length, batch_size, n, _ = inputs.shape
        values, _ = self.unroll(inputs.view(length, batch_size * n, -1))
        return values.view(length, batch_size, n, -1).transpose(0, 1)

    def step(self, obs: Mapping[str, Tensor], h: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the values ``[B, n, k]`` of one step, and the next h.

        Args:
            obs: parts of a team's observations, ``[B, n, ...]``.
            h: ``[B, n, hidden_dim]``; None without a GRU.
        """
        inputs = self.inputs_of({key: part.unsqueeze(1) for key, part in obs.items()})
        before = None if h is None else h.flatten(0, 1)
        values, after = self.unroll(inputs.flatten(1, 2), before)
        shape = inputs.shape[1:3]
        return values.view(*shape, -1), None if after is None else after.view(*shape, -1)

    def unroll(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Returns the values ``[T, N, n_actions]`` of a sequence, and the last h.

        Args:
            x: ``[T, N, input_dim]``.
            h: ``[N, hidden_dim]`` to start from; None: zeros.
        """
        x = torch.relu(self.fc_in(x))
        if isinstance(self.core, nn.GRUCell):
            if h is None:
                h = x.new_zeros(x.shape[1:])
            x, h = _unroll_gru(self.core, x, h)
        else:
            x = torch.relu(self.core(x))
        return self.fc_out(x), h


def _unroll_gru(cell: nn.GRUCell, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    # All steps in one call: a Python loop over the cell takes a third to two thirds longer.
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    learns = torch.is_grad_enabled()  # cuDNN has gradients only in training mode
    out, last = torch.gru(x, h.unsqueeze(0), weights, True, 1, 0.0, learns, False, False)
    return out, last[0]


class NumpyAgent:
    """One step of an `AgentNetwork` in numpy, on the network's own memory.

    Acting needs a handful of products of tiny matrices. In torch each operation costs about 10 µs
    before it begins; numpy takes a third of the time (one team of 3: 0.09 instead of 0.30 ms), for
    which simulations wait.

    The arrays are views of the parameters, so that weights that are loaded in place take effect
    here, too. Only moving the network to another device needs a new `NumpyAgent`.

    Args:
        agent: a network on the CPU.
    """

    def __init__(self, agent: AgentNetwork) -> None:
        self._layers: Any = layers_of(agent)
        self._num_members, self._has_ids = agent.num_members, agent.has_ids
        self._num_actions = agent.num_actions if agent.has_last_action else 0
        self._input_dim = agent.fc_in.in_features
        self._obs_dim = self._input_dim - self._num_actions - self._num_members * self._has_ids
        self._blank = np.zeros((0, 0), np.float32)
        self._rows: np.ndarray = np.zeros(0, np.intp)

    def step(
        self, obs: np.ndarray, last_action: np.ndarray, h: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the values of every action.

        Args:
            obs: ``[B, n, obs_dim]``.
            last_action: ``[B, n]``, -1 for none.
            h: ``[B, n, hidden_dim]``; None without a GRU.

        Returns:
            Values ``[B, n, n_actions]``, and the next h.
        """
        rows = len(obs) * self._num_members
        x = self._inputs(obs.reshape(rows, -1), last_action.reshape(rows))
        if h is None:
            values = forward(self._layers, x)
        else:
            values, after = forward_recurrent(self._layers, x, h.reshape(rows, -1))
            h = after.reshape(h.shape)
        return values.reshape(len(obs), self._num_members, -1), h

    def _inputs(self, obs: np.ndarray, last_action: np.ndarray) -> np.ndarray:
        """Returns rows of observation, one-hot last action and id, ``[rows, input_dim]``."""
        num = len(obs)
        if len(self._rows) != num:  # most steps have as many rows as the one before
            self._rows = np.arange(num)
            self._blank = np.zeros((num, self._input_dim), np.float32)
            if self._has_ids:
                ids = np.eye(self._num_members, dtype=np.float32)
                self._blank[:, -self._num_members :] = np.tile(ids, (num // len(ids), 1))
        inputs = self._blank.copy()
        if self._num_actions:  # for -1, none yet, the observation overwrites the 1
            inputs[self._rows, last_action.astype(np.intp) + self._obs_dim] = 1.0
        inputs[:, : self._obs_dim] = obs
        return inputs


def of_member(agent: AgentNetwork, obs: Tensor, *more: Any) -> Any:
    """Returns one member's values ``[B, k]``; with a GRU ``(values, {"h": [B, hidden_dim]})``.

    Args:
        agent: the network that all members share.
        obs: ``[B, obs_dim]``.
        more: if the network reads them, the last action ``[B]``, -1 for none, and the id
            ``[B, n]``, one-hot; with a GRU also ``{"h": [B, hidden_dim]}``.
    """
    left, read = iter(more), [obs]
    if agent.has_last_action:
        read.append(agent.one_hot(next(left)))
    if agent.has_ids:
        read.append(next(left))
    h = next(left)[HIDDEN] if agent.is_recurrent else None
    values, after = agent.unroll(torch.cat(read, -1).unsqueeze(0), h)
    return values[0] if after is None else (values[0], {HIDDEN: after})


def layers_of(agent: AgentNetwork) -> list[Layer]:
    """Returns the layers of a network on the CPU, with views of its parameters."""
    first = DenseLayer(_view(agent.fc_in.weight).T, _view(agent.fc_in.bias), "relu")
    last = DenseLayer(_view(agent.fc_out.weight).T, _view(agent.fc_out.bias))
    core = agent.core
    if isinstance(core, nn.GRUCell):
        weights = _view(core.weight_ih).T, _view(core.weight_hh).T
        return [first, GruLayer(*weights, _view(core.bias_ih), _view(core.bias_hh)), last]
    return [first, DenseLayer(_view(core.weight).T, _view(core.bias), "relu"), last]


def _view(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy()
