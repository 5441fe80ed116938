"""Makes a round's sweep: a trial for each member that trains, with POOLs of the archive.

A member begins with its own last checkpoint, and keeps its settings from the sweep.yaml of the
round before. In population-based training (Jaderberg et al. 2017, arXiv 1711.09846) the worst
member of a role begins with the checkpoint of the best, and with the settings of the best, changed
by a step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from muxrl.orchestrator.config.load import load_written, set_values
from muxrl.orchestrator.config.merge import flat
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.league.games import heads, meet, solve
from muxrl.orchestrator.league.population import POOL_PREFIX, Entry, League
from muxrl.orchestrator.sweeps.parameters import draw, given
from muxrl.orchestrator.sweeps.plan import with_group
from muxrl.orchestrator.sweeps.schema import (
    AlgorithmTemplate,
    AssignmentsConfig,
    MetricConfig,
    ParameterConfig,
    SweepConfig,
)
from muxrl.protocol.patterns import match
from muxrl.servers.fixed_policies.meta_game import ALPHA_RANK, NASH

_FACTORS = (0.8, 1.25)
"""Factors of a step down and up; 0.8 and 1.2, of Jaderberg et al., do not undo each other."""


def make_round(league: League, folder: LeagueDirectory | None, number: int) -> SweepConfig:
    """Returns the sweep of a round; all earlier rounds are trained, and their games played.

    Args:
        league: of the round.
        folder: the league's directory; None: there is none yet.
        number: of the round, from 1.
    """
    config = league.config
    entries = league.entries(folder, number - 1) if folder else []
    before = folder.sweep(number - 1) if folder and number > 1 else None
    templates = copy.deepcopy(league.templates)
    if before is not None:
        kept = load_written(before.config_file, SweepConfig).algorithms
        templates |= {name: replace(kept[name], token=templates[name].token) for name in templates}
    last = {entry.member: entry for entry in entries}
    for name, template in templates.items():
        if name in last and not config.members[name].is_fresh:
            template.initialize_from = str(last[name].checkpoint)
            template.initialize_policies, template.initialize_only = {}, "all"
        else:
            template.initialize_from = league.templates[name].initialize_from
    if folder is not None and (found := take_over(league, folder, number)) is not None:
        worst, best = found
        templates[worst] = explored(
            replace(copy.deepcopy(templates[best]), initialize_from=str(last[best].checkpoint)),
            config.exploit.parameters,
            derive_seed(config.experiment.seed, "explore", str(number)),
        )
    pools: dict[str, AlgorithmTemplate] = {}
    listed: list[Any] = []
    for name in league.training(number):
        roles = {config.members[name].role: name}
        for role in league.agents:
            if role not in roles:
                roles[role] = f"{POOL_PREFIX}{name}-{role}"
                pools[roles[role]] = _pool(league, folder, name, role, entries)
        listed.append({role: roles[role] for role in league.agents})
    return SweepConfig(
        name=f"{config.name}-{number:02d}",
        experiment=replace(
            copy.deepcopy(config.experiment),
            seed=derive_seed(config.experiment.seed, "round", str(number)),
        ),
        roles=dict(league.agents),
        algorithms={**templates, **pools},
        assignments=AssignmentsConfig(listed=listed),
        metric=MetricConfig(of=heads(league)[0]),
        max_concurrent=config.max_concurrent,
        address=config.address,
    )


def _pool(
    league: League, folder: LeagueDirectory | None, name: str, role: str, entries: Sequence[Entry]
) -> AlgorithmTemplate:
    """Returns the POOL that plays a role while a member trains.

    Raises:
        ConfigError: the games have no solution from which to draw.
    """
    config, alike = league.config, league.alike(role)
    rule = config.opponents
    met = match(config.members[name].meets, list(config.members))[0]
    archive: dict[Entry, float] = {}
    for member in met:
        own = [
            entry
            for entry in entries
            if entry.member == member
            and entry.role in alike
            and entry.round % config.archive_every_rounds == 0
        ]
        own = own[-rule.last :] if rule.last else own
        for k, entry in enumerate(own, 1):
            archive[entry] = float(k if rule.draw == "recency" else 1)
    if folder is not None and archive and rule.draw in (NASH, ALPHA_RANK):
        met_by = {other: list(archive) for other in alike}
        solved = solve(league, folder, entries[-1].round, rule.draw, met_by)
        if isinstance(solved, str):
            raise ConfigError([f"opponents.draw: {rule.draw}: {solved}"])
        # The sum is the number of entries, so that members of `also` keep their usual weight.
        archive = {entry: len(archive) * solved[role][entry.label] for entry in archive}
    drawn = {
        f"{entry.member}-{entry.round}": {
            "algorithm": "FROZEN",
            "checkpoint": str(entry.checkpoint),
            "should_explore": rule.should_explore,
            "weight": weight,
        }
        for entry, weight in archive.items()
        if weight
    }
    members = {**copy.deepcopy(rule.also), **drawn} or {"nobody": {"algorithm": "RANDOM"}}
    draws = rule.draw if rule.draw in ("hard", "even") else "weights"
    pool = AlgorithmTemplate(
        algorithm="POOL",
        settings={
            "members": members,
            "draw": draws,
            "win_above": rule.win_above,
            "should_explore": rule.should_explore,
        },
    )
    templates = [league.templates[m] for m, one in config.members.items() if one.role in alike]
    pool.action_bounds = next((one.action_bounds for one in templates if one.action_bounds), [])
    for member, home in ((m, config.members[m].role) for m in met):
        if home in alike:  # policies and teams get the names of the members' ones
            template = league.templates[member]
            seats = dict(zip(league.agents[home], league.agents[role], strict=True))
            pool.policies = pool.policies or _seated(template.policies, seats)
            server = with_group(template.server(member, league.agents[home]), role)
            pool.groups = pool.groups or _seated(server.groups, seats)
    return pool


def _seated(named: Mapping[str, Sequence[str]], seats: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns policies or groups with their agents replaced by those of another role."""

    def seated(pattern: str) -> list[str]:
        return [seats[agent] for agent in match([pattern], list(seats))[0]] or [pattern]

    return {key: [agent for p in those for agent in seated(p)] for key, those in named.items()}


