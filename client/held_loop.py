"""A loop that other threads can pause, and whose env steps they can limit."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

_LOOK_S = 0.05
"""How often a paused loop checks whether it should stop."""


class HeldLoop(ABC):
    """Pauses when another thread asks for it, and plays no more env steps than allowed."""

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
        """Whether the loop may pause here before a hold's grace is over."""

    @abstractmethod
    def _tell_played(self) -> None:
        """Sends servers all that was played: whoever pauses the loop counts or saves it."""

    # --- held by another thread ---------------------------------------------------------

    def hold(self, grace_s: float) -> None:
        """Asks the loop to pause at the end of its open episodes; no other episode begins.

        Args:
            grace_s: how long episodes may take to end; then it pauses between any two steps.
        """
        with self._changed:
            self._hold_in_mid_episode_at = time.monotonic() + grace_s
            self._is_holding = True

    def wait_held(self, timeout_s: float) -> bool:
        """Waits until the loop has paused or ended; returns False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_held or not self._is_playing, timeout_s)

    def release(self) -> None:
        """Lets the loop continue: open episodes go on where they stand, and others begin."""
        with self._changed:
            self._is_holding = False
            self._changed.notify_all()

    # --- a limit of env steps -----------------------------------------------------------

    def limit(self, num_env_steps: int) -> None:
        """Allows only so many env steps in all; without a call there is no limit.

        A loop that has used them up begins no episode and pauses, even in the middle of episodes.
        If it is held then, it plays these episodes to their ends.
        """
        with self._changed:
            self._limit = num_env_steps

    def allow(self, num_env_steps: int) -> None:
        """Allows so many more env steps."""
        with self._changed:
            self._limit += num_env_steps
            self._is_used_up = False
            self._changed.notify_all()

    def wait_used_up(self) -> None:
        """Waits until the allowed env steps are used up, or the loop has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_used_up)

    @property
    def _has_no_more(self) -> bool:
        return self._num_claimed >= self._limit

    def _claim(self, num: int, *, is_one_step: bool) -> int:
        """Takes env steps out of the allowed ones; while the loop is held, as many as it asks for.

        Args:
            num: how many.
            is_one_step: whether all are made at once: if any is left, all may be taken.

        Returns:
            How many may be played.
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
