"""Checks that servers have counted what the simulations played, from one checkpoint to the next.

A checkpoint is one moment of the whole run: simulations pause, and servers have everything that was
played. So between two checkpoints:

- Without a loss, each server's env steps and episodes grow by exactly what the simulations report.
- If a simulation was lost, servers have also counted what it played after its last report. If a
  server was lost, the others may have counted a step that it did not answer.
- A server that was lost itself went back to a checkpoint, so it has counted less.

A simulation that was waiting when a server was lost may notice this only after the next checkpoint.
So in an interval without a loss, but after one, a server may lack the episodes that the simulations
have reported as lost since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from muxrl.orchestrator.storage.checkpoints import Manifest
from muxrl.servers.checkpoints.checkpoint import STATE_FILE
from muxrl.servers.checkpoints.state_file import read_state

UNREPORTED_S = 10.0
"""How long a simulation may have played after its last report, on a busy machine."""


@dataclass(frozen=True)
class Counted:
    """Env steps and episodes."""

    env_steps: int
    episodes: int

    def __sub__(self, other: Counted) -> Counted:
        return Counted(self.env_steps - other.env_steps, self.episodes - other.episodes)


@dataclass(frozen=True)
class Moment:
    """One checkpoint."""

    time_s: float
    simulations: Counted
    """The counts that the simulations report."""
    servers: Mapping[str, Counted]
    num_restarts: Mapping[str, int]
    lost: Counted = Counted(0, 0)
    """Env steps and episodes that were lost, so that a server may not have counted them."""

    @classmethod
    def read(cls, place: Path) -> Moment:
        """Reads a checkpoint's folder.

        Raises:
            CannotResume, ValueError, OSError: the checkpoint is incomplete.
        """
        manifest = Manifest.read(place)
        servers = {}
        for server_id in manifest.servers:
            counts = read_state(place / server_id / STATE_FILE)["counts"]
            servers[server_id] = Counted(counts["num_env_steps"], counts["num_episodes"])
        tally = manifest.tally
        simulations = Counted(tally["env_steps"], tally["num_episodes"])
        lost = Counted(tally["num_lost_steps"], tally["num_lost_episodes"])
        return cls(manifest.time_s, simulations, servers, tally["num_restarts"], lost)


@dataclass(frozen=True)
class Agreement:
    """The number of intervals that were compared, and what does not agree."""

    num_exact: int
    """Intervals without a loss."""
    num_bounded: int
    """Intervals with a loss."""
    problems: list[str]


def agreement(moments: Sequence[Moment], num_envs: int) -> Agreement:
    """Compares the counts of all servers with those of the simulations.

    Args:
        moments: the checkpoints, in order.
        num_envs: environments of all simulations together.
    """
    pairs = list(pairwise(moments))
    losses = sum(bool(_lost(a, b)) for a, b in pairs)
    exact = sum(not _lost(a, b) and a.lost == b.lost for a, b in pairs)
    rates = [
        (b.simulations.env_steps - a.simulations.env_steps) / (b.time_s - a.time_s)
        for a, b in pairs
        if b.time_s > a.time_s
    ]
    slack = num_envs + int(UNREPORTED_S * max(rates, default=0.0))
    problems = [problem for a, b in pairs for problem in _problems(a, b, num_envs, slack)]
    return Agreement(exact, losses, problems)


def _lost(a: Moment, b: Moment) -> set[str]:
    return {name for name, n in b.num_restarts.items() if n > a.num_restarts.get(name, 0)} - {
        "evaluation"
    }


def _problems(a: Moment, b: Moment, num_envs: int, slack: int) -> Iterator[str]:
    played = b.simulations - a.simulations
    lost = _lost(a, b)
    for server_id in b.servers:
        counted = b.servers[server_id] - a.servers[server_id]
        if not lost:
            lacks, late = played - counted, b.lost - a.lost
            most = Counted(late.env_steps + late.episodes, late.episodes)
            if a.num_restarts and late.episodes:
                is_right = 0 <= lacks.env_steps <= most.env_steps
                is_right &= 0 <= lacks.episodes <= most.episodes
                expected = f"as many, or up to {most} less"
            else:
                is_right, expected = lacks == Counted(0, 0), "exactly as many"
        elif server_id in lost:
            is_right = 0 <= counted.env_steps <= played.env_steps + slack
            expected = f"0 to {slack} more"
        else:
            least = played.env_steps - num_envs * len(lost)
            is_right = least <= counted.env_steps <= played.env_steps + slack
            expected = f"{num_envs * len(lost)} less to {slack} more"
        if not is_right:
            yield (
                f"between {a.time_s:.0f} s and {b.time_s:.0f} s (lost: {sorted(lost) or 'none'}) "
                f"server {server_id!r} counted {counted}, the simulations {played}: expected "
                f"{expected}"
            )
