"""`muxrl evaluate` measures the policies that a run has saved, and refuses wrong arguments."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.commanded import Muxrl

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator import user_modules
from muxrl.orchestrator.config import (
    ExperimentConfig,
    ExternalAgentConfig,
    SimulationConfig,
    to_yaml,
)
from muxrl.orchestrator.errors import CannotEvaluate, ConfigError
from muxrl.orchestrator.evaluations.evaluate import evaluate_run
from muxrl.orchestrator.launch.in_process import serve
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.servers.config import ServerConfig

CHASE = SimulationConfig("muxrl.experiments.simulations.torus_chase:TorusChase", {"num_steps": 8})
PREDATORS = [f"predator_{i}" for i in range(3)]
QMIX = {"hidden_dim": 16, "agent": "mlp", "batch_size_episodes": 4,
        "num_episodes_before_learning": 4, "min_sample_timesteps_per_iteration": 80}  # fmt: skip
PPO = {"train_batch_size_per_learner": 80, "minibatch_size": 40, "num_epochs": 2, "lr": 0.01}


def experiment(**servers: ServerConfig) -> ExperimentConfig:
    config = ExperimentConfig("chase", simulation=CHASE, servers=servers)
    config.evaluation.seed = 77
    config.evaluation.should_explore = True
    return config


def learners() -> ExperimentConfig:
    return experiment(
        qmix=ServerConfig("QMIX", PREDATORS, groups={"pack": PREDATORS}, settings=QMIX),
        ppo=ServerConfig("PPO", ["prey_0"], settings=PPO, model={"fcnet_hiddens": [16]}),
        random=ServerConfig("RANDOM", ["prey_1"]),
    )


def new_run(root: Path, config: ExperimentConfig) -> RunDirectory:
    run = RunDirectory.create(root, "chase", datetime(2026, 11, 21))
    run.write_config(to_yaml(config))
    return run


def test_a_function_replaces_a_server(tmp_path: Path) -> None:
    fixed = {"pack": ServerConfig("RANDOM", PREDATORS), "prey": ServerConfig("RANDOM", ["prey_*"])}
    config = experiment(**fixed)
    config.evaluation.max_episode_steps = 5
    run = new_run(tmp_path, config)
    flee = "muxrl.experiments.examples.scripted_chase:flee"
    found = evaluate_run(run.path, num_episodes=2, replace={"prey": flee})
    assert found.assignment.endswith("|flee:prey_0,prey_1")
    assert (found.servers["prey"].algorithm, found.servers["prey"].rule) == ("SCRIPTED", "fixed")
    assert (found.num_steps, found.num_truncated) == ((5, 5), 2), "of 8 steps"
    cut = found.metrics["truncated"].estimate
    assert (cut.mean, cut.high) == (1.0, 1.0)
    assert cut.low < 0.5, "a proportion, of two episodes"
    with pytest.raises(ConfigError, match="has no 'flea'; did you mean 'flee'"):
        evaluate_run(run.path, replace={"prey": flee.replace("flee", "flea")})


# --- refusals -------------------------------------------------------------------------------


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "chase", datetime(2026, 11, 21))
    with pytest.raises(CannotEvaluate, match=r"has no config\.yaml: it never began"):
        evaluate_run(run.path)
    run.write_config("servers: [\n")
    with pytest.raises(ConfigError, match=r"its config\.yaml cannot be read: .*another version"):
        evaluate_run(run.path)
    run.write_config("servers: {a: {algorihm: PPO}}\n")
    with pytest.raises(ConfigError, match=r"servers\.a\.algorihm: unknown key 'algorihm'"):
        evaluate_run(run.path)


def test_missing_checkpoints_are_refused_with_the_existing_ones(tmp_path: Path) -> None:
    run = new_run(tmp_path, learners())
    (run.checkpoints / "qmix" / "100_env_steps").mkdir(parents=True)
    with pytest.raises(CannotEvaluate) as refusal:
        evaluate_run(run.path)
    assert str(refusal.value) == (
        f"server 'qmix': run '{run.name}' has no checkpoint 'last' of this server; it has "
        f"100_env_steps; server 'ppo': run '{run.name}' has no checkpoint 'last' of this server; "
        "none was saved"
    )


@pytest.mark.parametrize(
    ("server", "instead", "reason"),
    [
        ("ppo2", "random", "has no server 'ppo2' to replace; did you mean 'ppo'?"),
        ("shadow", "random", "no server 'shadow' to replace; its servers are qmix, ppo, random"),
        ("ppo", "rndom", "server 'ppo': there is no checkpoint at"),
    ],
)
def test_missing_replacements_are_refused(
    tmp_path: Path, server: str, instead: str, reason: str
) -> None:
    config = learners()
    servers = {**config.servers, "shadow": ServerConfig("DQN", shadow="ppo")}
    run = new_run(tmp_path, dataclasses.replace(config, servers=servers))
    with pytest.raises(CannotEvaluate, match=re.escape(reason)):
        evaluate_run(run.path, replace={server: instead})


def test_an_external_simulation_is_refused_with_what_to_do(tmp_path: Path) -> None:
    space = {"type": "discrete", "n": 2}
    external = SimulationConfig("external", agents={"a": ExternalAgentConfig(space, space)})
    config = experiment(ppo=ServerConfig("PPO", ["a"]))
    run = new_run(tmp_path, dataclasses.replace(config, simulation=external))
    with pytest.raises(CannotEvaluate, match="is external, so muxrl cannot start it; serve"):
        evaluate_run(run.path)


def test_zero_episodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotEvaluate, match="the number of episodes is 0"):
        evaluate_run(tmp_path, num_episodes=0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/no/such/run"], "muxrl: /no/such/run is not the directory of a run: "),
        (["/no/such/run", "--replace", "ppo"], "'ppo' must look like SERVER=random"),
        (["/no/such/run", "--greedy", "--explore"], "not allowed with argument"),
        (["/no/such/run", "seed=3"], "unrecognized arguments: seed=3"),
    ],
)
def test_the_command_refuses_with_exit_code_2(
    arguments: list[str], told: str, muxrl: Muxrl
) -> None:
    assert told in muxrl("evaluate", *arguments, code=2).err


def test_a_user_s_module_is_found_where_the_run_was_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(sys, "argv", ["muxrl"])
    monkeypatch.setattr(user_modules, "_added", [])
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "env_of_a_user.py").write_text(
        "from muxrl.experiments.simulations.torus_chase import TorusChase as Mine\n"
    )
    config = experiment(random=ServerConfig("RANDOM", ["*"]))
    mine = SimulationConfig("env_of_a_user:Mine", {"num_steps": 8})
    run = new_run(tmp_path, dataclasses.replace(config, simulation=mine))
    monkeypatch.chdir(elsewhere)
    with pytest.raises(
        ConfigError,
        match=r"env_of_a_user.*\n.*no record of the folder in which it was launched; start",
    ):
        evaluate_run(run.path)
    monkeypatch.chdir(project)
    StatusFile(run).enter("done", 0)
    monkeypatch.chdir(elsewhere)
    assert evaluate_run(run.path, num_episodes=1).num_steps == (8,)

    monkeypatch.delitem(sys.modules, "env_of_a_user")
    project.rename(tmp_path / "moved")
    with pytest.raises(ConfigError) as refused:
        evaluate_run(run.path)
    assert f"launched in {project} (not there any more); start muxrl in" in str(refused.value)


# --- a run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(rllib: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a run whose learners have learned a little."""
    run = new_run(tmp_path_factory.mktemp("runs"), learners())
    with serve(learners()) as served:
        with served.client() as client:
            loop = EnvLoop([served.simulation() for _ in range(2)], client)
            loop.run(should_stop=lambda: loop.num_env_steps >= 600)
        served.check()
        for server_id, server in served.servers.items():
            server.finish_training()
            server.policies.save(run.checkpoints / server_id / "last")
        assert served.servers["qmix"].status().weights_seq_no > 0
    return run.path


