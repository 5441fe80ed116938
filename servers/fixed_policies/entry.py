"""Fixed algorithms before they act: their settings, and what is wrong with them.

The code that acts with a checkpoint is imported when it is needed, since it loads torch or RLlib.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from muxrl.servers.acting import Acting
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import ServerConfig, ServerPlan
from muxrl.servers.fixed_names import FROZEN, POOL, RANDOM, SCRIPTED
from muxrl.servers.fixed_policies.meta_game import KINDS
from muxrl.servers.fixed_policies.plain import (
    RAW,
    RAW_POOL,
    PlainActing,
    find_script,
    scripted,
    uniform,
)
from muxrl.servers.fixed_policies.policies import FixedPolicies
from muxrl.servers.fixed_policies.pool import Pool, PoolPolicies
from muxrl.servers.setting_values import (
    AlgorithmProblem,
    check_kind,
    kind_of,
    read_as,
    suggestion,
)
from muxrl.servers.trainers.algorithm import Algorithm
from muxrl.servers.training.policies import ServerProblem


class FixedAlgorithm(Algorithm):
    """An algorithm that does not learn, with a user's settings.

    Attributes:
        name: as users write it.
        summary: one line for lists.
        defaults: every setting that a user may give, with its default.
        given: the given settings, with defaults added and paths made absolute.

    Args:
        settings: the given settings; None: only things that do not depend on them are needed.
        model: network settings, which must be empty.

    Raises:
        AlgorithmProblem: a setting is unknown, its value is of the wrong kind, or there are network
            settings.
    """

    name = ""
    summary = ""
    defaults: ClassVar[Mapping[str, Any]] = {}
    learns = False
    learns_from = "-"
    gives_log_probs = False
    samples_actions = False
    space_check = None
    policies: ClassVar[Callable[..., FixedPolicies]] = FixedPolicies

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if settings is None:
            return
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
        self.given: dict[str, Any] = {**self.defaults, **settings}
        self._read_settings()

    def _read_settings(self) -> None:
        """Checks the values of settings, and makes everything that does not depend on a plan."""
        return

    @property
    def seating(self) -> Seating:
        """How agents are seated; see `Seating`."""
        return RAW

    def configured(self, config: ServerConfig | ServerPlan) -> Self:
        return type(self)(config.settings, config.model)

    def settings(self) -> dict[str, Any]:
        return dict(self.defaults)

    def kinds(self) -> dict[str, Any]:
        return {name: kind_of("", default) for name, default in self.defaults.items()}

    def complete_settings(self, config: ServerConfig) -> dict[str, Any]:
        return self.given

    def find_config_problems(self, config: ServerConfig) -> Iterator[str]:
        if config.while_learning == "wait":
            yield (f"{self.name} does not learn, so nobody waits for it; leave out while_learning")
        if config.rl_module:
            yield f"{self.name} has no networks of its own; leave out rl_module"
        for name in ("normalize_observations", "normalize_rewards"):
            if getattr(config, name):
                yield (
                    f"{self.name} does not learn, so it makes no statistics; leave out {name} "
                    "(FROZEN reads observations as in its checkpoint's training)"
                )
        if config.frame_stack != 1:
            yield (
                f"{self.name} has no networks that frames could be stacked for; leave out "
                "frame_stack (FROZEN stacks them as in its checkpoint's training)"
            )

    def find_problems(self, plan: ServerPlan, others: Sequence[Algorithm] = ()) -> Iterator[str]:
        yield from ()

    def make(self, plan: ServerPlan) -> FixedPolicies:
        """Returns the policies that serve a plan's agents; only for a plan without problems.

        Raises:
            ServerProblem: the policies cannot be loaded after all.
        """
        try:
            acting, seats = self.make_acting(plan), self.make_seats(plan)
        except AlgorithmProblem as problem:
            raise ServerProblem(f"server {plan.server_id!r}: {problem}") from problem
        return self.policies(plan, seats, acting)

    def make_seats(self, plan: ServerPlan) -> dict[str, Seat]:
        """Returns the seats of a plan's agents, by id.

        Raises:
            AlgorithmProblem: a checkpoint that they need cannot be loaded.
        """
        return self.seating.make_seats(plan)

    @abstractmethod
    def make_acting(self, plan: ServerPlan) -> Acting:
        """Returns the `Acting` that chooses the actions.

        Raises:
            AlgorithmProblem: it cannot be loaded after all.
        """


class RandomAlgorithm(FixedAlgorithm):
    """Every available action is equally likely."""

    name = RANDOM
    summary = "uniform over the available actions"

    def make_acting(self, plan: ServerPlan) -> Acting:
        return PlainActing(plan, uniform(plan))


class ScriptedAlgorithm(FixedAlgorithm):
    """A function of the user's decides; see `muxrl.servers.fixed_policies.plain.scripted`."""

    name = SCRIPTED
    summary = "a Python function of your own"
    defaults: ClassVar[Mapping[str, Any]] = {"policy": "", "kwargs": {}}

    def _read_settings(self) -> None:
        find_script(self.given["policy"])

    def find_problems(self, plan: ServerPlan, others: Sequence[Algorithm] = ()) -> Iterator[str]:
        make_policy = scripted(plan, self.given)
        for agent_id in plan.agents:
            try:
                make_policy(agent_id, 0)
            except AlgorithmProblem as error:
                yield str(error)
                return  # the other agents' problems would be the same

    def make_acting(self, plan: ServerPlan) -> Acting:
        return PlainActing(plan, scripted(plan, self.given))


