"""The members of a league, as templates of servers, and the archive of their past.

The archive is read from the files of the rounds, so that a resumed league knows the same as one
that was not interrupted.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muxrl.orchestrator.comparisons.findings.head_to_head import RANDOM, stage
from muxrl.orchestrator.config import ConfigError, SimulationFacts, probe
from muxrl.orchestrator.config.checks import EXTERNAL, is_file_name, is_label
from muxrl.orchestrator.config.load import set_values
from muxrl.orchestrator.config.merge import diff, flat
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.league.schema import LeagueConfig
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.orchestrator.sweeps.parameters import draw, find_problems, given
from muxrl.orchestrator.sweeps.plan import agents_of_roles, make_plan, role_problems
from muxrl.orchestrator.sweeps.schema import AlgorithmTemplate, SweepConfig
from muxrl.protocol.patterns import match
from muxrl.protocol.suggestions import listed, similar_or_known
from muxrl.servers.config import EXTERNAL as OWN_PROCESS
from muxrl.servers.config import ServerConfig
from muxrl.servers.fixed_names import is_fixed
from muxrl.servers.fixed_policies.meta_game import ALPHA_RANK, NASH, alpha_rank_problem
from muxrl.servers.lookup import find
from muxrl.servers.setting_values import AlgorithmProblem

POOL_PREFIX = "pool-"
"""Prefix of the names of templates that are no members."""
_EXPLORED = ("choice", "uniform", "loguniform")


@dataclass(frozen=True)
class Entry:
    """A member after a round; `run` is the directory of its run in that round."""

    member: str
    round: int
    role: str
    run: Path

    @property
    def label(self) -> str:
        """The entry's name in games and ratings."""
        return self.member + stage(self.round)

    @property
    def checkpoint(self) -> Path:
        """The folder of the member's last checkpoint in that run."""
        found = CheckpointFolder(self.run / "checkpoints").of_server(self.role)
        return (found or self.run / "checkpoints" / "last" / self.role).resolve()


@dataclass(frozen=True)
class League:
    """A league with every name looked up.

    Attributes:
        config: as the user wrote it.
        agents: by role, in the simulation's order.
        facts: of the simulation.
        templates: by member: the server with which it begins.
    """

    config: LeagueConfig
    agents: dict[str, list[str]]
    facts: SimulationFacts
    templates: dict[str, AlgorithmTemplate]

    def alike(self, role: str) -> list[str]:
        """Returns the roles whose members can play a role, including the role itself."""
        both = self.config.interchangeable
        return list(both) if role in both else [role]

    def training(self, number: int) -> list[str]:
        """Returns the members that train in a round."""
        return [
            name
            for name, member in self.config.members.items()
            if number >= member.first_round
            and (number - member.first_round) % member.every_rounds == 0
        ]

    def entries(self, folder: LeagueDirectory, last: int) -> list[Entry]:
        """Returns the entries of all rounds up to `last`, earliest first."""
        found = []
        for number in range(1, last + 1):
            sweep = folder.sweep(number)
            for trial in sweep.trials() if sweep else ():
                run = sweep.run_of(trial) if sweep else None
                for role, name in trial.roles.items():
                    if run is not None and name in self.config.members:
                        found.append(Entry(name, number, role, run))
        return found


def make_league(config: LeagueConfig) -> League:
    """Looks up every name of a league.

    Raises:
        ConfigError: with a sentence for each thing that is wrong.
    """
    simulation = config.experiment.simulation
    if simulation.env in ("", EXTERNAL):
        make_plan(SweepConfig(config.name, experiment=config.experiment))  # raises ConfigError
    facts = probe(simulation)
    names = list(facts.agents)
    roles = config.roles or {s: c.agents for s, c in config.experiment.servers.items()}
    problems = list(role_problems(roles, facts))
    if problems:
        raise ConfigError(problems)
    agents = agents_of_roles(roles, facts)
    templates: dict[str, AlgorithmTemplate] = {}
    for number, name in enumerate(config.members):
        templates[name], sentences = _template(config, name, number)
        problems += sentences
    league = League(config, agents, facts, templates)
    problems += _problems(league)
    in_roles = {agent for those in agents.values() for agent in those}
    for server_id, server in config.experiment.servers.items():
        rest = [agent for agent in match(server.agents, names)[0] if agent not in in_roles]
        if rest and not is_fixed(server.algorithm):
            problems.append(
                f"experiment.servers.{server_id}: learns, and would begin with new weights in each "
                f"round; make {listed(rest)} a role with a member, or use an algorithm that does "
                "not learn"
            )
    if problems:
        raise ConfigError(problems)
    return league


