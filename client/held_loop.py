"""A loop that other threads hold, and give env steps to play."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

_LOOK_S = 0.05
"""How often a loop that is held asks whether it is to stop."""


class HeldLoop(ABC):
    """Pauses where it is told to, and plays no more env steps than it is allowed."""

    def __init__(self) -> None:
        # Other threads change `_is_holding` and `_limit`, which the loop reads once a step.
        self._changed = threading.Condition()
        self._is_holding = False
        self._hold_in_mid_episode_at = 0.0
        self._is_playing = False
        self._is_held = False
        self._limit = math.inf
        self._num_claimed = 0
        """Env steps that the loop has taken; no other thread reads it."""
        self._is_used_up = False

    @property
    @abstractmethod
    def _is_between_episodes(self) -> bool:
        """Whether it may pause here, before the grace of a hold is over."""

    @abstractmethod
    def _tell_played(self) -> None:
        """Has servers hear of all that was played, as whoever holds the loop counts, or saves."""

    # --- held by another thread ---------------------------------------------------------

    def hold(self, grace_s: float) -> None:
        """Asks the loop to pause, which it does where episodes end: none begins any more.

        Args:
            grace_s: for so long; then it pauses between two steps, whatever is being played.
        """
        with self._changed:
            self._hold_in_mid_episode_at = time.monotonic() + grace_s
            self._is_holding = True

    def wait_held(self, timeout_s: float) -> bool:
        """Waits until the loop has paused or ended; returns whether that was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_held or not self._is_playing, timeout_s)

    def release(self) -> None:
        """Lets the loop continue: open episodes where they stand, and those that are due begin."""
        with self._changed:
            self._is_holding = False
            self._changed.notify_all()

    # --- no more than it is allowed -----------------------------------------------------

    def limit(self, num_env_steps: int) -> None:
        """Allows so many env steps, and no episode begins after them; without it there is no end.

        A loop that has used them up pauses, in the middle of episodes, too. Held then, it plays
        them to their ends.
        """
        with self._changed:
            self._limit = num_env_steps

    def allow(self, num_env_steps: int) -> None:
        """Allows so many env steps more."""
        with self._changed:
            self._limit += num_env_steps
            self._is_used_up = False
            self._changed.notify_all()

    def wait_used_up(self) -> None:
        """Waits until all that is allowed is used up, or the loop has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_used_up)

    @property
    def _has_no_more(self) -> bool:
        return self._num_claimed >= self._limit

    def _claim(self, num: int, *, is_one_step: bool) -> int:
        """Takes env steps of those that are left; while the loop is held, in any case.

        Args:
            num: of them.
            is_one_step: whether there are all of them, or none.

        Returns:
            How many.
        """
        left = num if self._is_holding else self._limit - self._num_claimed
        if left < num and not (is_one_step and left > 0):
            num = max(0, int(left))
        self._num_claimed += num
        return num

    def _end_playing(self) -> None:
        with self._changed:
            self._is_playing = False
            self._is_used_up = True
            self._changed.notify_all()

    def _has_to_rest(self) -> bool:
        if not self._is_holding:
            return self._has_no_more
        return self._is_between_episodes or time.monotonic() >= self._hold_in_mid_episode_at

    def _rest_if_due(self, should_stop: Callable[[], bool]) -> None:
        if not (self._is_holding or self._has_no_more) or not self._has_to_rest():
            return
        self._tell_played()
        with self._changed:
            while self._has_to_rest() and not should_stop():
                self._is_held, self._is_used_up = self._is_holding, self._has_no_more
                self._changed.notify_all()
                self._changed.wait(_LOOK_S)
            self._is_held = False