class FrozenAlgorithm(FixedAlgorithm):
    """The policies of a checkpoint; see `muxrl.servers.fixed_policies.frozen`."""

    name = FROZEN
    summary = "the policies of a checkpoint, as they were saved"
    defaults: ClassVar[Mapping[str, Any]] = {
        "checkpoint": "",
        "policies": {},
        "should_explore": False,
    }

    def _read_settings(self) -> None:
        from muxrl.servers.fixed_policies.frozen import open_policies

        path = self.given["checkpoint"]
        if path and not isinstance(path, str):
            raise AlgorithmProblem(
                f"{self.name}'s setting 'checkpoint' is the folder of one checkpoint, not "
                f"{path!r}; POOL draws one of several for each episode, of members such as "
                "{first: {algorithm: FROZEN, checkpoint: FOLDER}}; to act with several at once, "
                "give each a server of its own"
            )
        if not path:
            raise AlgorithmProblem(
                f"{self.name} needs the setting 'checkpoint', the folder of one, such as "
                "runs/NAME/checkpoints/last/SERVER"
            )
        checkpoint = Checkpoint.open(Path(path))
        # Absolute, since a server's process may run in another folder than the command did.
        self.given["checkpoint"] = str(checkpoint.path)
        self._modules = open_policies(checkpoint, self.given["policies"])

    @property
    def seating(self) -> Seating:
        return self._modules.seating

    def find_problems(self, plan: ServerPlan, others: Sequence[Algorithm] = ()) -> Iterator[str]:
        return self._modules.find_problems(plan)

    def make_seats(self, plan: ServerPlan) -> dict[str, Seat]:
        return self._modules.make_seats(plan, self._modules.observing(plan))

    def make_acting(self, plan: ServerPlan) -> Acting:
        should_explore = self.given["should_explore"]
        return self._modules.make_inference(plan, should_explore=should_explore)


