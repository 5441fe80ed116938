"""What is known of one fixed algorithm before it acts: its settings, and what is wrong with them.

Everything that acts is imported when a server is made, so that the names cost nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers.algorithms.settings import AlgorithmProblem, check_kind, did_you_mean
from servers.checkpoint import Checkpoint
from servers.config import ServerPlan

if TYPE_CHECKING:
    from servers.fixed_policies.policies import FixedPolicies


class FixedAlgorithm(ABC):
    """One algorithm that does not learn.

    Attributes:
        name: as users write it.
        summary: one line for lists.
    """

    name: str
    summary: str

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Every setting a user may give, with its default."""

    def read(self, settings: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a user's settings, the defaults added.

        Raises:
            AlgorithmProblem: an unknown name, a value that is not one, or network settings, which
                nothing that does not learn has.
        """
        known = self.settings()
        for name, value in settings.items():
            if name not in known:
                raise AlgorithmProblem(
                    f"{self.name} has no setting {name!r}"
                    + (did_you_mean(name, known) if known else "; it has none at all")
                )
            check_kind(f"{self.name}'s setting {name!r}", value, known[name])
        if model:
            raise AlgorithmProblem(
                f"{self.name} does not learn and makes no network: leave out model "
                f"({', '.join(model)})"
            )
        return {**known, **settings}

    def needs_teams(self, settings: Mapping[str, Any]) -> bool:
        """Whether its agents must be grouped into teams; `settings` are what `read` returned."""
        return False

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        """Yields a sentence for each reason why it cannot act for these agents."""
        yield from ()

    @abstractmethod
    def make(self, plan: ServerPlan) -> FixedPolicies:
        """Returns what acts on a server.

        Raises:
            AlgorithmProblem: it cannot, see `find_problems`.
        """


class RandomAlgorithm(FixedAlgorithm):
    """Every available action is equally likely."""

    name = "RANDOM"
    summary = "uniform over the available actions"

    def settings(self) -> dict[str, Any]:
        return {}

    def make(self, plan: ServerPlan) -> FixedPolicies:
        from servers.fixed_policies.plain import PlainActing, plain_seats
        from servers.fixed_policies.policies import FixedPolicies
        from servers.fixed_policies.uniform import Uniform

        return FixedPolicies(plan, plain_seats(plan), PlainActing(plan, Uniform(plan)))


class ScriptedAlgorithm(FixedAlgorithm):
    """A function of the user's decides; see `servers.fixed_policies.scripted`."""

    name = "SCRIPTED"
    summary = "a Python function of your own"

    def settings(self) -> dict[str, Any]:
        return {"policy": "", "kwargs": {}}

    def read(self, settings: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
        from servers.fixed_policies.scripted import find_script

        complete = super().read(settings, model)
        find_script(complete["policy"])
        return complete

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        from servers.fixed_policies.scripted import Script

        script = Script(plan)
        for agent_id in plan.agents:
            try:
                script(agent_id, 0)
            except AlgorithmProblem as error:
                yield str(error)

    def make(self, plan: ServerPlan) -> FixedPolicies:
        from servers.fixed_policies.plain import PlainActing, plain_seats
        from servers.fixed_policies.policies import FixedPolicies
        from servers.fixed_policies.scripted import Script

        return FixedPolicies(plan, plain_seats(plan), PlainActing(plan, Script(plan)))


class FrozenAlgorithm(FixedAlgorithm):
    """The policies of a checkpoint; see `servers.fixed_policies.frozen`."""

    name = "FROZEN"
    summary = "the policies of a checkpoint, as they were saved"

    def settings(self) -> dict[str, Any]:
        return {"checkpoint": "", "policies": {}, "should_explore": False}

    def read(self, settings: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
        complete = super().read(settings, model)
        if not isinstance(complete["checkpoint"], str) or not complete["checkpoint"]:
            raise AlgorithmProblem(
                f"{self.name} needs the setting 'checkpoint', the folder of one, such as "
                "runs/NAME/checkpoints/SERVER/last"
            )
        # Absolute, since a server's process may run in another folder than the command did.
        path = Checkpoint.open(Path(complete["checkpoint"])).path
        return {**complete, "checkpoint": str(path)}

    def needs_teams(self, settings: Mapping[str, Any]) -> bool:
        from servers.fixed_policies.frozen import is_of_teams

        return is_of_teams(settings)

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        from servers.fixed_policies.frozen import find_mismatches, frozen_seats, load_policies

        try:
            modules = load_policies(plan)
            seats = frozen_seats(plan, modules)
        except ValueError as error:  # of the seats, too: spaces that no team can have
            yield str(error)
            return
        yield from find_mismatches(seats, modules)

    def make(self, plan: ServerPlan) -> FixedPolicies:
        from servers.fixed_policies.frozen import FrozenActing, frozen_seats, load_policies
        from servers.fixed_policies.policies import FixedPolicies

        for problem in self.find_problems(plan):
            raise AlgorithmProblem(problem)
        return FixedPolicies(plan, frozen_seats(plan, load_policies(plan)), FrozenActing(plan))


FIXED: tuple[FixedAlgorithm, ...] = (RandomAlgorithm(), ScriptedAlgorithm(), FrozenAlgorithm())


def find_fixed(name: str) -> FixedAlgorithm | None:
    """Returns the fixed algorithm of that name, in upper or lower case; None: it is another."""
    return next((entry for entry in FIXED if entry.name.lower() == name.lower()), None)
