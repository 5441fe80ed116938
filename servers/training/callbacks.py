"""Users' callbacks, which the learning thread calls with what was played and learned.

``servers.X.callbacks: package.module:Class`` names a class, of which an object is made without
arguments. It may have any of these methods:

.. code-block:: python

    class Diary:
        def shape_rewards(self, trajectory): ...  # a `Trajectory` in arrays; returns its rewards
        def on_episode(self, episode): ...  # an `Ended`: returns by agent, num_steps
        def on_update(self, update): ...    # an `Update`; returns figures by name, or None

No step waits for these methods, but the next update does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from muxrl.protocol.messages import Ended
from muxrl.servers.episodes.trajectories import Chunk, separated
from muxrl.servers.import_by_name import CannotImport, import_by_name

METHODS = ("shape_rewards", "on_episode", "on_update")
_EXAMPLE = "my_package.my_module:MyCallbacks"
_MAX_EPISODES = 10_000
"""Most ended episodes to keep between two updates, the newest ones."""


class CallbackFailed(RuntimeError):
    """A callback raised, or returned a wrong value; the message names it."""


@dataclass(frozen=True)
class Update:
    """An update that is done.

    Attributes:
        iteration: from 1 on, counting those before a resume.
        env_steps: number of env steps learned from so far.
        metrics: by policy and name.
        learners: the trainers by policy; callbacks may read and change them.
    """

    iteration: int
    env_steps: int
    metrics: Mapping[str, Mapping[str, float]]
    learners: Mapping[str, Any]


class Callbacks:
    """An object of the user's class, and the episodes that it has not received yet.

    Args:
        path: import path of the class.

    Raises:
        CallbackFailed: the class cannot be imported or made, or has none of the methods.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.ended: deque[Ended] = deque(maxlen=_MAX_EPISODES)
        """Ended training episodes, which the event loop appends."""
        try:
            found = import_by_name(path, _EXAMPLE)
        except CannotImport as error:
            raise CallbackFailed(f"callbacks: {error}") from error
        if not any(callable(getattr(found, method, None)) for method in METHODS):
            raise CallbackFailed(
                f"callbacks: {path!r} has none of the methods {', '.join(METHODS)}"
            )
        self._callbacks = self._called("__init__", found)

    def shape(self, batch: Sequence[Chunk]) -> None:
        """Replaces a batch's rewards by those that ``shape_rewards`` returns.

        Raises:
            CallbackFailed: the method raised, or did not return finite numbers of the same shape.
        """
        shape_rewards = getattr(self._callbacks, "shape_rewards", None)
        for chunk in batch if shape_rewards is not None else ():
            for one in chunk.trajectories:
                seen = separated(one)
                rewards = self._called("shape_rewards", shape_rewards, seen)
                try:
                    shaped = np.asarray(rewards, seen.rewards.dtype)
                except (TypeError, ValueError):
                    shaped = np.empty(0)
                if shaped.shape != seen.rewards.shape or not np.isfinite(shaped).all():
                    raise CallbackFailed(
                        f"callbacks {self._path}.shape_rewards: expected {len(seen.rewards)} "
                        f"finite rewards of {one.seat_id!r}, one for each action, "
                        f"got {rewards!r:.80}"
                    )
                one.rewards = shaped

    def report(self, update: Update) -> dict[str, float]:
        """Passes on all ended episodes, and an update; returns the figures of ``on_update``.

        Raises:
            CallbackFailed: a method raised, or returned a wrong value.
        """
        on_episode = getattr(self._callbacks, "on_episode", None)
        for _ in range(len(self.ended)):
            episode = self.ended.popleft()
            if on_episode is not None:
                self._called("on_episode", on_episode, episode)
        on_update = getattr(self._callbacks, "on_update", None)
        figures = None if on_update is None else self._called("on_update", on_update, update)
        if figures is not None and not isinstance(figures, Mapping):
            kind = type(figures).__name__
            raise CallbackFailed(
                f"callbacks {self._path}.on_update: expected figures by name or None, got {kind}"
            )
        return dict(figures or {})

    def _called(self, name: str, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except (Exception, SystemExit) as error:  # the user's code
            what = f"{type(error).__name__}: {error}"
            raise CallbackFailed(f"callbacks {self._path}.{name}: {what}") from error


def find_callback_problems(path: str) -> Iterator[str]:
    """Yields a sentence if the class at an import path cannot be a server's callbacks."""
    try:
        Callbacks(path)
    except CallbackFailed as error:
        yield str(error)
