"""Lets only one thread at a time use a client, in the process that made it.

A client has one connection to each server, on which answers come in the order of requests. Two
threads, or a process and its fork, would receive each other's answers.
"""

from __future__ import annotations

import os
import threading

from muxrl.client.errors import EpisodeMisuse


class SoleUse:
    """A context that is entered while the connections are used."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._user = 0

    @property
    def is_in_other_process(self) -> bool:
        """Whether this is a fork of the process in which the client was made."""
        return os.getpid() != self._process_id

    def check(self) -> None:
        """Raises `EpisodeMisuse` if the context cannot be entered now."""
        if self.is_in_other_process:
            raise EpisodeMisuse(
                f"this client belongs to process {self._process_id}, and process {os.getpid()}, a "
                "fork of it, uses its connection; make a client in each process, after the fork"
            )
        if self._lock.locked():
            raise self._refusal()

    def __enter__(self) -> None:
        if os.getpid() != self._process_id or not self._lock.acquire(blocking=False):
            self.check()
            raise self._refusal()
        self._user = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _refusal(self) -> EpisodeMisuse:
        user = next((t.name for t in threading.enumerate() if t.ident == self._user), "another one")
        return EpisodeMisuse(
            f"thread {threading.current_thread().name!r} uses this client while thread {user!r} "
            "waits for an answer; make a client in each thread"
        )
