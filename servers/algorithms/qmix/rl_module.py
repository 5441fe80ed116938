"""A team's RLModule: the network that all members share, the mixer, and a target copy of both."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.schedules.scheduler import Scheduler
from torch import Tensor, nn

from muxrl.protocol.messages import PolicyNetwork
from muxrl.servers.agents.keys import ACTION_MASK, LAST_ACTION, OBS, STATE
from muxrl.servers.agents.teams import TEAM_KEYS
from muxrl.servers.algorithms.qmix.mixers import make_mixer
from muxrl.servers.algorithms.qmix.networks import AgentNetwork, NumpyAgent, layers_of

Q_VALUES = "q_values"
MIXER_SIZES = (
    "mixing_embed_dim",
    "hypernet_embed",
    "bound_state",
    "num_kernel",
    "adv_hypernet_layers",
    "adv_hypernet_embed",
)
"""Keys of ``model_config`` that `make_mixer` takes."""
INPUTS = "inputs"
HIDDEN = "h"


def member_network(module: Any) -> PolicyNetwork | None:
    """Returns the network that a team's members act with; None: it is not on the CPU."""
    if type(module) is not QMIXTorchRLModule or module.agent.fc_in.weight.device.type != "cpu":
        return None
    return PolicyNetwork(layers_of(module.agent), module.obs_last_action, module.obs_agent_id)


