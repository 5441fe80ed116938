"""Which GPUs servers get, and who is told that there are too few."""

from __future__ import annotations

import pytest

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.supervise.gpus import check_gpus, gpu_environment
from muxrl.servers.config import ResourcesConfig, ServerConfig


@pytest.mark.parametrize(
    ("wanted", "num_here", "given", "found"),
    [
        ([0.5, 1.0, 0.5], 2, "", ["0", "1", "0"]),
        ([0.1] * 10, 1, "", ["0"] * 10),
        ([0.5, 2.0], 3, "7,GPU-4,9", ["7", "GPU-4,9"]),
        ([0.6, 0.6, 0.6], 2, "", "wants 0.6 GPU (resources.num_gpus), this machine has 2, of "
         "which the servers before it leave 0.4, 0.4; leave it out to learn on the CPU"),
        ([0.5, 2.0], 2, "", "wants 2 GPUs (resources.num_gpus), this machine has 2, of "
         "which the servers before it leave 0.5, 1; leave it out to learn on the CPU"),
        ([1.0], 0, "", "wants 1 GPU (resources.num_gpus), this machine has 0; leave it out to "
         "learn on the CPU"),
    ],
)  # fmt: skip
def test_servers_have_to_fit_on_single_gpus(
    wanted: list[float],
    num_here: int,
    given: str,
    found: str | list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_here)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    resources = [ResourcesConfig(num_gpus=n) for n in wanted]
    servers = {f"s{i}": ServerConfig(resources=one) for i, one in enumerate(resources)}
    config = ExperimentConfig(servers=servers)
    if isinstance(found, str):
        with pytest.raises(ConfigError) as refusal:
            check_gpus(config)
        assert refusal.value.problems == [f"server {[*servers][-1]!r}: {found}"]
    else:
        check_gpus(config)
        assert gpu_environment(config) == {
            s: {"CUDA_VISIBLE_DEVICES": which} for s, which in zip(servers, found, strict=True)
        }
