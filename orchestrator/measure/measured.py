"""What one evaluation measured of some of a server's agents, and how it compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from muxrl.orchestrator.measure.against_random import AgainstRandom, against_random
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.series import EvaluationPoint, Floats


@dataclass(frozen=True)
class Measured:
    """Returns for each episode, as `EvaluationPoint.returns_of` gives them."""

    env_steps: int
    learned: Floats
    random: Floats | None
    untrained: Floats | None

    @classmethod
    def of(
        cls, point: EvaluationPoint, server_id: str, agents: Sequence[str], side: str = ""
    ) -> Measured | None:
        """Returns what an evaluation measured; None if none of the agents took part in it.

        Args:
            point: the evaluation.
            server_id: whose agents they are.
            agents: those of one side, or all.
            side: which one, if they were replaced alone.
        """
        learned = point.returns_of(agents, None)
        if learned is None:
            return None
        random, untrained = (
            point.returns_of(agents, Condition(server_id, side, is_untrained=how).key)
            for how in (False, True)
        )
        return cls(point.env_steps, learned, random, untrained)


def compared(points: Sequence[Measured], **settings: Any) -> AgainstRandom:
    """Compares one evaluation of each seed; what one of them did not measure is left out.

    Args:
        points: of the seeds.
        settings: of `against_random`.
    """
    random = [point.random for point in points if point.random is not None]
    untrained = [point.untrained for point in points if point.untrained is not None]
    return against_random(
        float(np.mean([point.env_steps for point in points])),
        [point.learned for point in points],
        random if len(random) == len(points) else None,
        untrained if len(untrained) == len(points) else None,
        **settings,
    )
