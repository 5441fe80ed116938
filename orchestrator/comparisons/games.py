"""Games: each is played once, however many matches, reruns of a command or rounds ask for it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.comparisons.arena import Arena, Player
from muxrl.orchestrator.comparisons.findings.head_to_head import Match
from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.config.merge import flat
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.records.rows import AgentReturns
from muxrl.orchestrator.records.series import Floats
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.orchestrator.storage.versions import software_versions

Game = tuple[Mapping[str, Player], range]
"""Role to who plays it, and the seeds of the episodes."""
_FORMAT = 1


def play(arena: Arena, games: Mapping[str, Game], known: dict[str, AgentReturns], at: str) -> None:
    """Plays those games whose returns are not known, and adds these.

    Args:
        arena: of their simulation.
        games: by key.
        known: by key, each agent's returns by episode.
        at: what they are for, as is shown meanwhile.

    Raises:
        CannotCompare, ServerProblem, SimulationFailed: as `Arena.play`.
    """
    todo = [key for key in games if key not in known]
    for place, key in enumerate(todo, 1):
        doing(at, f"game {place:,} of {len(todo):,}")
        known[key] = arena.play(*games[key])


def scored(returns: Sequence[Floats], **about: Any) -> Match:
    """Returns a match.

    Args:
        returns: of each seat, by episode.
        about: its other attributes.
    """
    seen = np.concatenate(returns)
    seen = seen[np.isfinite(seen)]
    score = float(seen.mean()) if len(seen) else math.nan
    return Match(score=score, num_episodes=len(seen), returns=np.mean(returns, axis=0), **about)


def key_of(seating: Mapping[str, Player], seeds: range) -> str:
    """Returns what tells a game from all others: who plays, with which weights, which episodes."""
    players = [
        [role, who.label, who.home, who.run_path, who.should_explore, *_served(who)]
        for role, who in sorted(seating.items())
    ]
    text = json.dumps([players, seeds.start, len(seeds)], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _served(player: Player) -> list[Any]:
    """Returns the settings of a player's server, and when its checkpoints were written."""
    settings = flat(player.server)
    paths = [value for key, value in settings.items() if key.endswith(".checkpoint")]
    found = [Path(path) for path in (*paths, player.resume_from) if path]
    written = [path.stat().st_mtime_ns for path in found if path.exists()]
    return [settings, player.resume_from, written]


@contextlib.contextmanager
def kept(path: Path | None, config: ExperimentConfig) -> Iterator[dict[str, AgentReturns]]:
    """Reads the games of a comparison, by `key_of`, and writes those that it has at the end.

    They are of one experiment and one software: where either has changed, and where no commit holds
    all of the sources, they are played again.

    Args:
        path: of the file; None: nothing is kept.
        config: of the experiment.

    Raises:
        OSError: the file cannot be written.
    """
    versions = software_versions(config.simulation.env) if path else {}
    if path is None or any(str(version).endswith("-dirty") for version in versions.values()):
        yield {}
        return
    of = {"evaluation": asdict(config.evaluation), "simulation": asdict(config.simulation)}
    about = json.loads(json.dumps({"format": _FORMAT, **of, "versions": versions}, default=str))
    known: dict[str, AgentReturns] = {}
    with contextlib.suppress(OSError, ValueError):
        before = json.loads(path.read_text(encoding="utf-8"))
        known = before["games"] if before["about"] == about else {}
    try:
        yield known
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"about": about, "games": known})
