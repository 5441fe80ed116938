"""Callbacks for tests: right ones, and some in which one thing is wrong."""

from __future__ import annotations

from typing import Any

from muxrl.servers.trainers.declared_settings import ScheduleCheck


class Diary:
    def __init__(self) -> None:
        self.returns: list[float] = []

    def on_episode(self, episode: Any) -> None:
        self.returns.append(sum(episode.returns.values()))

    def on_update(self, update: Any) -> dict[str, float]:
        update.learners["default"].rate = 1.0 / update.iteration
        return {
            "episodes": len(self.returns),
            "sum": sum(self.returns),
            "rows": update.metrics["default"]["rows"],
        }


class OnEpisodeAlone:
    def on_episode(self, episode: Any) -> None:
        raise KeyError("no such page")


class Settings:
    """Gives all schedules of muxrl's own algorithms another value."""

    def on_update(self, update: Any) -> None:
        for trainer in update.learners.values():
            for name in schedules_of(trainer.settings):
                setattr(trainer.settings, name, SET)


SET = 0.002


def schedules_of(settings: Any) -> list[str]:
    kinds = settings.known().items()
    metadata = {name: getattr(kind, "__metadata__", ()) for name, kind in kinds}
    return [n for n, own in metadata.items() if any(isinstance(m, ScheduleCheck) for m in own)]


class Neither:
    pass


class ReturnsText:
    def on_update(self, update: Any) -> str:
        return "fine"


class Potential:
    """Adds to a reward the growth of the second number of the observation."""

    def shape_rewards(self, trajectory: Any) -> Any:
        potentials = trajectory.observations[:, 1]
        return trajectory.rewards + potentials[1:] - potentials[:-1]


class Contrary:
    def shape_rewards(self, trajectory: Any) -> Any:
        return -trajectory.rewards


class OneReward:
    def shape_rewards(self, trajectory: Any) -> list[float]:
        return [1.0]


class NoReward:
    def shape_rewards(self, trajectory: Any) -> Any:
        return trajectory.rewards * float("nan")
