"""Actions from RLModules, one forward pass for each policy.

Small networks act in numpy, others in torch; see also `on_gpu`.

There are two copies of the modules. New weights are loaded into the idle copy, then the copies are
swapped, so that a forward pass never sees half-loaded weights and never waits for a load.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import tree
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

from muxrl.protocol.spaces import Discrete
from muxrl.servers.acting import Acting, Answer, Asked
from muxrl.servers.agents.log_probs import log_probs_of
from muxrl.servers.rllib.numpy_mlp import MAX_BATCH, NumpyPolicy, numpy_policy
from muxrl.servers.rllib.numpy_values import Values, numpy_values
from muxrl.servers.rllib.on_gpu import ModulesOnGpu

T = TypeVar("T")
Outputs = dict[str, Any]
TORCH_DRAWS = threading.RLock()
"""Held while torch's global generator has somebody's own state: servers may share a process."""


class _Copy:
    """One copy of the modules, and facts about them."""

    def __init__(self, modules: MultiRLModule) -> None:
        self.modules = modules
        self.numpy: dict[str, NumpyPolicy | None] = {
            module_id: numpy_policy(x) for module_id, x in modules.items()
        }
        self.values: dict[str, Values | None] = {
            module_id: numpy_values(x) for module_id, x in modules.items()
        }
        self.is_stateful = {module_id: x.is_stateful() for module_id, x in modules.items()}
        self.acting_keys: dict[str, tuple[str, ...] | None] = {
            module_id: getattr(x, "acting_keys", None) for module_id, x in modules.items()
        }
        self.acts_in_numpy = {
            module_id: hasattr(x, "act_in_numpy")
            and all(parameter.device.type == "cpu" for parameter in x.parameters())
            for module_id, x in modules.items()
        }
        self.follows: dict[str, tuple[torch.nn.Module, list[torch.Tensor], list[torch.Tensor]]] = {}
        """By policy: the module that is learned, the tensors here, and those they are copied of."""


class Inference(Acting):
    """Chooses actions with the newest weights.

    Args:
        build: makes one inference-only copy of the modules.
        seed: of the exploration noise.
        on_gpu: whether large passes are made on a GPU.
    """

    def __init__(
        self, build: Callable[[], MultiRLModule], *, seed: int, on_gpu: bool = False
    ) -> None:
        self._live = _Copy(build())
        self._spare = _Copy(build())
        self._spare.modules.set_state(self._live.modules.get_state())
        self.lock = threading.Lock()
        self._rng = np.random.default_rng((seed, 0))
        self._evaluation_rng = np.random.default_rng((seed, 1))
        self._evaluation_torch = torch.Generator().manual_seed(seed)
        self.needs_log_probabilities = True
        """Whether the learner wants log-probabilities and distribution inputs recorded."""
        self.corrects_off_policy = False
        """Whether the learner corrects for the probabilities with which actions were chosen."""
        self.weights_seq_no = 0
        self.num_env_steps_sampled = 0
        """Lifetime training env steps; exploration schedules run on it."""
        self.untrained: dict[str, Any] | None = None
        """The weights that it began with, by module, if they are kept; see `keep_untrained`."""
        self._build = build
        self._untrained_copy: _Copy | None = None  # made when it is first asked for
        self._gpu = ModulesOnGpu(build) if on_gpu else None
        self._num_loads = 0

    @property
    def modules(self) -> MultiRLModule:
        """The modules in use now; do not keep them, since the copies are swapped."""
        return self._live.modules

    @property
    def is_on_gpu(self) -> bool:
        """Whether large passes are made on a GPU."""
        return self._gpu is not None

    def epsilon_of(self, policy_id: str) -> float | None:
        """Returns the probability of an action at random; None: the policy has none."""
        schedule: Any = getattr(self._live.modules[policy_id], "epsilon_schedule", None)
        return None if schedule is None else float(schedule.update(self.num_env_steps_sampled))

    @property
    def is_stateful(self) -> bool:
        """Whether any module is recurrent."""
        return any(self._live.is_stateful.values())

    def load(self, state: Mapping[str, Any], weights_seq_no: int) -> None:
        """Puts new weights into use, for some or all modules; called by the learning thread."""
        spare = self._spare.modules
        if state.keys() != self._live.is_stateful.keys():
            spare.set_state(self._live.modules.get_state())  # modules that `state` leaves out
        spare.set_state(dict(state))
        self._use_spare(weights_seq_no)

    def follow(self, learned: Mapping[str, torch.nn.Module], weights_seq_no: int) -> None:
        """Does what `load` does, with the weights of modules that learn in this process."""
        spare = self._spare.modules
        if learned.keys() != self._live.is_stateful.keys():
            spare.set_state(self._live.modules.get_state())
        for policy_id, module in learned.items():
            known, ours, theirs = self._spare.follows.get(policy_id, (None, [], []))
            if known is not module:  # walking over modules takes longer than copying
                named, all_theirs = spare[policy_id].state_dict(), module.state_dict()
                ours, theirs = list(named.values()), [all_theirs[name] for name in named]
                self._spare.follows[policy_id] = module, ours, theirs
            torch._foreach_copy_(ours, [tensor.cpu() for tensor in theirs])
        self._use_spare(weights_seq_no)

    def _use_spare(self, weights_seq_no: int) -> None:
        with self.lock:
            self._live, self._spare = self._spare, self._live
            self._num_loads += 1
            self.weights_seq_no = weights_seq_no

    def keep_untrained(self) -> None:
        """Keeps the weights in use as those that seats act with where a step has them untrained."""
        self.untrained = tree.map_structure(np.array, dict(self._live.modules.get_state()))

    def read(self, read: Callable[[], T]) -> T:
        """Returns what `read` returns of `modules` and `weights_seq_no`; none are loaded then."""
        with self.lock:
            return read()

    def get_random_state(self) -> dict[str, Any]:
        """Returns where its random generators are; for the thread that acts."""
        return {
            "training": self._rng.bit_generator.state,
            "evaluation": self._evaluation_rng.bit_generator.state,
            "evaluation_torch": self._evaluation_torch.get_state().numpy(),
        }

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Puts its random generators where those of `get_random_state` were."""
        self._rng.bit_generator.state = state["training"]
        self._evaluation_rng.bit_generator.state = state["evaluation"]
        self._evaluation_torch.set_state(torch.from_numpy(state["evaluation_torch"]))

    def answer(self, asked: Asked) -> Answer:
        if not asked.is_untrained:
            if self._gpu is None and (asked.is_training or not asked.should_explore):
                return self._act(self._live, asked)
            return self._answer(self._live, asked)
        if self._untrained_copy is None:
            assert self.untrained is not None, "the store refuses what is not kept"
            with TORCH_DRAWS, torch.random.fork_rng(devices=[]):  # first weights are thrown away
                self._untrained_copy = _Copy(self._build())
            self._untrained_copy.modules.set_state(self.untrained)
        return self._answer(self._untrained_copy, asked)

    def noise(self, shape: tuple[int, ...], *, is_training: bool) -> np.ndarray:
        """Draws ``noise`` for Gumbel-max: the action is the argmax of logits - log(noise).

        It is the same draw as torch's Categorical at a sixth of its cost.
        """
        rng = self._rng if is_training else self._evaluation_rng
        return rng.standard_exponential(shape)

    def _answer(self, copy: _Copy, asked: Asked) -> Answer:
        if asked.should_explore and not asked.is_training:
            return self._act_in_evaluation(copy, asked)
        if self._gpu is None or asked.is_untrained:
            return self._act(copy, asked)
        policy_id = asked.policy_id
        batch = functools.partial(self._batch, copy, asked)
        if not self._gpu.is_worth(policy_id, len(asked), copy.modules[policy_id], batch):
            return self._act(copy, asked)
        on_gpu = self._gpu.module(policy_id, copy.modules, self._num_loads)
        with torch.inference_mode():
            return self._forward(copy, on_gpu, asked)

    def _act_in_evaluation(self, copy: _Copy, asked: Asked) -> Answer:
        """Explores with random numbers of its own, so that training draws the same without it.

        Torch modules and distributions draw from the global generator, as the learning thread does.
        An update that runs at the same time may get some of evaluation's numbers.
        """
        policy_id = asked.policy_id
        draws_in_numpy = copy.acts_in_numpy[policy_id] or (
            (copy.numpy[policy_id] or copy.values[policy_id])
            and isinstance(asked.action_space, Discrete)
        )
        if draws_in_numpy:
            return self._act(copy, asked)
        with TORCH_DRAWS, torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._evaluation_torch.get_state())
            try:
                return self._act(copy, asked)
            finally:
                self._evaluation_torch.set_state(torch.get_rng_state())

    def _act(self, copy: _Copy, asked: Asked) -> Answer:
        policy_id = asked.policy_id
        if copy.acts_in_numpy[policy_id]:
            return self._act_in_numpy(copy, asked)
        values_of = copy.values[policy_id]
        forward = copy.numpy[policy_id] or values_of
        is_discrete = isinstance(asked.action_space, Discrete)
        is_large = torch.get_num_threads() > 1 and len(asked) > MAX_BATCH
        if forward is None or not is_discrete or is_large:
            with torch.inference_mode():
                return self._forward(copy, copy.modules[policy_id], asked)
        logits = forward(asked.observations(copy.acting_keys[policy_id]))
        if values_of is not None:
            epsilon = self.epsilon_of(policy_id) if asked.should_explore else None
            return Answer(self._epsilon_greedy(logits, epsilon or 0.0, asked), {})
        return Answer(*self._categorical(logits, asked))

    def _act_in_numpy(self, copy: _Copy, asked: Asked) -> Answer:
        """For modules that have a method ``act_in_numpy``; they have ``acting_keys``, too."""
        module: Any = copy.modules[asked.policy_id]
        obs = asked.observations(copy.acting_keys[asked.policy_id] or ())
        states = asked.states(functools.partial(_initial, module)) if module.is_stateful() else None
        t = self.num_env_steps_sampled if asked.should_explore else None
        rng = self._rng if asked.is_training else self._evaluation_rng
        actions, states = module.act_in_numpy(obs, states, t, rng)
        asked.put_logged(actions)
        return Answer(actions, {}, states)

    def _batch(self, copy: _Copy, asked: Asked) -> dict[str, Any]:
        """Returns what a module reads; a critic's part of the observations is not needed."""
        policy_id = asked.policy_id
        states_of = copy.modules[policy_id] if copy.is_stateful[policy_id] else None
        return batch_of(asked, copy.acting_keys[policy_id], states_of)

    def _forward(self, copy: _Copy, module: Any, asked: Asked) -> Answer:
        """Acts in torch: `forward_exploration` or `forward_inference`."""
        batch = self._batch(copy, asked)
        if asked.should_explore:
            found = module.forward_exploration(batch, t=self.num_env_steps_sampled)
        else:
            found = module.forward_inference(batch)
        states = tree.map_structure(_to_numpy, found.pop(Columns.STATE_OUT, None))
        if copy.is_stateful[asked.policy_id]:
            found = tree.map_structure(lambda rows: rows.squeeze(1), found)
        outputs: Outputs = {}
        if Columns.ACTIONS in found:
            actions = _to_numpy(found[Columns.ACTIONS])
            asked.put_logged(actions)
        elif isinstance(asked.action_space, Discrete):
            logits = _to_numpy(found[Columns.ACTION_DIST_INPUTS])
            actions, outputs = self._categorical(logits, asked)
        else:
            inputs = found[Columns.ACTION_DIST_INPUTS]
            actions, outputs = self._from_distribution(module, inputs, asked)
        if states is not None:  # RLlib's learners begin sequences with recorded states
            outputs[Columns.STATE_OUT] = states
        return Answer(actions, outputs, states)

    def _from_distribution(
        self, module: Any, inputs: torch.Tensor, asked: Asked
    ) -> tuple[Any, Outputs]:
        distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
        drawn_from = distribution if asked.should_explore else distribution.to_deterministic()
        actions = tree.map_structure(_to_numpy, drawn_from.sample())
        asked.put_logged(actions)
        if not self.needs_log_probabilities:
            return actions, {}
        outputs: Outputs = {Columns.ACTION_DIST_INPUTS: _to_numpy(inputs)}
        if asked.is_training:  # nobody reads them of an evaluation
            logp = _to_numpy(distribution.logp(torch.from_numpy(np.asarray(actions))))
            outputs[Columns.ACTION_LOGP] = self._with_logged(logp, asked)
        return actions, outputs

    def _categorical(self, logits: np.ndarray, asked: Asked) -> tuple[np.ndarray, Outputs]:
        if asked.should_explore:
            noise = self.noise(logits.shape, is_training=asked.is_training)
            actions = (logits - np.log(noise)).argmax(axis=-1)
        else:
            actions = logits.argmax(axis=-1)
        asked.put_logged(actions)
        if not self.needs_log_probabilities:
            return actions, {}
        outputs: Outputs = {Columns.ACTION_DIST_INPUTS: logits}
        if asked.is_training:  # nobody reads them of an evaluation
            logp = log_probs_of(logits)[np.arange(len(actions)), actions].astype(np.float32)
            outputs[Columns.ACTION_LOGP] = self._with_logged(logp, asked)
        return actions, outputs

    def _epsilon_greedy(self, values: np.ndarray, epsilon: float, asked: Asked) -> np.ndarray:
        """Returns the best available actions, and any available one with probability epsilon."""
        actions = values.argmax(axis=-1)
        if epsilon > 0.0:
            rng = self._rng if asked.is_training else self._evaluation_rng
            explores = rng.random(len(values)) < epsilon
            if explores.any():
                # The largest of independent uniforms is a uniform draw.
                draws = np.where(values > -np.inf, rng.random(values.shape), -1.0)
                actions = np.where(explores, draws.argmax(axis=-1), actions)
        asked.put_logged(actions)
        return actions

    def _with_logged(self, logp: np.ndarray, asked: Asked) -> np.ndarray:
        """Replaces the policy's log-probabilities of actions that were chosen elsewhere, in place.

        Where the probability is unknown, infinity stands for it: any ratio of the policy's
        probability to it is 0, so that learners give the action no weight.
        """
        for row, _, log_prob in asked.logged:
            known = log_prob if self.corrects_off_policy else None
            logp[row] = np.inf if known is None else known
        return logp


def batch_of(asked: Asked, keys: Sequence[str] | None, states_of: Any) -> dict[str, Any]:
    """Returns rows as a module reads them.

    Args:
        asked: the rows.
        keys: of a Dict observation; all with None.
        states_of: a module whose recurrent states they have; None: they have none.
    """
    batch: dict[str, Any] = {Columns.OBS: _tensors(asked.observations(keys))}
    if states_of is not None:  # RLlib's read sequences, here of one step
        batch = tree.map_structure(lambda rows: rows.unsqueeze(1), batch)
        batch[Columns.STATE_IN] = _tensors(asked.states(functools.partial(_initial, states_of)))
    return batch


def _initial(module: Any) -> Any:
    """Returns the recurrent state of a row that has none yet."""
    return tree.map_structure(np.asarray, module.get_initial_state())


def _tensors(rows: Any) -> Any:
    # Rows may be views of the message that they came in, which torch warns of.
    return tree.map_structure(
        lambda one: torch.from_numpy(one if one.flags.writeable else one.copy()), rows
    )


def _to_numpy(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor
