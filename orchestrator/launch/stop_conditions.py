"""When a run ends: at the first of the conditions in its config; and the time until then."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from muxrl.orchestrator.config.schema import StopConfig
from muxrl.orchestrator.launch.tally import Tally
from muxrl.protocol.messages import Status

_MIN_EPISODES = 20
"""A mean over fewer episodes does not end a run."""


class StopConditions:
    """The conditions of one run.

    Args:
        config: the conditions; None and empty entries are no conditions.
        fixed: servers that do not learn, and so make no iterations.
    """

    def __init__(self, config: StopConfig, fixed: Collection[str] = ()) -> None:
        self._config = config
        self._fixed = frozenset(fixed)
        num = config.iterations
        texts: dict[str, list[str]] = {
            "env_steps": [f"{config.env_steps:,} env steps"] if config.env_steps else [],
            "time_s": [f"{config.time_s:,.0f} s"] if config.time_s else [],
            "iterations": [f"{num:,} iterations of every server that learns"] if num else [],
            "episode_return": [f"{s!r} returns {x:g}" for s, x in config.episode_return.items()],
            "metric_at_least": [f"{m} ≥ {x:g}" for m, x in config.metric_at_least.items()],
            "metric_at_most": [f"{m} ≤ {x:g}" for m, x in config.metric_at_most.items()],
        }
        self._texts = {key: " and ".join(parts) for key, parts in texts.items() if parts}
        """By key: the condition, as text for people."""
        self.text = " or ".join(self._texts.values()) or "Ctrl-C"
        """All conditions, as text for people."""

    def reached(self, tally: Tally, statuses: Mapping[str, Status]) -> str:
        """Returns the condition that ends the run now, as text for people; "" if none does."""
        config = self._config
        for key, (now, limit, _) in self._growing(tally, statuses):
            if now >= limit:
                return self._texts[key]
        if config.episode_return and all(
            self._has_return(statuses.get(server_id), value)
            for server_id, value in config.episode_return.items()
        ):
            return self._texts["episode_return"]
        for key, sign in (("metric_at_least", 1), ("metric_at_most", -1)):
            limits = getattr(config, key).items()
            if limits and all(self._has_metric(tally, m, limit, sign) for m, limit in limits):
                return self._texts[key]
        return ""

    def time_left_s(self, tally: Tally, statuses: Mapping[str, Status]) -> float | None:
        """Returns the seconds until a condition holds at the present rate, 0.0 if one does now.

        None if no condition comes nearer with time alone.
        """
        times = []
        for _, (now, limit, per_s) in self._growing(tally, statuses):
            if now >= limit:
                return 0.0
            if per_s > 0:
                times.append((limit - now) / per_s)
        return min(times, default=None)

    def _growing(
        self, tally: Tally, statuses: Mapping[str, Status]
    ) -> Iterator[tuple[str, tuple[float, float, float]]]:
        """Yields the conditions that come nearer with time, whether the run learns or not.

        Each is its key, with a quantity that grows, the value at which it ends the run, and how
        much it grows per second at the present rate.
        """
        config = self._config
        if config.env_steps is not None:
            yield "env_steps", (tally.env_steps, config.env_steps, tally.env_steps_per_s)
        if config.time_s is not None:
            yield "time_s", (tally.time_s, config.time_s, 1.0)
        iterations = [status.iteration for s, status in statuses.items() if s not in self._fixed]
        if config.iterations is not None and iterations:
            slowest = min(iterations)
            per_s = slowest / tally.time_s if tally.time_s > 0 else 0.0
            yield "iterations", (slowest, config.iterations, per_s)

    @staticmethod
    def _has_return(status: Status | None, value: float) -> bool:
        if status is None or status.episode_return_mean is None:
            return False
        num = status.num_returns  # an external server may not report it
        num = status.num_episodes if num is None else num
        return num >= _MIN_EPISODES and status.episode_return_mean >= value

    @staticmethod
    def _has_metric(tally: Tally, name: str, limit: float, sign: int) -> bool:
        mean, num_episodes = tally.metric(name) or (0.0, 0)
        return num_episodes >= _MIN_EPISODES and sign * mean >= sign * limit