@pytest.mark.learning
def test_a_run_is_evaluated_the_same_way_every_time_and_nothing_changes(
    trained: Path, muxrl: Muxrl
) -> None:
    before = {p: p.read_bytes() for p in (trained / "checkpoints").rglob("*") if p.is_file()}
    result = evaluate_run(trained, num_episodes=12)
    assert result.seeds == tuple(range(77, 89))
    assert result.num_steps == (8,) * 12
    assert {s: (v.algorithm, v.rule, v.checkpoint) for s, v in result.servers.items()} == {
        "qmix": ("QMIX", "greedy", "checkpoints/qmix/last"),
        "ppo": ("PPO", "sampled", "checkpoints/ppo/last"),
        "random": ("RANDOM", "fixed", ""),
    }
    assert result.assignment == ("qmix:predator_0,predator_1,predator_2|ppo:prey_0|random:prey_1")
    # A catch pays 1 to each predator and costs a prey 1: rewards are raw, none is lost or doubled.
    for i in range(12):
        of = {agent: returns[i] for agent, returns in result.episode_returns.items()}
        assert len({of[p] for p in PREDATORS}) == 1
        assert of["predator_0"] == -(of["prey_0"] + of["prey_1"])
    assert result.groups["qmix/pack"] == result.servers["qmix"].returns
    assert set(result.roles) == {"predator", "prey"}
    assert result.everybody.total.mean == pytest.approx(2 * result.agents["predator_0"].mean)
    assert evaluate_run(trained, num_episodes=12, should_write=False) == dataclasses.replace(
        result, path=None
    )
    assert {p: p.read_bytes() for p in before} == before

    written = json.loads(result.path.read_text())
    assert written["format"] == 2
    assert written["versions"]["ray"]
    assert written["seeds"] == list(result.seeds)
    assert written["episode_returns"]["prey_0"] == list(result.episode_returns["prey_0"])
    assert written["servers"]["qmix"]["returns"]["mean"] == (result.servers["qmix"].returns.mean)

    arguments = "--episodes 3 --seed 5 --greedy --replace qmix=random"
    out, err = muxrl("evaluate", trained, *arguments.split())
    assert err.splitlines()[-1] == "evaluation", "it says what it waits for, and nothing else"
    assert "warning" not in err
    assert "qmix RANDOM" in out
    assert len(list((trained / "evaluations").iterdir())) == 2


