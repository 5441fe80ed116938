"""Actions from RLModules: the live copy that serves, and one forward pass per policy and flush.

There are two copies of the modules. New weights are loaded into the idle one and the two change
places, so that a forward pass never sees half-loaded weights and never waits for a load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
import tree
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

from servers.episodes import PendingStep, SeatRequest


class Inference:
    """Serves actions from the newest weights.

    Args:
        build: makes one inference-only copy of the modules.
        seed: of the exploration noise.
    """

    def __init__(self, build: Callable[[], MultiRLModule], *, seed: int) -> None:
        self.live = build()
        self._spare = build()
        self._spare.set_state(self.live.get_state())
        self.is_on_policy = True
        """Whether the learner wants log-probabilities and distribution inputs recorded."""
        self._swap = threading.Lock()
        self._rng = np.random.default_rng(seed)
        self.weights_seq_no = 0
        self.num_env_steps_sampled = 0
        """Lifetime training env steps; exploration schedules run on it."""

    @property
    def is_stateful(self) -> bool:
        """Whether any module is recurrent."""
        return any(module.is_stateful() for _, module in self.live.items())

    def load(self, state: Mapping[str, Any], weights_seq_no: int) -> None:
        """Puts new weights into use, for some or all modules; called by the learning thread."""
        self._spare.set_state(self.live.get_state())  # modules that `state` leaves out
        self._spare.set_state(dict(state))
        with self._swap:
            self.live, self._spare = self._spare, self.live
            self.weights_seq_no = weights_seq_no

    def act(self, steps: Sequence[PendingStep]) -> int:
        """Computes the actions of many steps, one forward pass per policy.

        The results are left in each request's `SeatRecord`.

        Returns:
            The version of the weights used.
        """
        by_policy: dict[tuple[str, bool], list[SeatRequest]] = {}
        for step in steps:
            for request in step.requests:
                key = (request.seat.policy_id, step.should_explore)
                by_policy.setdefault(key, []).append(request)
        with self._swap, torch.inference_mode():
            for (policy_id, should_explore), requests in by_policy.items():
                self._forward(policy_id, requests, should_explore)
            return self.weights_seq_no

    def _forward(self, policy_id: str, requests: list[SeatRequest], should_explore: bool) -> None:
        module = self.live[policy_id]
        batch: dict[str, Any] = {Columns.OBS: _stack([r.observation for r in requests])}
        is_stateful = module.is_stateful()
        if is_stateful:
            initial = None
            states = []
            for request in requests:
                state = request.record.module_state
                if state is None:
                    initial = initial or tree.map_structure(np.asarray, module.get_initial_state())
                    state = initial
                states.append(state)
            batch[Columns.STATE_IN] = _stack(states)
        if should_explore:
            outputs = module.forward_exploration(batch, t=self.num_env_steps_sampled)
        else:
            outputs = module.forward_inference(batch)
        state_out = outputs.pop(Columns.STATE_OUT, None)
        actions, extras = self._choose(module, outputs, requests, should_explore)
        if state_out is not None:
            state_out = tree.map_structure(_to_numpy, state_out)
        for i, request in enumerate(requests):
            record = request.record
            record.action = actions[i]
            record.extra_outputs = {key: column[i] for key, column in extras.items()}
            if state_out is not None:
                record.module_state = tree.map_structure(lambda s, i=i: s[i], state_out)
                record.extra_outputs[Columns.STATE_OUT] = record.module_state

    def _choose(
        self,
        module: Any,
        outputs: dict[str, Any],
        requests: list[SeatRequest],
        should_explore: bool,
    ) -> tuple[Any, dict[str, np.ndarray]]:
        logged = [
            (i, r.logged_action) for i, r in enumerate(requests) if r.logged_action is not None
        ]
        if Columns.ACTIONS in outputs:
            actions = _to_numpy(outputs[Columns.ACTIONS])
            for i, action in logged:
                actions[i] = action
            return actions, {}
        inputs = outputs[Columns.ACTION_DIST_INPUTS]
        if isinstance(requests[0].seat.action_space, gymnasium.spaces.Discrete):
            logits = _to_numpy(inputs)
            actions, logp = self._categorical(logits, logged, should_explore)
        else:
            kind = module.get_exploration_action_dist_cls()
            dist = kind.from_logits(inputs)
            chosen = (dist if should_explore else dist.to_deterministic()).sample()
            actions = tree.map_structure(_to_numpy, chosen)
            for i, action in logged:
                actions[i] = action
            logp = _to_numpy(dist.logp(torch.from_numpy(np.asarray(actions))))
            logits = _to_numpy(inputs)
        if not self.is_on_policy:
            return actions, {}
        return actions, {Columns.ACTION_LOGP: logp, Columns.ACTION_DIST_INPUTS: logits}

    def _categorical(
        self, logits: np.ndarray, logged: list[tuple[int, Any]], should_explore: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        # Gumbel-max in numpy: the same draw as torch's Categorical at a sixth of its cost.
        if should_explore:
            actions = (logits + self._rng.gumbel(size=logits.shape)).argmax(axis=-1)
        else:
            actions = logits.argmax(axis=-1)
        for i, action in logged:
            actions[i] = action
        peak = logits.max(axis=-1)
        log_sum = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=-1))
        logp = logits[np.arange(len(actions)), actions] - log_sum
        return actions, logp.astype(np.float32)


def _stack(values: list[Any]) -> Any:
    """Stacks arrays, or dicts of arrays, into tensors with a batch dimension first."""
    first = values[0]
    if isinstance(first, np.ndarray):
        # torch warns of read-only memory, which arrays fresh from the wire have.
        return torch.from_numpy(np.stack(values))
    if isinstance(first, dict):
        return {key: _stack([value[key] for value in values]) for key in first}
    return tree.map_structure(lambda *leaves: torch.from_numpy(np.stack(leaves)), *values)


def _to_numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor
