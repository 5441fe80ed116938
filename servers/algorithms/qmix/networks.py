"""The network that all members of a team share, to learn and to act."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.dense import forward, gru_step
from muxrl.protocol.messages import DenseLayer, GruLayer, Layer

AgentName = Literal["gru", "mlp"]


class AgentNetwork(nn.Module):
    """One value for each action, from a member's own history; PyMARL's ``RNNAgent``.

    ``Linear - ReLU - GRU - Linear``, or a Linear and ReLU in the GRU's place.
    """

    def __init__(self, kind: AgentName, input_dim: int, hidden_dim: int, num_actions: int):
        super().__init__()
        self.fc_in = nn.Linear(input_dim, hidden_dim)
        self.core: nn.GRUCell | nn.Linear = (
            nn.GRUCell(hidden_dim, hidden_dim)
            if kind == "gru"
            else nn.Linear(hidden_dim, hidden_dim)
        )
        self.fc_out = nn.Linear(hidden_dim, num_actions)

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
    learns = torch.is_grad_enabled()  # cuDNN has no gradient of what was not called to train
    out, last = torch.gru(x, h.unsqueeze(0), weights, True, 1, 0.0, learns, False, False)
    return out, last[0]


class NumpyAgent:
    """One step of an `AgentNetwork` in numpy, on the network's own memory.

    Acting needs a handful of products of tiny matrices. In torch each operation costs about 10 µs
    before it begins; numpy takes a third of the time (one team of 3: 0.09 instead of 0.30 ms), and
    serving is what a simulation waits for.

    The arrays are views of the parameters, so that weights that are loaded in place take effect
    here, too. Only a network that was moved to another device needs a new `NumpyAgent`; see
    `is_of`.

    Args:
        agent: a network on the CPU.
        num_members: n.
        num_actions: of the last-action input; 0 if there is none.
        has_ids: whether the inputs end with the members' ids.
    """

    def __init__(
        self, agent: AgentNetwork, num_members: int, num_actions: int, has_ids: bool
    ) -> None:
        self._in, self._in_bias = _view(agent.fc_in.weight).T, _view(agent.fc_in.bias)
        self._num_actions, self._has_ids = num_actions, has_ids
        self._obs_dim = len(self._in) - num_actions - num_members * has_ids
        self._blank = np.zeros((0, 0), np.float32)
        self._rows: np.ndarray = np.zeros(0, np.intp)
        self._core = _core_layer(agent)
        self._out, self._out_bias = _view(agent.fc_out.weight).T, _view(agent.fc_out.bias)
        self._pointer = agent.fc_in.weight.data_ptr()
        self._num_members = num_members

    def is_of(self, agent: AgentNetwork) -> bool:
        """Whether the arrays still are views of this network's weights."""
        return agent.fc_in.weight.data_ptr() == self._pointer

    def step(
        self, obs: np.ndarray, last_action: np.ndarray, h: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the values of every action.

        Args:
            obs: ``[B, n, obs_dim]``.
            last_action: ``[B, n]``, -1 for none.
            h: ``[B, n, hidden_dim]``, None for an mlp.

        Returns:
            ``[B, n, n_actions]``, and the next h.
        """
        rows = len(obs) * self._num_members
        x = self._inputs(obs.reshape(rows, -1), last_action.reshape(rows)) @ self._in
        x += self._in_bias
        np.maximum(x, 0.0, out=x)
        if isinstance(self._core, GruLayer):
            assert h is not None
            x = gru_step(self._core, x, h.reshape(rows, -1))
            h = x.reshape(h.shape)
        else:
            x = forward((self._core,), x)
        values = x @ self._out
        values += self._out_bias
        return values.reshape(len(obs), self._num_members, -1), h

    def _inputs(self, obs: np.ndarray, last_action: np.ndarray) -> np.ndarray:
        """Returns observation, last action one-hot, and id, of each row, ``[rows, input_dim]``."""
        num = len(obs)
        if len(self._rows) != num:  # most steps have as many as the one before
            self._rows = np.arange(num)
            self._blank = np.zeros((num, len(self._in)), np.float32)
            if self._has_ids:
                ids = np.eye(self._num_members, dtype=np.float32)
                self._blank[:, -self._num_members :] = np.tile(ids, (num // len(ids), 1))
        inputs = self._blank.copy()
        if self._num_actions:  # -1, none yet, is where the observation is put next
            inputs[self._rows, last_action.astype(np.intp) + self._obs_dim] = 1.0
        inputs[:, : self._obs_dim] = obs
        return inputs


def layers_of(agent: AgentNetwork) -> list[Layer]:
    """Returns the layers of a network on the CPU, on its own memory."""
    first = DenseLayer(_view(agent.fc_in.weight).T, _view(agent.fc_in.bias), "relu")
    last = DenseLayer(_view(agent.fc_out.weight).T, _view(agent.fc_out.bias))
    return [first, _core_layer(agent), last]


def _core_layer(agent: AgentNetwork) -> Layer:
    core = agent.core
    if isinstance(core, nn.GRUCell):
        weights = _view(core.weight_ih).T, _view(core.weight_hh).T
        return GruLayer(*weights, _view(core.bias_ih), _view(core.bias_hh))
    return DenseLayer(_view(core.weight).T, _view(core.bias), "relu")


def _view(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy()
