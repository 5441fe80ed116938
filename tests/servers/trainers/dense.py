"""Trainers in torch that describe their networks, as muxrl's own do; for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.dense import UNAVAILABLE, forward, gru_step
from muxrl.protocol.messages import DenseLayer, GruLayer, PolicyNetwork
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB, log_probs_of
from muxrl.servers.trainers.interface import Acted, PolicySpec, Rows


def _array(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy()


def _dense(layer: nn.Linear) -> DenseLayer:
    return DenseLayer(_array(layer.weight).T, _array(layer.bias))


class Drawing:
    """Draws from one layer of logits, with a mask if there is one; its critic is a layer apart."""

    learns_from = "recent"
    batch_env_steps = 4
    width: ClassVar[int] = 3

    def __init__(self, policy: PolicySpec, width: int = 3) -> None:
        torch.manual_seed(policy.seed)
        self.policy = policy
        size = int(np.prod(policy.observation_space.shape))
        self.actor = nn.Linear(size, policy.action_space.n)  # type: ignore[attr-defined]
        self.critic = nn.Sequential(nn.Linear(size, width), nn.Linear(width, 1))
        self.learned: list[Any] = []

    def act(self, rows: Rows) -> Acted:
        logits = forward([_dense(self.actor)], rows.observations)
        if rows.masks is not None:
            logits[rows.masks <= 0] = UNAVAILABLE
        noise = rows.rng.standard_exponential(logits.shape) if rows.should_explore else 1.0
        actions = (logits - np.log(noise)).argmax(-1)
        log_probs = log_probs_of(logits)[np.arange(len(rows)), actions]
        return Acted(actions, {DISTRIBUTION: logits, LOG_PROB: log_probs})

    def learn(self, trajectories: Sequence[Any]) -> dict[str, float]:
        self.learned += trajectories
        with torch.no_grad():
            self.actor.bias += 0.01
        return {}

    def acting_network(self) -> PolicyNetwork | None:
        return PolicyNetwork([_dense(self.actor)])

    def network(self) -> nn.Module:
        return self.actor

    def value(self, rows: Rows) -> np.ndarray:
        with torch.inference_mode():
            return self.critic(torch.from_numpy(np.array(rows.observations)))[:, 0].numpy()

    def weights(self) -> dict[str, Any]:
        return dict(self.actor.state_dict())

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        self.actor.load_state_dict(weights)

    def networks(self) -> dict[str, Any]:
        return {"actor": self.weights(), "critic": dict(self.critic.state_dict())}

    def set_networks(self, networks: Mapping[str, Any]) -> None:
        self.actor.load_state_dict(networks["actor"])
        self.critic.load_state_dict(networks["critic"])

    state, load = networks, set_networks


class Closed(Drawing):
    """Has no plain layers to describe."""

    def acting_network(self) -> PolicyNetwork | None:
        return None


class Members(nn.Module):
    """The network that each member of a team acts by: a GRU of its observation and last action."""

    def __init__(self, obs_dim: int, num_actions: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.first = nn.Linear(obs_dim + num_actions, 4)
        self.gru = nn.GRUCell(4, 4)
        self.last = nn.Linear(4, num_actions)

    def forward(self, obs: Tensor, last: Tensor, state: dict[str, Tensor]) -> Any:
        one_hot = (last.unsqueeze(-1) == torch.arange(self.num_actions)).float()
        h = self.gru(self.first(torch.cat([obs, one_hot], -1)), state["h"])
        return self.last(h), {"h": h}


class Team:
    """A trainer of teams whose members share a network, and act greedily by it or at random."""

    learns_from = "replay"
    batch_env_steps = 4
    forms_teams = True
    acting_keys = ("obs", "action_mask", "last_action")
    scores_name = "q_values"
    epsilon = 0.25

    def __init__(self, policy: PolicySpec) -> None:
        torch.manual_seed(policy.seed)
        self.num_members, obs_dim = policy.observation_space.shape
        num_actions = int(policy.action_space.nvec[0])  # type: ignore[attr-defined]
        self.net = self.members = Members(obs_dim, num_actions)

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros((self.num_members, 4), np.float32)}

    def act(self, rows: Rows) -> Acted:
        last = rows.parts["last_action"][..., None] == np.arange(self.members.num_actions)
        x = np.concatenate([rows.observations, last], -1, dtype=np.float32)
        first, gru, end = self.acting_network().layers
        assert isinstance(gru, GruLayer)
        h = rows.states["h"]
        x = forward([first], x.reshape(-1, x.shape[-1]))  # type: ignore[list-item]
        h = gru_step(gru, x, h.reshape(-1, 4)).reshape(h.shape)
        values = forward([end], h)  # type: ignore[list-item]
        return Acted(np.where(rows.masks, values, -np.inf).argmax(-1), {}, {"h": h})

    def acting_network(self) -> PolicyNetwork:
        gru = self.members.gru
        weights = _array(gru.weight_ih).T, _array(gru.weight_hh).T
        recurrent = GruLayer(*weights, _array(gru.bias_ih), _array(gru.bias_hh))
        layers = [_dense(self.members.first), recurrent, _dense(self.members.last)]
        return PolicyNetwork(layers, reads_last_action=True)

    def network(self) -> nn.Module:
        return self.members

    def learn(self, trajectories: Sequence[Any]) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return dict(self.members.state_dict())

    def load(self, state: Mapping[str, Any]) -> None:
        self.members.load_state_dict(state)


class BeginsElsewhere(Team):
    """Its recurrent state begins with ones."""

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.ones((self.num_members, 4), np.float32)}
