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
from muxrl.servers.agents.log_probs import log_probs_of
from muxrl.servers.agents.seats import SeatAction, SeatRequest, put_logged
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.episodes.passes import Pass, by_step, passes_of, passes_of_rows
from muxrl.servers.episodes.rows import Chosen, RowStep
from muxrl.servers.rllib.asked import (
    Answer,
    AnyAsked,
    Asked,
    AskedInRows,
    Extras,
    by_row,
)
from muxrl.servers.rllib.numpy_mlp import MAX_BATCH, NumpyPolicy, numpy_policy
from muxrl.servers.rllib.numpy_values import Values, numpy_values
from muxrl.servers.rllib.on_gpu import ModulesOnGpu

T = TypeVar("T")
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


class Inference:
    """Chooses actions with the newest weights; see `muxrl.servers.training.policies.Acting`.

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
        self._swap = threading.Lock()
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
        with self._swap:
            self._live, self._spare = self._spare, self._live
            self._num_loads += 1
            self.weights_seq_no = weights_seq_no

    def keep_untrained(self) -> None:
        """Keeps the weights in use as those that seats act with where a step has them untrained."""
        self.untrained = tree.map_structure(np.array, dict(self._live.modules.get_state()))

    def read(self, read: Callable[[], T]) -> T:
        """Returns what `read` returns of `modules` and `weights_seq_no`; none are loaded then."""
        with self._swap:
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

    def act(self, steps: Sequence[PendingStep]) -> tuple[list[list[SeatAction]], int]:
        """Computes the actions of many steps.

        Recurrent state is only read and returned: if one policy raises, none has advanced.
        """
        passes, order = passes_of(steps)
        chosen: dict[Pass, list[SeatAction]] = {}
        with self._swap:
            for key, batch in passes.items():
                asked = Asked(key, batch)
                act = self._act_untrained if asked.is_untrained else self._act_as_asked
                chosen[key] = by_row(act(asked))
            weights_seq_no = self.weights_seq_no
        return by_step(chosen, order, steps), weights_seq_no

    def act_rows(self, steps: Sequence[RowStep]) -> list[tuple[list[Chosen], int]]:
        """Computes the actions of steps in rows; see `ActingOnRows`."""
        chosen: list[list[Chosen]] = [[_NOT_YET] * len(s.benches.benches) for s in steps]
        with self._swap:
            for key, places in passes_of_rows(steps).items():
                asked = AskedInRows(key, [(steps[i], j) for i, j in places])
                answers = asked.split(self._act_as_asked(asked))
                for (i, j), answer in zip(places, answers, strict=True):
                    chosen[i][j] = answer
            weights_seq_no = self.weights_seq_no
        return [(of_step, weights_seq_no) for of_step in chosen]

    def noise(self, shape: tuple[int, ...], *, is_training: bool) -> np.ndarray:
        """Draws ``noise`` for Gumbel-max: the action is the argmax of logits - log(noise).

        It is the same draw as torch's Categorical at a sixth of its cost.
        """
        rng = self._rng if is_training else self._evaluation_rng
        return rng.standard_exponential(shape)

    def act_greedily(self, policy_id: str, requests: list[SeatRequest]) -> list[SeatAction]:
        """Answers requests to one policy without exploration, outside of any episode."""
        with self._swap:
            return by_row(self._act(Asked((policy_id, False, False, False), requests)))

    def _act_as_asked(self, asked: AnyAsked) -> Answer:
        if asked.should_explore and not asked.is_training:
            return self._act_in_evaluation(asked)
        if self._gpu is None or asked.is_untrained:
            return self._act(asked)
        policy_id = asked.policy_id
        batch = functools.partial(self._batch, asked)
        if not self._gpu.is_worth(policy_id, len(asked), self._live.modules[policy_id], batch):
            return self._act(asked)
        on_gpu = self._gpu.module(policy_id, self._live.modules, self._num_loads)
        with torch.inference_mode():
            return self._forward(on_gpu, asked)

    def _act_untrained(self, asked: Asked) -> Answer:
        """Acts with the kept weights, in the place of the live copy; called under the lock."""
        if self._untrained_copy is None:
            assert self.untrained is not None, "the store refuses what is not kept"
            with TORCH_DRAWS, torch.random.fork_rng(devices=[]):  # first weights are thrown away
                self._untrained_copy = _Copy(self._build())
            self._untrained_copy.modules.set_state(self.untrained)
        live, self._live = self._live, self._untrained_copy
        try:
            return self._act_as_asked(asked)
        finally:
            self._live = live

    def _act_in_evaluation(self, asked: AnyAsked) -> Answer:
        """Explores with random numbers of its own, so that training draws the same without it.

        Torch modules and distributions draw from the global generator, as the learning thread does.
        An update that runs at the same time may get some of evaluation's numbers.
        """
        live, policy_id = self._live, asked.policy_id
        draws_in_numpy = live.acts_in_numpy[policy_id] or (
            (live.numpy[policy_id] or live.values[policy_id])
            and isinstance(asked.action_space, Discrete)
        )
        if draws_in_numpy:
            return self._act(asked)
        with TORCH_DRAWS, torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._evaluation_torch.get_state())
            try:
                return self._act(asked)
            finally:
                self._evaluation_torch.set_state(torch.get_rng_state())

    def _act(self, asked: AnyAsked) -> Answer:
        policy_id = asked.policy_id
        if self._live.acts_in_numpy[policy_id]:
            return self._act_in_numpy(asked)
        values_of = self._live.values[policy_id]
        forward = self._live.numpy[policy_id] or values_of
        is_discrete = isinstance(asked.action_space, Discrete)
        is_large = len(asked) > MAX_BATCH and torch.get_num_threads() > 1
        if forward is None or not is_discrete or is_large:
            with torch.inference_mode():
                return self._forward(self._live.modules[policy_id], asked)
        logits = forward(asked.observations(self._live.acting_keys[policy_id]))
        if values_of is not None:
            epsilon = self.epsilon_of(policy_id) if asked.should_explore else None
            return Answer(self._epsilon_greedy(logits, epsilon or 0.0, asked), {})
        return Answer(*self._categorical(logits, asked))

    def _act_in_numpy(self, asked: AnyAsked) -> Answer:
        """For modules that have a method ``act_in_numpy``; they have ``acting_keys``, too."""
        module: Any = self._live.modules[asked.policy_id]
        obs = asked.observations(self._live.acting_keys[asked.policy_id] or ())
        state = asked.states(module) if module.is_stateful() else None
        t = self.num_env_steps_sampled if asked.should_explore else None
        rng = self._rng if asked.is_training else self._evaluation_rng
        actions, state = module.act_in_numpy(obs, state, t, rng)
        put_logged(actions, asked.requests)
        return Answer(actions, {}, state)

    def _batch(self, asked: AnyAsked) -> dict[str, Any]:
        """Returns what a module reads; a critic's part of the observations is not needed."""
        policy_id = asked.policy_id
        states_of = self._live.modules[policy_id] if self._live.is_stateful[policy_id] else None
        return batch_of(asked, self._live.acting_keys[policy_id], states_of)

    def _forward(self, module: Any, asked: AnyAsked) -> Answer:
        """Acts in torch: `forward_exploration` or `forward_inference`."""
        batch = self._batch(asked)
        if asked.should_explore:
            outputs = module.forward_exploration(batch, t=self.num_env_steps_sampled)
        else:
            outputs = module.forward_inference(batch)
        state = tree.map_structure(_to_numpy, outputs.pop(Columns.STATE_OUT, None))
        if self._live.is_stateful[asked.policy_id]:
            outputs = tree.map_structure(lambda rows: rows.squeeze(1), outputs)
        extras: Extras = {}
        if Columns.ACTIONS in outputs:
            actions = _to_numpy(outputs[Columns.ACTIONS])
            put_logged(actions, asked.requests)
        elif isinstance(asked.action_space, Discrete):
            logits = _to_numpy(outputs[Columns.ACTION_DIST_INPUTS])
            actions, extras = self._categorical(logits, asked)
        else:
            inputs = outputs[Columns.ACTION_DIST_INPUTS]
            actions, extras = self._from_distribution(module, inputs, asked)
        if state is not None:  # RLlib's learners begin sequences with recorded states
            extras[Columns.STATE_OUT] = state
        return Answer(actions, extras, state)

    def _from_distribution(
        self, module: Any, inputs: torch.Tensor, asked: AnyAsked
    ) -> tuple[Any, Extras]:
        distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
        drawn_from = distribution if asked.should_explore else distribution.to_deterministic()
        actions = tree.map_structure(_to_numpy, drawn_from.sample())
        put_logged(actions, asked.requests)
        if not self.needs_log_probabilities:
            return actions, {}
        extras: Extras = {Columns.ACTION_DIST_INPUTS: _to_numpy(inputs)}
        if asked.is_training:  # nobody reads them of an evaluation
            logp = _to_numpy(distribution.logp(torch.from_numpy(np.asarray(actions))))
            extras[Columns.ACTION_LOGP] = self._with_logged(logp, asked.requests)
        return actions, extras

    def _categorical(self, logits: np.ndarray, asked: AnyAsked) -> tuple[np.ndarray, Extras]:
        if asked.should_explore:
            noise = self.noise(logits.shape, is_training=asked.is_training)
            actions = (logits - np.log(noise)).argmax(axis=-1)
        else:
            actions = logits.argmax(axis=-1)
        put_logged(actions, asked.requests)
        if not self.needs_log_probabilities:
            return actions, {}
        extras: Extras = {Columns.ACTION_DIST_INPUTS: logits}
        if asked.is_training:  # nobody reads them of an evaluation
            logp = log_probs_of(logits)[np.arange(len(actions)), actions].astype(np.float32)
            extras[Columns.ACTION_LOGP] = self._with_logged(logp, asked.requests)
        return actions, extras

    def _epsilon_greedy(self, values: np.ndarray, epsilon: float, asked: AnyAsked) -> np.ndarray:
        """Returns the best available actions, and any available one with probability epsilon."""
        actions = values.argmax(axis=-1)
        if epsilon > 0.0:
            rng = self._rng if asked.is_training else self._evaluation_rng
            explores = rng.random(len(values)) < epsilon
            if explores.any():
                # The largest of independent uniforms is a uniform draw.
                draws = np.where(values > -np.inf, rng.random(values.shape), -1.0)
                actions = np.where(explores, draws.argmax(axis=-1), actions)
        put_logged(actions, asked.requests)
        return actions

    def _with_logged(self, logp: np.ndarray, requests: Sequence[SeatRequest]) -> np.ndarray:
        """Replaces the policy's log-probabilities of actions that were chosen elsewhere, in place.

        Where the probability is unknown, infinity stands for it: any ratio of the policy's
        probability to it is 0, so that learners give the action no weight.
        """
        for i, request in enumerate(requests):
            if request.logged_action is not None:
                known = request.logged_log_prob if self.corrects_off_policy else None
                logp[i] = np.inf if known is None else known
        return logp


_NOT_YET: Any = None


def batch_of(asked: AnyAsked, keys: Sequence[str] | None, states_of: Any) -> dict[str, Any]:
    """Returns rows as a module reads them.

    Args:
        asked: the rows.
        keys: of a Dict observation; all with None.
        states_of: a module whose recurrent states they have; None: they have none.
    """
    batch: dict[str, Any] = {Columns.OBS: _tensors(asked.observations(keys))}
    if states_of is not None:  # RLlib's read sequences, here of one step
        batch = tree.map_structure(lambda rows: rows.unsqueeze(1), batch)
        batch[Columns.STATE_IN] = _tensors(asked.states(states_of))
    return batch


def _tensors(rows: Any) -> Any:
    # Rows may be views of the message that they came in, which torch warns of.
    return tree.map_structure(
        lambda one: torch.from_numpy(one if one.flags.writeable else one.copy()), rows
    )


def _to_numpy(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor
