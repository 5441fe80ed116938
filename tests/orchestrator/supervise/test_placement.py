"""All processes of a run get a place, or none does, on a Ray with two logical CPUs; and GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, load_config, prepare
from muxrl.orchestrator.errors import ConfigError, NoPlace
from muxrl.orchestrator.launch.whole_run import run_experiment
from muxrl.orchestrator.supervise.gpus import check_gpus, gpu_environment
from muxrl.orchestrator.supervise.placement import (
    beyond_every_machine,
    bundles,
    own_place,
    reserved,
    strategy,
)
from muxrl.servers.config import ResourcesConfig, ServerConfig


def config(num_cpus: float, num_gpus: float = 0.0, host: str = "127.0.0.1") -> ExperimentConfig:
    """Returns a config of one server, beside a simulation that is started by others."""
    resources = ResourcesConfig(num_cpus=num_cpus, num_gpus=num_gpus)
    return ExperimentConfig(
        simulation=SimulationConfig(env="external"),
        servers={"a": ServerConfig(host=host, resources=resources)},
    )


def test_a_run_without_resources_needs_no_place() -> None:
    assert bundles(config(0.0)) == {}
    with reserved(config(0.0)) as scheduling:  # does not start Ray
        assert scheduling is None


def test_servers_that_listen_on_loopback_and_their_simulations_share_a_machine() -> None:
    assert strategy(config(1.0)) == "STRICT_PACK"
    assert strategy(config(1.0, host="::1")) == "STRICT_PACK"
    others = config(1.0, host="0.0.0.0")
    assert strategy(others) == "PACK"
    others.servers["b"] = ServerConfig()
    assert strategy(others) == "STRICT_PACK"  # other machines could not reach this server
    del others.servers["b"]
    others.simulation.command = ["play"]
    assert strategy(others) == "STRICT_PACK"  # the command could not reach the gateway
    others.simulation.gateway.host = "0.0.0.0"
    assert strategy(others) == "PACK"


class Group:
    """The part of a scheduling strategy that is read."""

    placement_group = "group"


def test_each_process_with_resources_has_a_bundle_of_its_own() -> None:
    cpus = {"a": 1.0, "free": 0.0, "b": 1.0}
    experiment = ExperimentConfig(
        simulation=SimulationConfig(env="games:Env", num_processes=2, num_cpus=0.5),
        servers={s: ServerConfig(resources=ResourcesConfig(num_cpus=n)) for s, n in cpus.items()},
    )
    names = ("a", "b", "simulation-0", "simulation-1", "evaluation")
    assert [*bundles(experiment)] == [*names]
    assert [*bundles(experiment).values()] == [{"CPU": 1.0}] * 2 + [{"CPU": 0.5}] * 3
    places = [own_place(Group, experiment, name) for name in names]
    found = [place["scheduling_strategy"].placement_group_bundle_index for place in places]
    assert found == [0, 1, 2, 3, 4]
    assert [place["num_cpus"] for place in places] == [1.0, 1.0, 0.5, 0.5, 0.5]
    assert own_place(Group, experiment, "free")["scheduling_strategy"] is Group
    assert own_place(None, experiment, "a")["scheduling_strategy"] is None


def test_resources_that_no_machine_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = [{"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 4.0}]
    nodes = [{"Alive": i < 2, "Resources": machine} for i, machine in enumerate(machines)]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    assert beyond_every_machine(config(8.0, 1.0)) == ""
    found = beyond_every_machine(config(1.0, 2.0))
    assert found == "'a' wants 2 GPUs, and no machine of the cluster has more than 1"


@pytest.mark.learning
@pytest.mark.usefixtures("running_ray")
class TestOnRay:
    def test_a_place_is_reserved_once_and_released_afterwards(self) -> None:
        said: list[str] = []
        with reserved(config(1.5)) as scheduling:
            assert scheduling is not None
            with pytest.raises(NoPlace) as refusal, reserved(config(1.0), said.append, 1.0):
                pass
        story = "the run reserves 1 CPUs (logical ones), all on one machine"
        assert said[0].startswith(f"waiting for room on the Ray cluster: {story}")
        assert f"within 1 s: {story}" in str(refusal.value)
        assert "machines have 2 CPUs, and 0.5 CPUs are free" in str(refusal.value)
        with reserved(config(2.0), said.append):
            pass
        assert len(said) == 1

    def test_a_run_without_room_fails_with_the_reason_and_starts_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chase = prepare(load_config("chase", ["address=auto"]))
        monkeypatch.setattr("muxrl.orchestrator.supervise.placement.reserved", impatient)
        result = run_experiment(chase, run_dir=tmp_path / "run", show_progress=False)
        assert (result.outcome, result.exit_code) == ("failed", 1)
        assert "the run reserves 3 CPUs" in result.problem
        assert not any((tmp_path / "run" / "logs").iterdir())


def impatient(config: ExperimentConfig, say: object) -> object:
    return reserved(config, patience_s=1.0)


@pytest.mark.parametrize(
    ("wanted", "num_here", "given", "found"),
    [
        ([0.5, 1.0, 0.5], 2, "", ["0", "1", "0"]),
        ([0.1] * 10, 1, "", ["0"] * 10),
        ([0.5, 2.0], 3, "7,GPU-4,9", ["7", "GPU-4,9"]),
        ([0.6, 0.6, 0.6], 2, "", "wants 0.6 GPU (resources.num_gpus), but this machine has 2, of "
         "which earlier servers leave 0.4, 0.4; leave the key out to learn on the CPU"),
        ([0.5, 2.0], 2, "", "wants 2 GPUs (resources.num_gpus), but this machine has 2, of "
         "which earlier servers leave 0.5, 1; leave the key out to learn on the CPU"),
        ([1.0], 0, "", "wants 1 GPU (resources.num_gpus), but this machine has 0; leave the "
         "key out to learn on the CPU"),
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