class PoolAlgorithm(FixedAlgorithm):
    """One of several is drawn for each episode; see `muxrl.servers.fixed_policies.pool`."""

    name = POOL
    summary = "draws a member for each episode: a server's past, checkpoints, scripts"
    defaults: ClassVar[Mapping[str, Any]] = {
        "members": {},
        "draw": "weights",
        "games": "",
        "win_above": 0.0,
        "should_explore": True,
    }
    policies = PoolPolicies

    def _read_settings(self) -> None:
        if self.given["draw"] not in _DRAWS:
            raise AlgorithmProblem(
                f"POOL's setting 'draw' is one of {', '.join(_DRAWS)}, not {self.given['draw']!r}"
            )
        if (self.given["draw"] in KINDS) != bool(self.given["games"]):
            raise AlgorithmProblem(
                f"POOL's draws {' and '.join(KINDS)}, and no others, need the setting 'games': "
                "the folder that 'muxrl compare --head-to-head --out FOLDER' has written"
            )
        if not self.given["members"]:
            raise AlgorithmProblem(
                "POOL needs the setting 'members', such as {now: {live: SERVER}, past: "
                "{snapshots: SERVER, last: 5}, chance: {algorithm: RANDOM}}"
            )
        self._sources: dict[str, FixedAlgorithm] = {}
        members: dict[str, dict[str, Any]] = {}
        for entry, given in self.given["members"].items():
            try:
                members[entry] = self._read(entry, given)
            except AlgorithmProblem as problem:
                raise AlgorithmProblem(f"POOL's member {entry!r}: {problem}") from problem
        self.given["members"] = members

    def _read(self, entry: str, given: Any) -> dict[str, Any]:
        """Returns a member's complete settings; makes its algorithm if the member never changes."""
        is_read = isinstance(given, Mapping)
        # It may end in "@ENV_STEPS", as a run names snapshots, which are one entry in its metrics.
        name = re.sub(r"@[0-9]+$", "", str(entry)) if is_read and "algorithm" in given else entry
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,49}", str(name)):
            raise AlgorithmProblem("it names metrics; use letters, digits, '_', '-' and '.'")
        kinds = [kind for kind in (*_FROM, "algorithm") if is_read and kind in given]
        if len(kinds) != 1:
            raise AlgorithmProblem(
                f"is {given!r}; expected one of live: SERVER, snapshots: SERVER, algorithm: FROZEN "
                "(SCRIPTED, RANDOM) with its settings"
            )
        read = {"weight": 1.0, **given}
        check_kind("weight", read["weight"], 1.0)
        if not read["weight"] > 0:
            raise AlgorithmProblem(f"weight must be above 0, not {read['weight']!r}")
        if kinds == ["algorithm"]:
            own = {key: value for key, value in read.items() if key not in ("weight", "algorithm")}
            find = find_fixed(str(read["algorithm"]))
            if find is None or find is PoolAlgorithm:
                raise AlgorithmProblem(f"{read['algorithm']!r} is not FROZEN, SCRIPTED or RANDOM")
            self._sources[entry] = find(own, {})
            return {**read, **self._sources[entry].given}
        known = {"live": {}, "snapshots": {"last": 5}}[kinds[0]]
        names = (kinds[0], "weight", "policies", *known)
        for key in read:
            if key not in names:
                raise AlgorithmProblem(f"has no setting {key!r}{suggestion(key, names)}")
        read = {**known, **read}
        if not isinstance(read[kinds[0]], str):
            raise AlgorithmProblem(f"{kinds[0]} names a server, not {read[kinds[0]]!r}")
        if "last" in read:
            read["last"] = read_as("last", read["last"], int)
            if read["last"] < 1:
                last = read["last"]
                raise AlgorithmProblem(f"last must be a whole number from 1 on, not {last}")
        return read

    @property
    def seating(self) -> Seating:
        return RAW_POOL

    def find_problems(self, plan: ServerPlan, others: Sequence[Algorithm] = ()) -> Iterator[str]:
        for entry, one in self._sources.items():
            for problem in one.find_problems(one.seating.with_groups(plan)):
                yield f"member {entry!r}: {problem}"

    def make_acting(self, plan: ServerPlan) -> Pool:
        return Pool(plan, self.given, self._sources, self._open)

    def _open(self, entry: str, path: str) -> FixedAlgorithm:
        policies = self.given["members"][entry].get("policies", {})
        should_explore = self.given["should_explore"]
        settings = {"checkpoint": path, "policies": policies, "should_explore": should_explore}
        return FrozenAlgorithm(settings, {})


_DRAWS = ("weights", "recency", "hard", "even", *KINDS)
_FROM = ("live", "snapshots")
FIXED: tuple[type[FixedAlgorithm], ...] = (
    RandomAlgorithm,
    ScriptedAlgorithm,
    FrozenAlgorithm,
    PoolAlgorithm,
)


def find_fixed(name: str) -> type[FixedAlgorithm] | None:
    """Returns the fixed algorithm of a name, in upper or lower case; None: it is another one."""
    return next((fixed for fixed in FIXED if fixed.name.lower() == name.lower()), None)