def take_over(league: League, folder: LeagueDirectory, number: int) -> tuple[str, str] | None:
    """Returns the worst and the best member ranked before a round; None: no member takes over."""
    exploit, before = league.config.exploit, number - 1
    if not exploit.role or not before or before % exploit.every_rounds:
        return None
    trained = [e for e in league.entries(folder, before) if e.round == before]
    ranked = [e for e in trained if e.role == exploit.role]
    ranked = [e for e in ranked if e.member in league.training(number)]
    tables = meet(league, folder, before).by_label
    table = next(table for table in tables if exploit.role in league.alike(table.role))
    order = sorted(ranked, key=lambda entry: table.ratings[entry.label].mean)
    return (order[0].member, order[-1].member) if len(order) > 1 else None


def explored(
    template: AlgorithmTemplate, parameters: Mapping[str, ParameterConfig], seed: int
) -> AlgorithmTemplate:
    """Returns a server with each parameter changed by a step, up or down."""
    values = flat(template)
    steps = {
        key: _step(key, parameter, values.get(key), seed) for key, parameter in parameters.items()
    }
    return set_values(template, steps)[0]


def _step(key: str, parameter: ParameterConfig, value: Any, seed: int) -> Any:
    is_up = bool(np.random.default_rng(derive_seed(seed, key)).integers(2))
    ((kind, values),) = given(parameter).items()
    if kind == "choice":
        if value not in values:
            return draw(key, parameter, 0, seed)
        place, step = values.index(value), 1 if is_up else -1
        near = (place + step, place - step)  # at an end, step the other way
        return next((values[p] for p in near if 0 <= p < len(values)), value)
    return float(min(max(value * _FACTORS[is_up], values[0]), values[1]))
