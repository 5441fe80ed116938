"""Whether what of Ray a run stands on still lives: its GCS, and the raylet of this machine.

Without the one Ray ends all processes within a minute, without the other at once.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from muxrl.orchestrator.errors import RunFailed

LOST_AFTER_S = 10.0
"""A cluster may start its GCS again. Ray waits 60 s for that, then it kills the orchestrator, too:
in between a run has to be saved."""
_LOOK_EVERY_S = 2.0
_ANSWER_S = 1.0


class RayHead:
    """Ray's GCS (global control service), as far as a run depends on it.

    Actors that live answer without it, so that they can still save their state. New ones cannot be
    made, and nothing can be started again.

    Args:
        address: "host:port"; "": nothing runs yet.
        raylet: path of the socket of this machine's raylet; "": there is none, as where a cluster
            is joined by "ray://".
    """

    def __init__(self, address: str, raylet: str) -> None:
        self._address = address
        self._raylet = raylet
        host, _, port = address.rpartition(":")
        self._place = (host.strip("[]"), int(port or 0))
        self._looked_at = self._seen_at = time.monotonic()

    @classmethod
    def of_this(cls) -> RayHead:
        """Returns that of the Ray to which this process is connected."""
        import ray

        context = ray.get_runtime_context()
        sockets = {node["NodeID"]: node["RayletSocketName"] for node in ray.nodes()}
        raylet = sockets.get(context.get_node_id(), "")
        return cls(context.gcs_address, raylet if Path(raylet).is_socket() else "")

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Where the raylet is lost, reports that, and not what followed from it.

        Raises:
            RunFailed: the raylet is lost, or what was raised inside.
        """
        try:
            yield
        except RunFailed:
            self.check_raylet()
            raise

    def check(self) -> None:
        """Looks every two seconds whether it takes connections.

        Raises:
            RunFailed: it has not for ten seconds.
        """
        now = time.monotonic()
        if not self._address or now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        try:
            socket.create_connection(self._place, _ANSWER_S).close()
        except OSError as error:
            if now - self._seen_at < LOST_AFTER_S:
                return
            raise RunFailed(
                f"Ray's GCS at {self._address} is lost ({error.strerror or error}), and Ray ends "
                "all processes of the run within a minute; was it killed, for want of memory "
                "perhaps? muxrl launch --resume goes on with the run"
            ) from None
        self._seen_at = now

    def check_raylet(self) -> None:
        """Looks whether this machine's raylet takes connections; to be called after a loss.

        Raises:
            RunFailed: it does not, so that all processes of the run on this machine are lost.
        """
        if not self._raylet:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_S)
            try:
                connection.connect(self._raylet)
            except (ConnectionRefusedError, FileNotFoundError):
                raise RunFailed(
                    "Ray's raylet on this machine is lost, and with it all processes of the run "
                    "here; was it killed, for want of memory perhaps? muxrl launch --resume goes "
                    "on with the run"
                ) from None
            except OSError:  # it is only busy
                return
