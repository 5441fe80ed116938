"""A config as YAML, for people and for the run directory."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.config.schema import ExperimentConfig


def to_yaml(config: ExperimentConfig) -> str:
    """Returns every setting, defaults included, as `load_config` reads it.

    Tokens are masked, since the text is kept. The mask is OmegaConf's "to be filled in", so that
    a launch from this text says so instead of listening with a token that everybody knows.
    """
    from omegaconf import OmegaConf

    hidden = {
        server_id: replace(server, token="???") if server.token else server
        for server_id, server in config.servers.items()
    }
    return OmegaConf.to_yaml(OmegaConf.structured(replace(config, servers=hidden)))
