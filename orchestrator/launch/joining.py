"""Says how a simulation that muxrl does not start joins a run."""

from __future__ import annotations

from pathlib import Path

from muxrl.orchestrator.config import ExperimentConfig


def how_to_join(config: ExperimentConfig, address: str, log: Path) -> str:
    """Returns what the user can do about a run that no simulation has joined.

    Args:
        config: of the run, with `env: external`.
        address: the gateway's, "host:port".
        log: of the first program that the run starts, if it starts any.
    """
    simulation = config.simulation
    if simulation.command:
        remedy = f"the program of simulation.command has played no step; see {log}"
    else:
        token = ", with the gateway's token" if simulation.gateway.token else ""
        remedy = (
            f"start one that connects to http://{address}, in Python by PolicyClient({address!r})"
            f"{token}; 'curl http://{address}/v1/spec' shows the agents and spaces that it needs"
        )
    if config.stop.time_s is not None:
        remedy += "; stop.time_s counts from the first env step"
    return remedy
