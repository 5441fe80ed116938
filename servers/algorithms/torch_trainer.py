"""The base class of muxrl's own trainers: networks, seeds, a copy that acts, a state to resume."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from muxrl.protocol.dense import UNAVAILABLE, forward
from muxrl.protocol.messages import DenseLayer, PolicyNetwork
from muxrl.protocol.rows import each_array
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.algorithms.networks import joined
from muxrl.servers.algorithms.update import Step, Targets, seeded, update_together
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.interface import LearnsFrom, PolicySpec, Rows
from muxrl.servers.training.skipped_updates import SkippedUpdates, cause_of, largest_of

_MAX_NUMPY_ROWS = 64
"""Most rows for which numpy beats several threads of torch; it is never slower than one thread."""
_MIN_GPU_FLOPS = 1.5e7
"""A pass with less work takes longer on a GPU than on the CPU, as starting its kernels and moving
its rows take a fixed time."""

Ask = Callable[[nn.Module, dict[str, Tensor]], Tensor]
"""Takes a network and the parts of observations; returns its outputs for actions, not masked."""


class TorchTrainer(ABC):
    """A trainer of torch networks; see `muxrl.servers.trainers.interface`.

    Subclasses make the networks and the updates, act and learn. They draw actions from the server's
    generators, and everything for learning from `rng`.

    Attributes:
        policy: the policy to learn.
        settings: an instance of the class ``Settings``, shared with the copy that acts; schedules
            are read at each use.
        net: all networks, including targets.
        steps: the updates, by name.
        rng: random generator for learning.
        gamma: discount factor.
        batch_env_steps: env steps between two calls of `learn`.
        env_steps: env steps recorded so far; the server sets it.
        note_progress: is called with the share of an update that is done; the server sets it.
        skipped: counts unsound updates; the server sets it.
    """

    Settings: ClassVar[type]
    """Class of the settings, which also declares ``seating``, ``learns_from`` and other attributes;
    see `AlgorithmSettings`."""
    acts_while_learning = True
    is_trusted = True
    saved: ClassVar[Mapping[str, str]] = {}
    """Names of further attributes to save in a state, by their keys in it."""
    net: nn.Module
    settings: Any
    targets: Targets | None = None
    """Target networks, if there are any."""

    def __init__(self, policy: PolicySpec, settings: Any) -> None:
        self.policy, self.settings = policy, settings
        self.device = torch.device(policy.device)
        self.env_steps = 0
        self.note_progress: Callable[[float], None] = lambda share: None
        self.learns_from: LearnsFrom = settings.learns_from
        self.skipped = SkippedUpdates(self.learns_from)
        self._num_learned = 0
        self.rng = np.random.default_rng(policy.seed)
        with seeded(policy.seed):
            self.net = self.make_net()
        self.net.to(self.device)
        self.steps: dict[str, Step] = self.make_steps()
        self._in_numpy = self.acting_in_numpy()
        self._input_keys = tuple(key for key in self.acting_keys if key != ACTION_MASK)
        self._reads_obs_alone = self._input_keys == (OBS,)
        self._followed: tuple[Any, list[Tensor], list[Tensor]] = None, [], []
        self._gpu: _OnGpu | None = None

    @abstractmethod
    def make_net(self) -> nn.Module:
        """Returns the networks, on the CPU."""

    @abstractmethod
    def make_steps(self) -> dict[str, Step]:
        """Returns the updates of the networks in `net`, by name."""

    @property
    def gamma(self) -> float:
        """The discount factor, which callbacks may change."""
        return float(self.settings.gamma)

    @property
    def batch_env_steps(self) -> int:
        """Env steps of a batch."""
        return int(self.settings.batch_env_steps)

    # --- the copy that acts -------------------------------------------------------------

    def acting_modules(self) -> Sequence[nn.Module]:
        """Returns the parts of `net` that `act` reads."""
        return [self.net]

    def followed_modules(self) -> Sequence[nn.Module]:
        """Returns the parts of `net` that are copied into the trainer that acts.

        `weights` has only those of `acting_modules`, which decide on actions.
        """
        return self.acting_modules()

    @property
    def input_keys(self) -> tuple[str, ...]:
        """Keys of the parts of an observation that the network reads to act."""
        return (OBS,)

    @property
    def acting_keys(self) -> tuple[str, ...]:
        """Keys of the parts of an observation that `act` reads."""
        return self.input_keys + (ACTION_MASK,) * self.policy.has_masks

    def acting_layers(self) -> list[DenseLayer] | None:
        """Returns the layers from `layer_inputs` to the network's outputs for actions; None: numpy
        cannot compute them."""
        return None

    def layer_inputs(self, rows: Rows) -> np.ndarray:
        """Returns the input of `acting_layers`, ``[n, ..., k]``, from observations."""
        if self._reads_obs_alone:
            return rows.observations
        return joined(rows.parts, self._input_keys)

    def acting_in_numpy(self) -> Callable[..., Any] | None:
        """Returns a function that computes the network's outputs in numpy, with views of the
        parameters, for observations ``[B, ...]``; None: only torch can compute them."""
        layers = self.acting_layers()
        return None if layers is None else partial(forward, layers)

    def begin_acting(self) -> None:
        """Makes this trainer the copy that acts, on the CPU, with large passes on a GPU."""
        self.steps = {}
        if self.device.type != "cpu":
            self._gpu = _OnGpu(self.net, self.device)
            self.net.to("cpu")
            self.device = torch.device("cpu")
            self._in_numpy = self.acting_in_numpy()

    def follow(self, other: TorchTrainer) -> None:
        """Copies the weights of the trainer that learns, to act by them."""
        known, ours, theirs = self._followed
        if known is not other:  # collecting tensors takes longer than copying
            ours, theirs = ([*_tensors(one.followed_modules())] for one in (self, other))
            self._followed = other, ours, theirs
        torch._foreach_copy_(ours, theirs)
        self.env_steps, self.settings = other.env_steps, other.settings
        if self._gpu is not None:
            self._gpu.is_old = True

    def weights(self) -> dict[str, Any]:
        """Returns the parameters that act, by name."""
        return dict(nn.ModuleList(self.acting_modules()).state_dict())

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Loads what `weights` returned, to act with and to go on learning from."""
        nn.ModuleList(self.acting_modules()).load_state_dict(weights)
        if self.targets is not None:  # else they would pull back to the old weights
            self.targets.follow(1.0)
        if self._gpu is not None:
            self._gpu.is_old = True

    def networks(self) -> dict[str, Any]:
        """Returns the parameters of all networks, by name."""
        return dict(self.net.state_dict())

    def set_networks(self, networks: Mapping[str, Any]) -> None:
        """Loads what `networks` returned."""
        self.net.load_state_dict(networks)

    def acting_network(self) -> PolicyNetwork | None:
        """Returns the layers behind `act`, for clients and pools; None: they are not plain."""
        layers = self.acting_layers()
        return None if layers is None else PolicyNetwork([*layers])

    def asked_of_net(self, rows: Rows, ask: Ask) -> np.ndarray:
        """Returns the network's outputs for actions, ``[n, ..., k]``; the lowest float32 for
        unavailable actions.

        Args:
            rows: the rows to act on.
            ask: computes the outputs in torch.
        """
        answered = None if self._gpu is None else self._gpu.asked(ask, self.net, rows.parts)
        in_numpy = self._in_numpy
        if (
            answered is None
            and in_numpy
            and (len(rows) <= _MAX_NUMPY_ROWS or torch.get_num_threads() == 1)
        ):
            read = self.layer_inputs(rows)
            if read.ndim == 2:
                answered = in_numpy(read)
            else:  # a team's rows have an axis of members
                answered = in_numpy(read.reshape(-1, read.shape[-1]))
                answered = answered.reshape(*read.shape[:-1], -1)
        elif answered is None:
            with torch.inference_mode():
                answered = ask(self.net, tensors_of(rows.parts)).numpy()
        if rows.masks is not None:
            answered = np.where(rows.masks > 0, answered, UNAVAILABLE)
        return answered

    # --- learning -----------------------------------------------------------------------

    def on_device(self, arrays: Any) -> Any:
        """Returns arrays, perhaps in dicts, as tensors on the device."""
        return each_array(lambda one: torch.from_numpy(one).to(self.device), arrays)

    def update(self, losses: Mapping[str, Tensor], learned_from: Sequence[Any]) -> None:
        """Makes the updates of losses that were computed with the same weights.

        If one of them is not sound, nothing changes.

        Args:
            losses: scalars, by name of the update in `steps`.
            learned_from: trajectories, or batches; the message for an unsound update names their
                largest number.

        Raises:
            LearnerDiverged: too many updates in a row were not sound.
        """
        policy_id = self.policy.policy_id
        what = update_together([(self.steps[name], loss) for name, loss in losses.items()])
        if not what:
            self.skipped.end_row(policy_id)
            return

        def why() -> str:
            found = (number for one in learned_from for number in _largest_in(one))
            return f"{what}; {cause_of(found)}"

        self.skipped.add(policy_id, self._num_learned, why)

    def begin_learning(self) -> None:
        """Moves schedules to the present env steps, before a batch.

        It also counts the batch, so that all its skipped updates count once.
        """
        self._num_learned += 1
        for step in self.steps.values():
            step.follow(self.env_steps)

    # --- state --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns networks, optimizers, generator, counts and the attributes in `saved`."""
        return {
            "net": dict(self.net.state_dict()),
            "steps": {name: step.optimizer.gathered() for name, step in self.steps.items()},
            "rng": self.rng.bit_generator.state,
            "env_steps": self.env_steps,
            "num_learned": self._num_learned,
            "more": {name: _kept(getattr(self, where)) for name, where in self.saved.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Loads what `state` returned; settings that have changed since take effect."""
        self.net.load_state_dict(state["net"])
        for name, step in self.steps.items():
            step.optimizer.load(state["steps"][name])
        self.rng.bit_generator.state = state["rng"]
        self.env_steps, self._num_learned = state["env_steps"], state["num_learned"]
        for name, where in self.saved.items():
            one, its = getattr(self, where), state["more"][name]
            if isinstance(one, nn.Module):
                one.load_state_dict(its)
            elif hasattr(one, "set_state"):
                one.set_state(its)
            else:
                setattr(self, where, its)


def _kept(one: Any) -> Any:
    """Returns an attribute's value for a state: its own state, if it has one."""
    if isinstance(one, nn.Module):
        return dict(one.state_dict())
    return one.get_state() if hasattr(one, "get_state") else one


class Asked(nn.Module):
    """Wraps a network and a way to call it in a module, for files.

    Args:
        net: the network.
        ask: takes the network and the parts of observations; returns the outputs.
    """

    def __init__(self, net: nn.Module, ask: Callable[..., Any]) -> None:
        super().__init__()
        self.net = net
        self._ask = ask

    def forward(self, *seen: Any) -> Any:
        return self._ask(self.net, *seen)


class _OnGpu:
    """A copy of networks on a GPU, for passes so large that they are faster there."""

    def __init__(self, net: nn.Module, device: torch.device) -> None:
        self._net = copy.deepcopy(net)
        self._device = device
        self._flops = 0.0  # of one row
        self.is_old = False
        """Whether the network on the CPU has changed since the last copy."""

    def asked(self, ask: Ask, net: nn.Module, parts: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Returns the outputs for rows, computed on the GPU; None: the pass is too small for it."""
        num = len(next(iter(parts.values())))
        if not self._flops:
            with torch.inference_mode(), FlopCounterMode(display=False) as counter:
                ask(net, tensors_of(parts))
            # The counter ignores fused LSTMs.
            weights = sum(2 * one.numel() for one in net.parameters() if one.dim() > 1)
            self._flops = max(counter.get_total_flops() / num, weights)
        if self._flops * num < _MIN_GPU_FLOPS:
            return None
        if self.is_old:
            self._net.load_state_dict(net.state_dict())
            self.is_old = False
        with torch.inference_mode():
            moved = {key: part.to(self._device) for key, part in tensors_of(parts).items()}
            return ask(self._net, moved).cpu().numpy()


def _tensors(modules: Sequence[nn.Module]) -> Iterator[Tensor]:
    for module in modules:
        yield from module.state_dict().values()


def tensor_of(rows: np.ndarray) -> Tensor:
    """Returns rows as a tensor, which shares their memory if that is writeable."""
    # Rows may be read-only views of a message, about which torch would warn.
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())


def tensors_of(parts: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Returns parts of rows as tensors; see `tensor_of`."""
    return {key: tensor_of(part) for key, part in parts.items()}


def _largest_in(one: Any) -> Iterator[tuple[float, str]]:
    if isinstance(one, Trajectory):
        whose = f" of agent {one.seat_id!r} in episode {one.episode_id}"
        yield from largest_of(one.rewards, f"the reward{whose}")
        yield from largest_of(one.observations, f"the observation{whose}")
    else:
        for key, what in (("rewards", "the reward"), (OBS, "the observation")):
            yield from largest_of(one.get(key), what)
