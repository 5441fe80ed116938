"""What a checkpoint holds, when it is refused, and with which of its weights another server may
begin."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.resumable import (
    DQN,
    REPLAY,
    Served,
    assert_same,
    plan_of,
    play_and_save,
    refusal,
)
from tests.servers.scripted_store import make_plan

from muxrl.protocol.spaces import Box
from muxrl.servers.server import PolicyServer, serve_forever


@pytest.fixture(scope="module")
def saved(rllib: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a DQN server after nine episodes."""
    path = tmp_path_factory.mktemp("saved") / "dqn"
    play_and_save(plan_of("DQN"), path, 9)
    return path


def test_a_checkpoint_is_as_of_one_moment_and_free_of_our_pickles(saved: Path) -> None:
    about = json.loads((saved / "muxrl.json").read_text())
    assert (about["format"], about["algorithm"], about["env_steps"]) == (1, "DQN", 72)
    assert about["replay"]["mib"] < 1
    for name in ("muxrl_state.npz", "muxrl_replay.npz"):
        with np.load(saved / name, allow_pickle=False) as arrays:
            assert all(array.dtype != object for array in arrays.values())
    assert list(saved.parent.iterdir()) == [saved], "nothing half-written beside it"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"algorithm": "SAC", "settings": REPLAY},
            "algorithm is DQN in the checkpoint, SAC in the config",
        ),
        ({"model": {"fcnet_hiddens": [9]}}, "model.fcnet_hiddens is [8] in the checkpoint, [9] in"),
        ({"agents": {**make_plan("a").agents}}, 'agents.b is {"policy": "default"'),
        (
            {"agents": make_plan({"a": Box((2,)), "b": Box((2,), "float32", 0, 1)}).agents},
            "agents.b.observation_space.low is",
        ),
        (
            {"settings": {**DQN, "replay_buffer_config": {"capacity": 40}}},
            "48 steps were kept, and the replay now holds 40 (its capacity)",
        ),
        ({"normalize_observations": True}, "observations is false in the checkpoint, true in"),
        ({"scale_observations": "images"}, "observations is none in the checkpoint, images in"),
        ({"frame_stack": 2}, "frame_stack is 1 in the checkpoint, 2 in the config"),
        ({"settings": {**DQN, "num_atoms": 5}}, "the network of policy 'default' is another"),
        ({"resume_from": "/no/such/folder"}, "there is no checkpoint at '/no/such/folder'"),
    ],
)
def test_a_checkpoint_of_another_server_is_refused_by_what_differs(
    saved: Path, change: dict[str, Any], reason: str
) -> None:
    told = refusal(dataclasses.replace(plan_of("DQN", resume_from=str(saved)), **change))
    assert told.startswith("server 'scripted' cannot resume from ")
    assert reason in told


def test_policies_are_begun_with_together_with_their_statistics(
    rllib: None, tmp_path: Path
) -> None:
    first = play_and_save(plan_of("PPO, normalised"), tmp_path / "saved", 9)
    plan = plan_of("PPO, normalised", initialize_from=str(tmp_path / "saved"))
    second = Served(plan)
    assert_same(second.state()["normalization"], first.state()["normalization"])
    second.end()
    told = refusal(dataclasses.replace(plan, normalize_observations=False))
    assert "it was trained with normalize_observations: true, but the server" in told


@pytest.mark.parametrize("name", ["muxrl_state.npz", "muxrl_replay.npz"])
def test_a_damaged_file_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    torn = shutil.copytree(saved, tmp_path / "torn")
    content = (torn / name).read_bytes()
    (torn / name).write_bytes(content[: len(content) // 2])
    told = refusal(plan_of("DQN", resume_from=str(torn)))
    assert name in told or "truncated" in told


def test_changed_settings_take_effect_and_are_told(
    saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    served = Served(
        plan_of("DQN", resume_from=str(saved), settings={**DQN, "lr": 0.5, "gamma": 0.9})
    )
    learner: Any = served.policies.acting.learners["default"]
    assert [step.lr for step in learner.steps.values()] == [0.5]
    assert learner.gamma == 0.9
    served.end()
    assert "lr: 0.5, was 0.01" in caplog.text
    assert "gamma: 0.9, was the default" in caplog.text


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one_and_learning_goes_on(
    rllib: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(plan_of("PPO"))
    served.play(0, 4)
    served.policies.save(tmp_path / "saved")
    before = (tmp_path / "saved" / "muxrl.json").read_bytes()

    def fill(path: Path, state: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    served.play(4, 8)
    with monkeypatch.context() as patch:
        patch.setattr("muxrl.servers.checkpoints.checkpoint.write_state", fill)
        with pytest.raises(OSError, match="No space left"):
            served.policies.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "muxrl.json").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "saved"]
    served.play(8, 12)
    assert served.policies.acting.weights_seq_no == 3, "it learned after that"
    served.policies.save(tmp_path / "saved")
    served.end()
    assert json.loads((tmp_path / "saved" / "muxrl.json").read_text())["env_steps"] == 96


def test_a_folder_of_something_else_is_not_replaced(rllib: None, tmp_path: Path) -> None:
    served = Served(plan_of("PPO"))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "table.csv").write_text("1")
    with pytest.raises(FileExistsError, match="is not a checkpoint, so it is not replaced"):
        served.policies.save(tmp_path / "results")
    served.end()
    assert (tmp_path / "results" / "table.csv").read_text() == "1"


def test_a_checkpoint_of_the_time_before_format_1_is_refused(saved: Path, tmp_path: Path) -> None:
    old = shutil.copytree(saved, tmp_path / "old")
    (old / "learner_group").mkdir()
    told = refusal(plan_of("DQN", resume_from=str(old)))
    assert (
        "was written by an older muxrl, as files of RLlib, which this one does not read: train"
        in told
    )
    (old / "learner_group").rmdir()
    note = json.loads((old / "muxrl.json").read_text())
    (old / "muxrl.json").write_text(json.dumps({**note, "format": 3}))
    assert refusal(plan_of("DQN", initialize_from=str(old))).endswith(told.partition(": ")[2])


def networks_of(served: Served) -> dict[str, Any]:
    """Returns all learned networks, by policy."""
    return served.policies.acting.get("networks")


def weights_of(served: Served) -> dict[str, Any]:
    """Returns the weights of the networks that act, by policy."""
    return served.policies.acting.get("weights")


# --- initialize_from ---------------------------------------------------------------------------


def test_initialized_policies_have_the_weights_and_nothing_else(saved: Path) -> None:
    served = Served(plan_of("DQN", initialize_from=str(saved)))
    fresh = Served(plan_of("DQN"))
    resumed = Served(plan_of("DQN", resume_from=str(saved)))
    for one in (served, fresh, resumed):
        one.end()
    ours, theirs = served.policies.acting, resumed.policies.acting
    assert_same(ours.get("networks"), theirs.get("networks"))
    assert_same(ours.get("weights"), theirs.get("weights"))
    for part in ("counts", "weights_seq_no", "env_steps"):
        assert_same(served.state()[part], fresh.state()[part])
    learner, new = (one.state()["trainers"]["default"] for one in (served, fresh))
    assert_same(learner["steps"], new["steps"])


def test_initial_weights_of_other_policies_are_refused(saved: Path) -> None:
    plan = plan_of("DQN", initialize_from=str(saved))
    assert "it was trained with DQN, but the server's algorithm is SAC" in refusal(
        dataclasses.replace(plan, algorithm="SAC", settings=REPLAY)
    )
    renamed = {a: dataclasses.replace(p, policy_id="mine") for a, p in plan.agents.items()}
    assert "it has no policy 'mine', only default; name the one that 'mine' begins with" in refusal(
        dataclasses.replace(plan, agents=renamed)
    )
    others = make_plan({"a": Box((3,)), "b": Box((3,))}).agents
    assert "policy 'default' has the observation space" in refusal(
        dataclasses.replace(plan, agents=others)
    )
    assert "the network of policy 'default' is another" in refusal(
        dataclasses.replace(plan, model={"fcnet_hiddens": [9]})
    )


def test_several_policies_may_begin_with_one_and_the_actor_alone(saved: Path) -> None:
    plan = plan_of("DQN", initialize_from=str(saved))
    apart = {a: dataclasses.replace(p, policy_id=a) for a, p in plan.agents.items()}
    sources = dict.fromkeys(apart, "default")
    plan = dataclasses.replace(plan, agents=apart, initialize_policies=sources)
    teacher = Served(plan_of("DQN", resume_from=str(saved)))
    whole, actor = (
        Served(dataclasses.replace(plan, initialize_only=only)) for only in ("all", "actor")
    )
    for one in (teacher, whole, actor):
        one.end()
    learned, acts = (get(teacher)["default"] for get in (networks_of, weights_of))
    for policy_id in apart:
        assert_same(networks_of(whole)[policy_id], learned)
        assert_same(weights_of(actor)[policy_id], acts)
        target = {key for key in learned if key.startswith("target")}
        assert target
        # The target equals the online network, as if it had followed it all along.
        for key in target:
            online = learned[key.replace("target", "online", 1)]
            assert_same(networks_of(actor)[policy_id][key], online)


@pytest.mark.parametrize("shares_layers", [False, True])
@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "IMPALA", "APPO", "MAPPO"])
def test_the_actor_alone_of_a_recurrent_policy_can_be_taken_over(
    algorithm: str, shares_layers: bool, tmp_path: Path
) -> None:
    """To act, a recurrent policy also has its critic, for the critic's state; only the actor is
    taken over."""
    model = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [8]}
    if algorithm != "MAPPO":
        model["vf_share_layers"] = shares_layers
    plan = plan_of(algorithm, model=model)
    learned = networks_of(play_and_save(plan, tmp_path / "saved"))
    fresh = Served(dataclasses.replace(plan, seed=7))
    begun = {"initialize_from": str(tmp_path / "saved"), "initialize_only": "actor", "seed": 7}
    actor = Served(dataclasses.replace(plan, **begun))
    for one in (fresh, actor):
        one.end()
    critic = ("vf",) if shares_layers and algorithm != "MAPPO" else ("vf", "critic")
    for policy_id, networks in networks_of(actor).items():
        for key, part in networks.items():
            # The target equals the network, as if it had followed it all along.
            if key.startswith("target."):
                assert_same(part, networks[key.replace("target", "net", 1)])
                continue
            is_fresh = key.removeprefix("net.").startswith(critic)
            source = networks_of(fresh) if is_fresh else learned
            assert_same(part, source[policy_id][key])


def test_the_actor_of_a_team_of_another_size_can_be_taken_over(rllib: None, tmp_path: Path) -> None:
    size = {"obs_agent_id": False}
    pair = plan_of("QMIX")
    pair = dataclasses.replace(pair, settings={**pair.settings, **size})
    teacher = play_and_save(pair, tmp_path / "pair")
    trio = dataclasses.replace(
        make_plan("abc", groups={"team": tuple("abc")}),
        algorithm="QMIX",
        settings=pair.settings,
        initialize_from=str(tmp_path / "pair"),
    )
    assert "the network of policy 'team' is another" in refusal(trio)
    served = Served(dataclasses.replace(trio, initialize_only="actor"))
    served.end()
    assert_same(weights_of(served), weights_of(teacher))


@pytest.mark.parametrize("case", ["DQN", "APPO", "SAC", "QMIX", "MASAC", "MADDPG"])
def test_targets_follow_an_actor_that_comes_from_elsewhere(tmp_path: Path, case: str) -> None:
    teacher = Served(plan_of(case))
    teacher.policies.save(tmp_path / "saved")
    learner = Served(
        plan_of(case, seed=7, initialize_from=str(tmp_path / "saved"), initialize_only="actor")
    )
    for one in (teacher, learner):
        one.end()
    (trainer,) = learner.policies.acting.learners.values()
    targets = trainer.targets
    assert all(map(torch.equal, targets._copies, targets._of))


# --- muxrl serve --------------------------------------------------------------------------------


def test_serve_never_overwrites_a_checkpoint_and_goes_on_from_the_newest(
    rllib: None,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan, last = plan_of("DQN"), tmp_path / "checkpoints" / "scripted" / "last"
    assert serve_forever(plan, tmp_path, resume=True) == 2
    assert "has no checkpoint in" in caplog.text
    assert serve_forever(plan, resume=True) == 2
    assert "--resume needs --run-dir" in caplog.text

    shutil.copytree(saved, tmp_path / "checkpoints" / "48" / "scripted")
    older = tmp_path / "checkpoints" / "48" / "scripted" / "muxrl.json"
    older.write_text(json.dumps({**json.loads(older.read_text()), "written_at": 1.0}))
    shutil.copytree(saved, last)
    assert serve_forever(plan, tmp_path) == 2
    assert f"has a checkpoint, '{last}', which would be overwritten" in caplog.text
    assert "--resume" in caplog.text

    began: list[PolicyServer] = []

    class Ends(PolicyServer):
        def start(self) -> str:
            began.append(self)
            address = super().start()
            os.kill(os.getpid(), signal.SIGINT)
            return address

    monkeypatch.setattr("muxrl.servers.server.PolicyServer", Ends)
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    try:
        assert serve_forever(plan, tmp_path, resume=True) == 0
    finally:
        for number, handler in zip(
            (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), before, strict=True
        ):
            signal.signal(number, handler)
    assert began[0].plan.resume_from == str(last)
    assert began[0].status().num_env_steps == 72
    assert json.loads((last / "muxrl.json").read_text())["env_steps"] == 72


def test_serve_refuses_a_folder_that_another_process_writes_to(
    rllib: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints" / "scripted"
    folder.mkdir(parents=True)
    with (folder / "serving.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert serve_forever(plan_of("DQN"), tmp_path) == 2
    assert f"another process already serves 'scripted' from '{folder}'" in caplog.text
    assert "another --run-dir" in caplog.text
