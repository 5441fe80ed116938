"""The seat of a team whose members' actions are vectors that a critic reads.

======================  ================================  =========================================
observation key         shape, dtype                      meaning
======================  ================================  =========================================
``obs``                 ``[n, obs_dim]`` float32          one row per member, zero-padded
``state``               ``[state_dim]`` float32           what the critics may see while training
``alive``               ``[n]`` float32                   1 = the member is asked to act now
``action_mask``         ``[n, action_dim]`` float32       only if a member observes one: 1 = the
                                                          member may choose this action
======================  ================================  =========================================

A team's action is ``[n, action_dim]`` float32: for a member with continuous actions numbers in
-1..1, which are scaled to its bounds, for a member with Discrete actions a one-hot row. A member
with fewer dimensions than others lacks the last ones. A network knows this from the bounds of the
team's action space: they are -1 and 1, 0 and 1 in a one-hot row, and 0 in a lacking dimension. The
mask of a member that is absent or observes none is 1 in the dimensions that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from muxrl.protocol.spaces import Box, Discrete, box_within
from muxrl.servers.agents.action_forms import ActionForm, action_form
from muxrl.servers.agents.inputs import Alive, Mask, Own, State
from muxrl.servers.agents.seat_actions import TeamActions, TeamProblem
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.spaces import flat_size


class TeamVectors(TeamActions):
    """Vectors for the members' actions, ``[n, action_dim]``: of one-dimensional Boxes or Discrete.

    Teams are alike if the members of the same row have action spaces of the same class and size.
    """

    def _check(self) -> None:
        for member, space in self.spaces.items():
            is_flat_box = isinstance(space, Box) and len(space.shape) == 1
            if isinstance(space, Discrete) or (is_flat_box and action_form(space).has_bounds):
                continue
            raise TeamProblem(
                f"this team cannot do the action space {space} of agent {member!r}: it takes a "
                "one-dimensional Box with bounds, or Discrete counted from 0"
            )

    @cached_property
    def space(self) -> Box:
        high = self.masks
        is_box = [not isinstance(space, Discrete) for space in self.spaces.values()]
        return box_within((-high * np.array(is_box)[:, None]).astype(np.float32), high)

    @classmethod
    def signature(cls, forms: Mapping[str, ActionForm]) -> tuple[object, str]:
        size, _ = super().signature(forms)
        spaces = [form.space for form in forms.values()]
        kinds = tuple((type(space).__name__, flat_size(space)) for space in spaces)
        return kinds, f"actions of {size}"

    def read(self, form: ActionForm, rows: Any) -> np.ndarray:
        own = form.read_rows(rows)
        if form.choices:  # one-hot
            return np.eye(self.masks.shape[1], dtype=np.float32)[own]
        vectors = np.zeros((*own.shape[:2], self.masks.shape[1]), np.float32)
        vectors[..., : own.shape[-1]] = own
        return vectors

    def write(self, form: ActionForm, actions: np.ndarray) -> Any:
        own = actions[..., : flat_size(form.space)]
        return form.write_rows(own.argmax(-1) if form.choices else own)


VECTOR_TEAMS = Seating(
    unit="team",
    inputs=(Own, State, Alive, Mask),
    actions=TeamVectors,
    reward="team",
    is_joint=True,
    one_choice=True,
)
