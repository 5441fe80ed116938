"""Converts between the actions of a seat's agents and the one action that its policy chooses."""

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
    """A team cannot be formed, or data do not fit its spaces: a mistake of the caller."""


class SeatActions(ABC):
    """The actions of a seat with ``n`` agents.

    Attributes:
        reads_masks: whether policies read masks even if no agent observes one.
        is_sent: whether a policy's plain actions are sent to the simulation unchanged.
        reads_log_probs: whether the log-probabilities of logged actions are used.

    Args:
        forms: how the actions of each agent become actions of a network, in the order of rows.

    Raises:
        TeamProblem: a member's actions are not of the kind that the team supports.
    """

    reads_masks: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    reads_log_probs: ClassVar[bool] = False

    def __init__(self, forms: Mapping[str, ActionForm]) -> None:
        self.forms = forms

    @property
    @abstractmethod
    def space(self) -> Space:
        """The space in which the policy acts."""

    @property
    @abstractmethod
    def masks(self) -> np.ndarray:
        """Float32 ``[n, k]``: 1 for the actions, or dimensions of one, that each agent has.

        Raises:
            TypeError: the action space can have no mask.
        """

    @property
    def absent_masks(self) -> np.ndarray:
        """The masks of agents that do not act."""
        return self.masks

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """The shape of the masks that a policy reads."""
        return self.masks.shape

    def write(self, form: ActionForm, actions: np.ndarray) -> Any:
        """Returns rows of the simulation's actions, for a policy's actions of one form."""
        return form.write_rows(actions)

    def read(self, form: ActionForm, rows: Any) -> np.ndarray:
        """Returns a policy's actions for the simulation's actions: undoes `write`."""
        return form.read_rows(rows)


class OwnAction(SeatActions):
    """The actions of a single agent, as its network chooses them."""

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
        # RLlib concatenates the logits of all choices; a mask's numbers are in the same order.
        return (flat_size(self.space),)


class TeamActions(SeatActions):
    """The actions of all members of a team; members with fewer actions lack the last ones."""

    def __init__(self, forms: Mapping[str, ActionForm]) -> None:
        super().__init__(forms)
        self.spaces = {m: counted_from_0(form.space) for m, form in forms.items()}
        self._check()
        self._sizes = [flat_size(space) for space in self.spaces.values()]

    @abstractmethod
    def _check(self) -> None:
        """Raises a `TeamProblem` if a member's actions are not of a kind that the team supports."""

    @cached_property
    def masks(self) -> np.ndarray:
        sizes = np.array(self._sizes)[:, None]
        masks = (np.arange(sizes.max()) < sizes).astype(np.float32)
        masks.setflags(write=False)
        return masks

    @classmethod
    def signature(cls, forms: Mapping[str, ActionForm]) -> tuple[object, str]:
        """Returns a value, equal for teams that can share a policy, and its words for messages."""
        size = max(flat_size(form.space) for form in forms.values())
        return size, f"{size} actions"


class TeamChoices(TeamActions):
    """One of several actions for each member, ``[n]`` int64.

    An absent member can only choose action 0, which is never sent.
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