def _template(config: LeagueConfig, name: str, number: int) -> tuple[AlgorithmTemplate, list[str]]:
    """Returns the template of a member's server, and a sentence for each wrong key."""
    member = config.members[name]
    base = config.experiment.servers.get(member.role)
    if base is None or is_fixed(base.algorithm) or base.algorithm == OWN_PROCESS:
        base = ServerConfig()
    own = {"agents": [], "label": "", "port": 0}
    template = AlgorithmTemplate(**copy.deepcopy(vars(base)) | own)
    template, problems = set_values(template, member.server)
    found = [f"members.{name}.server.{problem}" for problem in problems]
    if is_fixed(template.algorithm):
        found.append(
            f"members.{name}.server: {template.algorithm} does not learn, and members must learn"
        )
    if config.exploit.role == member.role and not list(_parameter_problems(config)):
        stated = flat(member.server)
        for key, parameter in config.exploit.parameters.items():
            value = draw(key, parameter, number, config.experiment.seed)
            changed, problems = set_values(template, {key: value})
            found += [f"exploit.parameters.{problem}" for problem in problems]
            template = template if key in stated else changed
    return template, found


def _problems(league: League) -> Iterator[str]:
    config, members = league.config, list(league.config.members)
    roles = list(league.agents)
    if not is_file_name(config.name):
        yield f"name: {config.name!r} cannot name a directory; use letters, digits, '_', '-', '.'"
    if len(roles) < 2:
        yield f"roles: there is only {listed(roles)}; a league needs another role for opponents"
    if not members:
        yield "members: there are none; such as {main: {role: " + roles[0] + "}}"
    if not config.experiment.checkpoint.at_end:
        yield (
            "experiment.checkpoint.at_end: is false, but each round begins with the checkpoints "
            "that the round before wrote at its end"
        )
    for name, member in config.members.items():
        at = f"members.{name}"
        if not is_label(name) or len(name) > 40 or name == RANDOM or name.startswith(POOL_PREFIX):
            yield (
                f"{at}: expected a name of up to 40 letters, digits, '_' and '-' other than "
                f"{RANDOM!r}, which does not begin with {POOL_PREFIX!r}"
            )
        if member.role not in roles:
            hint = similar_or_known(member.role, roles, "the roles are")
            yield f"{at}.role: there is no role {member.role!r}{hint}"
        for pattern in match(member.meets, members)[1]:
            hint = similar_or_known(pattern, members, "the members are")
            yield f"{at}.meets: {pattern!r} is no member{hint}"
    for name, template in league.templates.items():
        if config.rounds > 1 and not config.members[name].is_fresh:
            with contextlib.suppress(AlgorithmProblem):  # the first round's plan reports it
                algorithm = find(template.algorithm)
                if algorithm.name != OWN_PROCESS and not algorithm.has_weights:
                    yield (
                        f"members.{name}: {algorithm.name} needs weights() and set_weights() to "
                        "continue in the next round, and has none; or set is_fresh"
                    )
    for number in range(1, config.rounds + 1 if members else 1):
        if not league.training(number):
            yield (
                f"rounds: no member trains in round {number}; change first_round or every_rounds"
            )
            break
    kind = config.opponents.draw
    if kind in (NASH, ALPHA_RANK) and len(roles) > 2:
        yield f"opponents.draw: {kind} needs a league of two roles, got {listed(roles)}"
    if kind == ALPHA_RANK and (problem := alpha_rank_problem()):
        yield f"opponents.draw: {kind}: {problem}"
    yield from _interchange_problems(league)
    yield from _exploit_problems(league)


def _interchange_problems(league: League) -> Iterator[str]:
    at, both = "interchangeable", league.config.interchangeable
    unknown = [role for role in both if role not in league.agents]
    for role in unknown:
        yield f"{at}: there is no role {role!r}{similar_or_known(role, league.agents)}"
    if unknown or not both:
        return
    seats = [[league.facts.agents[agent] for agent in league.agents[role]] for role in both]
    for role, theirs in zip(both, seats, strict=True):
        if theirs != seats[0]:
            yield f"{at}: the agents of {both[0]!r} and {role!r} differ in number or in spaces"


def _parameter_problems(config: LeagueConfig) -> Iterator[str]:
    for key, parameter in config.exploit.parameters.items():
        found = list(find_problems(key, parameter))
        yield from (f"exploit.{problem}" for problem in found)
        if not found and (kind := next(iter(given(parameter)))) not in _EXPLORED:
            yield f"exploit.parameters.{key}.{kind}: expected one of {listed(_EXPLORED)}"


def _exploit_problems(league: League) -> Iterator[str]:
    exploit = league.config.exploit
    yield from _parameter_problems(league.config)
    if not exploit.role:
        if exploit.parameters:
            yield "exploit.role: is missing; name the role whose members change their parameters"
        return
    ranked = [n for n, member in league.config.members.items() if member.role == exploit.role]
    if len(ranked) < 2:
        yield (
            f"exploit.role: role {exploit.role!r} has {len(ranked)} members, and needs at least "
            "two, of which one can take over the weights of the other"
        )
    free: dict[str, Any] = {"initialize_from": "", "initialize_policies": {}, "token": ""}
    alike = {name: replace(league.templates[name], **free) for name in ranked}
    for name in ranked[1:]:
        found = diff(alike[ranked[0]], alike[name])
        if differing := [key for key in found if key not in exploit.parameters]:
            yield (
                f"exploit: members {ranked[0]!r} and {name!r} of role {exploit.role!r} differ in "
                f"{listed(differing)}, which exploit.parameters does not name, so one cannot take "
                "over the other's weights"
            )
