"""A config as YAML, for people and for the run directory, and back from there."""

from __future__ import annotations

from dataclasses import replace

from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.errors import ConfigError


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


def from_yaml(text: str, source: str = "") -> ExperimentConfig:
    """Returns the config that `to_yaml` wrote; a masked token comes back as none.

    Args:
        text: all of it.
        source: where it came from, for the message.

    Raises:
        ConfigError: it is not YAML, or of another version of muxrl.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        tree = OmegaConf.merge(OmegaConf.structured(ExperimentConfig), OmegaConf.create(text))
        for server in tree.servers.values():
            if OmegaConf.is_missing(server, "token"):
                server.token = ""
        config = OmegaConf.to_object(tree)
    except (OmegaConfBaseException, YAMLError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(
            [f"its config.yaml cannot be read: {first}; was it written by another version?"], source
        ) from error
    assert isinstance(config, ExperimentConfig)
    return config
