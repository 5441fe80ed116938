from pathlib import Path

from muxrl.orchestrator.evaluations.frozen_servers import freeze
from muxrl.servers.config import ResourcesConfig, ServerConfig


def test_what_learned_on_a_gpu_is_evaluated_where_there_is_none() -> None:
    learned = ServerConfig(
        algorithm="PPO", agents=["a"], resources=ResourcesConfig(num_cpus=2, num_gpus=0.5)
    )
    frozen = freeze(learned, Path("checkpoint"), "PPO", should_explore=True)
    assert frozen.resources == ResourcesConfig(num_cpus=2)
