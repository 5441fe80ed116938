"""Calls trainers, whose code may be anybody's; errors name the trainer's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muxrl.servers.training.policies import LearnerDiverged


class TrainerFailed(RuntimeError):
    """A trainer raised, or returned something invalid; the message names its class."""


class Calls:
    """Calls methods of a server's trainers.

    Args:
        name: of the trainers' class, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, method: str, policy_id: str, call: Callable[[], Any]) -> Any:
        """Returns the result of `call`, which calls a trainer's method.

        Raises:
            TrainerFailed: `call` raised.
            LearnerDiverged: `call` raised this.
        """
        try:
            return call()
        except (TrainerFailed, LearnerDiverged):
            raise
        except (Exception, SystemExit) as error:
            raise self.raised(method, policy_id, error) from error

    def raised(self, method: str, policy_id: str, error: BaseException) -> TrainerFailed:
        """Returns the error to raise for an exception of a trainer's method."""
        return self.failure(method, policy_id, f"{type(error).__name__}: {error}")

    def failure(self, method: str, policy_id: str, problem: str) -> TrainerFailed:
        """Returns the error to raise for a problem with a trainer's method."""
        return TrainerFailed(f"{self._name}.{method} of policy {policy_id!r}: {problem}")
