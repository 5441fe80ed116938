"""What is known of one fixed algorithm before it acts: its settings, and what is wrong with them.

Everything that acts is imported when it is needed, so that the names cost nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from muxrl.servers.algorithms.settings import AlgorithmProblem, check_kind, suggestion
from muxrl.servers.checkpoint import Checkpoint
from muxrl.servers.config import ServerPlan

if TYPE_CHECKING:
    from muxrl.servers.fixed_policies.policies import FixedPolicies


class FixedAlgorithm(ABC):
    """One algorithm that does not learn, with a user's settings.

    Attributes:
        name: as users write it.
        summary: one line for lists.
        defaults: every setting a user may give, with its default.
        settings: what was given, the defaults added, paths absolute.
        needs_teams: whether its agents must be grouped into teams.
        is_central, follows_masks: see `ServerPlan`.

    Args:
        settings: what was given.
        model: network settings, which nothing that does not learn has.

    Raises:
        AlgorithmProblem: an unknown name, or a value that is not one.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}
    default_while_learning: ClassVar[Literal["serve"]] = "serve"

    def __init__(self, settings: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            if name not in self.defaults:
                raise AlgorithmProblem(
                    f"{self.name} has no setting {name!r}"
                    + (suggestion(name, self.defaults) if self.defaults else "; it has none")
                )
            check_kind(f"{self.name}'s setting {name!r}", value, self.defaults[name])
        if model:
            raise AlgorithmProblem(
                f"{self.name} does not learn and makes no network of its own: leave out model "
                f"({', '.join(model)})"
            )
        self.settings: dict[str, Any] = {**self.defaults, **settings}
        self.needs_teams = False
        self.is_central = False
        self.follows_masks = False

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        """Yields a sentence for each reason why it cannot act for these agents."""
        yield from ()

    @abstractmethod
    def make(self, plan: ServerPlan) -> FixedPolicies:
        """Returns what acts on a server; only for a plan without problems."""


class RandomAlgorithm(FixedAlgorithm):
    """Every available action is equally likely."""

    name = "RANDOM"
    summary = "uniform over the available actions"

    def make(self, plan: ServerPlan) -> FixedPolicies:
        from muxrl.servers.fixed_policies.plain import PlainActing, plain_seats
        from muxrl.servers.fixed_policies.policies import FixedPolicies
        from muxrl.servers.fixed_policies.uniform import Uniform

        return FixedPolicies(plan, plain_seats(plan), PlainActing(plan, Uniform(plan)))


class ScriptedAlgorithm(FixedAlgorithm):
    """A function of the user's decides; see `muxrl.servers.fixed_policies.scripted`."""

    name = "SCRIPTED"
    summary = "a Python function of your own"
    defaults: ClassVar[Mapping[str, Any]] = {"policy": "", "kwargs": {}}

    def __init__(self, settings: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        from muxrl.servers.fixed_policies.scripted import find_script

        super().__init__(settings, model)
        find_script(self.settings["policy"])

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        from muxrl.servers.fixed_policies.scripted import Script

        script = Script(plan, self.settings)
        for agent_id in plan.agents:
            try:
                script(agent_id, 0)
            except AlgorithmProblem as error:
                yield str(error)
                return  # the others' would be the same

    def make(self, plan: ServerPlan) -> FixedPolicies:
        from muxrl.servers.fixed_policies.plain import PlainActing, plain_seats
        from muxrl.servers.fixed_policies.policies import FixedPolicies
        from muxrl.servers.fixed_policies.scripted import Script

        acting = PlainActing(plan, Script(plan, self.settings))
        return FixedPolicies(plan, plain_seats(plan), acting)


class FrozenAlgorithm(FixedAlgorithm):
    """The policies of a checkpoint; see `muxrl.servers.fixed_policies.frozen`."""

    name = "FROZEN"
    summary = "the policies of a checkpoint, as they were saved"
    defaults: ClassVar[Mapping[str, Any]] = {
        "checkpoint": "",
        "policies": {},
        "should_explore": False,
    }

    def __init__(self, settings: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        from muxrl.servers.fixed_policies.frozen import FrozenModules

        super().__init__(settings, model)
        path = self.settings["checkpoint"]
        if not isinstance(path, str) or not path:
            raise AlgorithmProblem(
                f"{self.name} needs the setting 'checkpoint', the folder of one, such as "
                "runs/NAME/checkpoints/SERVER/last"
            )
        checkpoint = Checkpoint.open(Path(path))
        # Absolute, since a server's process may run in another folder than the command did.
        self.settings["checkpoint"] = str(checkpoint.path)
        self._modules = FrozenModules(checkpoint, self.settings["policies"])
        self.needs_teams = self._modules.are_of_teams
        self.is_central = self._modules.are_central
        self.follows_masks = self._modules.follow_masks

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        return self._modules.find_problems(plan)

    def make(self, plan: ServerPlan) -> FixedPolicies:
        from muxrl.servers.fixed_policies.frozen import FrozenActing
        from muxrl.servers.fixed_policies.policies import FixedPolicies
        from muxrl.servers.seats import make_seats

        acting = FrozenActing(plan, self._modules, should_explore=self.settings["should_explore"])
        return FixedPolicies(plan, make_seats(plan), acting)


FIXED: tuple[type[FixedAlgorithm], ...] = (RandomAlgorithm, ScriptedAlgorithm, FrozenAlgorithm)


def find_fixed(name: str) -> type[FixedAlgorithm] | None:
    """Returns the fixed algorithm of that name, in upper or lower case; None: it is another."""
    return next((fixed for fixed in FIXED if fixed.name.lower() == name.lower()), None)