class QMIXTorchRLModule(TorchRLModule, TargetNetworkAPI, InferenceOnlyAPI):
    """A team's RLModule, for the spaces of a `TeamSpec`.

    ``forward_exploration(batch, t=...)`` and ``forward_inference(batch)`` return the actions
    themselves, ``ACTIONS [B, n]`` int64, and for a GRU ``STATE_OUT {"h": [B, n, hidden_dim]}``.
    Their observations ``[B, ...]`` may have a time axis, ``[B, T, ...]``, as RLlib's own env
    runners add one to stateful modules; then the actions are ``[B, T, n]``. ``forward_train``
    takes whole episodes ``[B, T + 1, ...]`` and starts their hidden states at zero.

    ``model_config`` keys: see the model settings of `QMIXConfig`.
    """

    acting_keys = (OBS, ACTION_MASK, LAST_ACTION)

    def setup(self) -> None:
        team_space, config = self.observation_space, self.model_config
        if not isinstance(team_space, spaces.Dict) or set(team_space.spaces) != set(TEAM_KEYS):
            raise ValueError(
                f"QMIX needs a team's observation space (see TeamSpec), not {team_space}; "
                "are the agents in a group?"
            )
        assert isinstance(config, dict)
        num_members, obs_dim = team_space[OBS].shape  # type: ignore[misc]
        num_actions = team_space[ACTION_MASK].shape[1]  # type: ignore[index]
        state_dim = team_space[STATE].shape[0]  # type: ignore[index]
        self.num_members: int = num_members
        self.num_actions: int = num_actions
        self.hidden_dim: int = config["hidden_dim"]
        self.is_recurrent: bool = config["agent"] == "gru"
        self.obs_agent_id: bool = config["obs_agent_id"]
        self.obs_last_action: bool = config["obs_last_action"]
        self.epsilon_schedule = Scheduler(
            fixed_value_or_schedule=config["epsilon"], framework="torch"
        )
        input_dim = obs_dim + num_actions * self.obs_last_action + num_members * self.obs_agent_id
        self.agent = AgentNetwork(config["agent"], input_dim, self.hidden_dim, num_actions)
        self.mixer = make_mixer(
            config["mixer"],
            num_members,
            num_actions,
            state_dim,
            # Modules that were saved before a size was a setting lack it.
            **{key: config[key] for key in MIXER_SIZES if key in config},
        )
        self._numpy_agent: NumpyAgent | None = None
        self._epsilon_t = -1
        self._epsilon = 1.0
        self.register_buffer("_action_ids", torch.arange(num_actions), persistent=False)
        self.register_buffer("_member_ids", torch.eye(num_members), persistent=False)

    def get_initial_state(self) -> dict[str, Any]:
        if not self.is_recurrent:
            return {}
        return {HIDDEN: torch.zeros(self.num_members, self.hidden_dim)}

    def train(self, mode: bool = True) -> Self:
        # RLlib calls this before every forward pass; walking over the submodules takes 15 µs.
        return self if self.training == mode else super().train(mode)

    def get_non_inference_attributes(self) -> list[str]:
        return ["mixer", "_target_agent", "_target_mixer"]

    def make_target_networks(self) -> None:
        self._target_agent = make_target_network(self.agent)
        self._target_mixer = make_target_network(self.mixer)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.agent, self._target_agent), (self.mixer, self._target_mixer)]

    def forward_target(self, batch: dict[str, Any], inputs: Tensor | None = None) -> dict[str, Any]:
        """Returns the target network's values ``[B, T + 1, n, n_actions]`` of whole episodes.

        Args:
            batch: as for ``forward_train``.
            inputs: those that ``forward_train`` returned for the same batch, if it did.
        """
        with torch.no_grad():
            if inputs is None:
                inputs = self._inputs_of(batch[Columns.OBS])
            return {Q_VALUES: self._unroll(self._target_agent, inputs)[0]}

    @property
    def mixes_advantages(self) -> bool:
        """Whether the mixer wants the greedy values and the actions, too; see `networks`."""
        return self.mixer.mixes_advantages

    def mix(self, q: Tensor, state: Tensor, alive: Tensor, *choice: Tensor) -> Tensor:
        """Returns the mixed value; `choice` is the greedy values and the actions, or nothing."""
        return self.mixer(q, state, alive, *choice)

    def mix_target(self, q: Tensor, state: Tensor, alive: Tensor, *choice: Tensor) -> Tensor:
        """Returns the value mixed by the target copy of the mixer."""
        with torch.no_grad():
            return self._target_mixer(q, state, alive, *choice)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Values ``[B, T + 1, n, n_actions]`` of whole episodes, and the networks' inputs."""
        inputs = self._inputs_of(batch[Columns.OBS])
        return {Q_VALUES: self._unroll(self.agent, inputs)[0], INPUTS: inputs}

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._act(batch, None)

    def _forward_exploration(
        self, batch: dict[str, Any], t: int = 0, **kwargs: Any
    ) -> dict[str, Any]:
        """Acts epsilon-greedily; `t` is the number of env steps so far."""
        return self._act(batch, t)

    def act_in_numpy(
        self,
        obs: dict[str, np.ndarray],
        state: dict[str, np.ndarray] | None,
        t: int | None,
        rng: np.random.Generator | None = None,
    ) -> tuple[np.ndarray, dict[str, np.ndarray] | None]:
        """Acts for B teams at one step, without a tensor; the module must be on the CPU.

        Args:
            obs: ``OBS [B, n, obs_dim]``, ``LAST_ACTION [B, n]`` and ``ACTION_MASK
                [B, n, n_actions]``; the other keys are not needed to act.
            state: ``{"h": [B, n, hidden_dim]}`` for a GRU.
            t: env steps so far, for epsilon; None acts greedily.
            rng: of random numbers; None: torch's own, whose seed is RLlib's.

        Returns:
            Actions ``[B, n]`` int64, and the next state.
        """
        values, after = self.step_in_numpy(obs, None if state is None else state[HIDDEN])
        epsilon = 0.0 if t is None else self._epsilon_at(t)
        actions = self._choose(values, obs[ACTION_MASK], epsilon, rng)
        return actions, None if after is None else {HIDDEN: after}

    def step_in_numpy(
        self, obs: dict[str, np.ndarray], h: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns values ``[B, n, n_actions]`` and the next h."""
        if self._numpy_agent is None or not self._numpy_agent.is_of(self.agent):
            self._numpy_agent = NumpyAgent(
                self.agent,
                self.num_members,
                self.num_actions * self.obs_last_action,
                self.obs_agent_id,
            )
        return self._numpy_agent.step(obs[OBS], obs[LAST_ACTION], h)

    def _epsilon_at(self, t: int) -> float:
        if t != self._epsilon_t:
            self._epsilon_t, self._epsilon = t, float(self.epsilon_schedule.update(t))
        return self._epsilon

    @staticmethod
    def _choose(
        values: np.ndarray,
        mask: np.ndarray,
        epsilon: float,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray:
        """Chooses epsilon-greedily among available actions, for each member independently."""
        actions = np.where(mask > 0, values, -np.inf).argmax(-1)
        if epsilon > 0.0:
            # The largest of independent uniforms is a uniform draw; + 1 keeps available actions
            # above the unavailable ones, which are 0.
            shape = (*mask.shape[:-1], mask.shape[-1] + 1)
            draws = torch.rand(shape).numpy() if rng is None else rng.random(shape, np.float32)
            explores = draws[..., -1] < epsilon
            if explores.any():  # most steps of one team do not
                any_action = ((draws[..., :-1] + 1.0) * mask).argmax(-1)
                actions = np.where(explores, any_action, actions)
        return actions

    def _act(self, batch: dict[str, Any], t: int | None) -> dict[str, Any]:
        """Returns ACTIONS, and STATE_OUT if the module is recurrent."""
        obs = batch[Columns.OBS]
        shape = obs[OBS].shape
        h = batch[Columns.STATE_IN][HIDDEN] if self.is_recurrent else None
        if obs[OBS].is_cpu and (len(shape) == 3 or shape[1] == 1):
            rows = {
                key: value.numpy().reshape(len(value), *value.shape[value.dim() - rank :])
                for key, value, rank in (
                    (OBS, obs[OBS], 2),
                    (LAST_ACTION, obs[LAST_ACTION], 1),
                    (ACTION_MASK, obs[ACTION_MASK], 2),
                )
            }
            state = None if h is None else {HIDDEN: h.detach().numpy()}
            chosen, after = self.act_in_numpy(rows, state, t)
            actions = chosen.reshape(obs[ACTION_MASK].shape[:-1])
            h = None if after is None else torch.from_numpy(after[HIDDEN])
        else:
            values, h = self._step_in_torch(obs, h)
            mask = obs[ACTION_MASK].cpu().numpy()
            epsilon = 0.0 if t is None else self._epsilon_at(t)
            actions = self._choose(values.reshape(mask.shape), mask, epsilon)
        out: dict[str, Any] = {Columns.ACTIONS: torch.from_numpy(actions)}
        if h is not None:
            out[Columns.STATE_OUT] = {HIDDEN: h}
        return out

    def _step_in_torch(
        self, obs: dict[str, Tensor], h: Tensor | None
    ) -> tuple[np.ndarray, Tensor | None]:
        """The same on an accelerator, or for several steps at once."""
        if obs[OBS].dim() == 3:
            obs = {key: value.unsqueeze(1) for key, value in obs.items()}
        with torch.no_grad():
            values, after = self._unroll(
                self.agent, self._inputs_of(obs), None if h is None else h.flatten(0, 1)
            )
        return values.cpu().numpy(), None if after is None else after.view_as(h)  # type: ignore[arg-type]

    def _unroll(
        self, agent: AgentNetwork, inputs: Tensor, h: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        length, batch_size, n, _ = inputs.shape
        values, h = agent.unroll(inputs.view(length, batch_size * n, -1), h)
        return values.view(length, batch_size, n, -1).transpose(0, 1), h

    def _inputs_of(self, obs: dict[str, Tensor]) -> Tensor:
        """Returns the shared network's inputs: observation, last action and id; time first.

        Args:
            obs: ``[B, T, n, ...]``.

        Returns:
            ``[T, B, n, input_dim]``, contiguous.
        """
        parts = [obs[OBS].transpose(0, 1)]
        if self.obs_last_action:
            # Comparing is a one-hot in which -1, no action yet, gives the zero row.
            last_action = obs[LAST_ACTION].transpose(0, 1).unsqueeze(-1)
            parts.append((last_action == self._action_ids).float())
        if self.obs_agent_id:
            parts.append(self._member_ids.expand(*parts[0].shape[:-1], self.num_members))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0].contiguous()
