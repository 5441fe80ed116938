"""The cue game in weather that only the global state shows.

Made for this project, as the smallest task on which a critic that reads the global state helps. It
is the cue game (`cue_game`), but in every step the weather is added to every reward.
The weather is drawn uniformly from ``{-strength, strength}`` for each episode and depends on
nobody's actions, so the right answers, and the differences that actions make, are the cue game's.
Agents do not observe the weather. A critic that does not see it, either, mistakes fine weather for
good acting and bad weather for bad acting; a critic of the state does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.cue_game import CueGame


class WeatherCues(CueGame):
    """Observations and actions of `CueGame`; the state is also that, and then the weather's sign.

    Args:
        strength: the amount that the weather adds to every reward, or takes from it, in a step.
        **kwargs: arguments of `CueGame`.
    """

    metadata = {"name": "weather_cues", "render_modes": []}

    def __init__(self, strength: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weather = strength
        self._strength = strength
        cues = self.state_space
        assert isinstance(cues, spaces.Box)
        low, high = cues.low, cues.high
        self.state_space = spaces.Box(
            np.append(low, np.float32(-1.0)), np.append(high, np.float32(1.0)), dtype=np.float32
        )

    def _begin(self) -> None:
        super()._begin()
        self.weather = self._strength * float(self._rng.choice([-1.0, 1.0]))

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        return {agent: r + self.weather for agent, r in super()._play(actions).items()}

    def state(self) -> NDArray[np.float32]:
        """Returns all agents' cues one-hot and the weather's sign, float32 [N * K + 1]."""
        return np.append(super().state(), np.float32(np.sign(self.weather)))
