"""Decides for which servers a client chooses actions itself (local inference)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from muxrl.client.errors import AssignmentError
from muxrl.client.local_transport import LocalTransport
from muxrl.client.network_transport import NetworkTransport
from muxrl.client.transport import Transport

InferenceMode = Literal["remote", "local"]


class InferenceModes:
    """Decides for which servers inference is local.

    Args:
        modes: one for all servers, or by server id; servers that are left out are "remote".
        update_interval_s: see `LocalTransport`.

    Raises:
        ValueError: a mode is neither "remote" nor "local".
    """

    def __init__(
        self, modes: InferenceMode | Mapping[str, InferenceMode], update_interval_s: float | None
    ) -> None:
        self._usual, self._modes = (modes, {}) if isinstance(modes, str) else ("remote", modes)
        for mode in (self._usual, *self._modes.values()):
            if mode not in ("remote", "local"):
                raise ValueError(f"inference_mode must be 'remote' or 'local', got {mode!r}")
        self._update_interval_s = update_interval_s

    def transport_to(self, server_id: str, transport: Transport) -> Transport:
        """Returns a server's transport, or one around it that acts in the server's place.

        Raises:
            ValueError: local inference needs a server that was given by its address.
            ServerUnavailable: the server gives no weights.
        """
        if not self.is_local(server_id):
            return transport
        if not isinstance(transport, NetworkTransport):
            raise ValueError(
                "local inference needs a server that is given by its address, but server "
                f"{server_id!r} was given as a {type(transport).__name__}"
            )
        local = self.acting(transport)
        local.fetch_spec()
        return local

    def is_local(self, server_id: str) -> bool:
        """Whether inference for a server is local."""
        return self._modes.get(server_id, self._usual) == "local"

    def acting(self, transport: NetworkTransport, seed: int | None = None) -> LocalTransport:
        """Returns a transport that acts in its server's place.

        Args:
            transport: the transport to the server.
            seed: of exploration; None: any.
        """
        return LocalTransport(transport, update_interval_s=self._update_interval_s, seed=seed)

    def check_names(self, server_ids: Collection[str]) -> None:
        """Raises `AssignmentError` if a mode names a server that is not among these."""
        if unknown := self._modes.keys() - set(server_ids):
            raise AssignmentError(
                f"inference_mode names unknown servers {sorted(unknown)}; the servers are "
                f"{list(server_ids)}"
            )
