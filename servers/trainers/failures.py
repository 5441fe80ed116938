"""Calls of trainers, which are anybody's code: what fails is said with the name of their class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muxrl.servers.training.policies import LearnerDiverged


class TrainerFailed(RuntimeError):
    """A trainer raised, or returned what it must not; the sentence names its class."""


class Calls:
    """Calls methods of a server's trainers.

    Args:
        name: of their class, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, method: str, policy_id: str, call: Callable[[], Any]) -> Any:
        """Returns what `call` does.

        Raises:
            TrainerFailed: it raised.
            LearnerDiverged: it said so.
        """
        try:
            return call()
        except (TrainerFailed, LearnerDiverged):
            raise
        except (Exception, SystemExit) as error:
            raise self.raised(method, policy_id, error) from error

    def raised(self, method: str, policy_id: str, error: BaseException) -> TrainerFailed:
        """Returns what a method's error is to the server."""
        return self.failure(method, policy_id, f"{type(error).__name__}: {error}")

    def failure(self, method: str, policy_id: str, problem: str) -> TrainerFailed:
        """Returns an error that says what is wrong with what a method returned."""
        return TrainerFailed(f"{self._name}.{method} of policy {policy_id!r}: {problem}")
