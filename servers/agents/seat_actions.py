"""The actions of a seat's agents as the one action that its policy chooses, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from muxrl.protocol.spaces import Discrete, MultiDiscrete, Space
from muxrl.servers.agents.action_forms import ActionForm, counted_from_0
from muxrl.servers.agents.spaces import flat_size


class TeamProblem(ValueError):
    """A team cannot be formed, or data do not fit its spaces. Fix the caller."""


class SeatActions(ABC):
    """Of ``n`` agents.

    Attributes:
        reads_masks: whether there are masks where no agent observes one.
        is_sent: whether plain actions are the simulation's as they are.
        reads_log_probs: whether the log-probability of a logged action means something.

    Args:
        forms: how the actions of each agent become those of a network, in the order of the rows.

    Raises:
        TeamProblem: the actions of a member are not of the kind that the team has.
    """

    reads_masks: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    reads_log_probs: ClassVar[bool] = False

    def __init__(self, forms: Mapping[str, ActionForm]) -> None:
        self.forms = forms

    @property
    @abstractmethod
    def space(self) -> Space:
        """What the policy acts in."""

    @property
    @abstractmethod
    def masks(self) -> np.ndarray:
        """Float32 ``[n, k]``: the actions, or dimensions of one, that each agent has.

        Raises:
            TypeError: no mask is apart from what agents observe.
        """

    @property
    def absent_masks(self) -> np.ndarray:
        """The same of agents that do not act."""
        return self.masks

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Of what a policy reads of masks."""
        return self.masks.shape

    def write(self, form: ActionForm, actions: np.ndarray) -> Any:
        """Returns rows of the simulation's actions for a policy's of some agents of one form."""
        return form.write_rows(actions)

    def read(self, form: ActionForm, rows: Any) -> np.ndarray:
        """Returns a policy's actions for the simulation's: undoes `write`."""
        return form.read_rows(rows)


class OwnAction(SeatActions):
    """Those of one agent: its network's."""

    is_sent = reads_log_probs = True

    def __init__(self, forms: Mapping[str, ActionForm]) -> None:
        super().__init__(forms)
        (self._form,) = forms.values()

    @property
    def space(self) -> Space:
        return self._form.space

    @property
    def masks(self) -> np.ndarray:
        return np.ones((1, *self.mask_shape), np.float32)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        if not isinstance(self.space, Discrete | MultiDiscrete):
            raise TypeError(f"an action mask is for choices among actions, not for {self.space}")
        # RLlib's logits are those of the choices, one after another, as a mask's numbers are.
        return (flat_size(self.space),)


class TeamActions(SeatActions):
    """Those of a team's members, absent ones too. Members with fewer lack the last ones."""

    def __init__(self, forms: Mapping[str, ActionForm]) -> None:
        super().__init__(forms)
        self.spaces = {m: counted_from_0(form.space) for m, form in forms.items()}
        self._check()
        self._sizes = [flat_size(space) for space in self.spaces.values()]

    @abstractmethod
    def _check(self) -> None:
        """Raises a `TeamProblem` if a member's actions are not of the kind that the team has."""

    @cached_property
    def masks(self) -> np.ndarray:
        sizes = np.array(self._sizes)[:, None]
        masks = (np.arange(sizes.max()) < sizes).astype(np.float32)
        masks.setflags(write=False)
        return masks

    @classmethod
    def signature(cls, forms: Mapping[str, ActionForm]) -> tuple[object, str]:
        """Returns what is equal for teams that can share a policy, and that for a message."""
        size = max(flat_size(form.space) for form in forms.values())
        return size, f"{size} actions"


class TeamChoices(TeamActions):
    """One of so many actions for each member, ``[n]`` int64.

    An absent member may choose action 0 only, which is never sent.
    """

    reads_masks = True

    def _check(self) -> None:
        for member, space in self.spaces.items():
            if not isinstance(space, Discrete):
                raise TeamProblem(
                    f"a team cannot do the action space {space} of agent {member!r}: it learns "
                    "one value per discrete action, counted from 0"
                )

    @cached_property
    def space(self) -> MultiDiscrete:
        return MultiDiscrete((max(self._sizes),) * len(self._sizes))

    @cached_property
    def absent_masks(self) -> np.ndarray:
        masks = np.zeros(self.masks.shape, np.float32)
        masks[:, 0] = 1.0
        return masks