@pytest.mark.learning
def test_a_run_with_local_inference_is_evaluated(trained: Path, tmp_path: Path) -> None:
    """The servers of the evaluation, which are frozen, act themselves."""
    run = RunDirectory(Path(shutil.copytree(trained, tmp_path / "local")))
    config = run.read_config()
    local = dataclasses.replace(config.simulation, inference_mode={"qmix": "local", "ppo": "local"})
    run.write_config(to_yaml(dataclasses.replace(config, simulation=local)))
    as_remote = evaluate_run(trained, num_episodes=2, should_write=False)
    assert evaluate_run(run.path, num_episodes=2).episode_returns == as_remote.episode_returns


@pytest.mark.learning
def test_the_rule_the_seed_and_replacements_decide_what_is_played(trained: Path) -> None:

    def play(**how: Any) -> Any:
        return evaluate_run(trained, num_episodes=6, should_write=False, **how)

    sampled, greedy = play(should_explore=True), play(should_explore=False)
    assert sampled.servers["ppo"].rule == "sampled"
    assert greedy.servers["ppo"].rule == "greedy"
    assert sampled.servers["qmix"].rule == greedy.servers["qmix"].rule == "greedy"
    other = play(seed=5)
    assert other.seeds == (5, 6, 7, 8, 9, 10)
    ppo = trained / "checkpoints" / "ppo" / "last"
    swapped = play(replace={"qmix": str(ppo), "random": str(ppo), "ppo": "random"})
    assert {s: v.algorithm for s, v in swapped.servers.items()} == {
        "qmix": "PPO", "ppo": "RANDOM", "random": "PPO"
    }  # fmt: skip
    assert swapped.replaced["ppo"] == "random"
    with pytest.raises(ConfigError, match=r"acts in MultiDiscrete\(\[5 5 5\]\), but|observes"):
        play(replace={"ppo": str(trained / "checkpoints" / "qmix" / "last")})
