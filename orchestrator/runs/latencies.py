"""How long servers took to answer between two joint records, from what they have counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muxrl.servers.latency import quantile

_QUANTILES = {"p50": 0.5, "p99": 0.99}


class LatencyRecords:
    """Quantiles of what each server has measured since its last record."""

    def __init__(self) -> None:
        self._newest: dict[str, Mapping[str, Sequence[int]]] = {}
        self._recorded: dict[str, Mapping[str, Sequence[int]]] = {}

    def take(self, server_id: str, counts: Mapping[str, Sequence[int]]) -> None:
        """Takes what a server reports; see `muxrl.servers.server.PolicyServer.latencies`."""
        self._newest[server_id] = counts

    def forget(self, server_id: str) -> None:
        """Says that the server is started again: its next process counts from 0."""
        self._newest.pop(server_id, None)
        self._recorded.pop(server_id, None)

    def record(self, server_id: str) -> dict[str, float]:
        """Returns ``exchange_p50_s`` and so on; without what has not happened since the last."""
        newest = self._newest.get(server_id, {})
        before, self._recorded[server_id] = self._recorded.get(server_id, {}), newest
        found = {}
        for name, counts in newest.items():
            old = before.get(name, [0] * len(counts))
            # A report that was overtaken by a newer one counts nothing.
            since = [max(0, n - o) for n, o in zip(counts, old, strict=True)]
            for key, share in _QUANTILES.items():
                if (seconds := quantile(since, share)) is not None:
                    found[f"{name}_{key}_s"] = float(f"{seconds:.3g}")
        return found
