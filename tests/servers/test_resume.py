"""A server that was stopped and goes on ends with the very weights that it would have had."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree
from tests.servers.scripted_store import make_plan

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.learned_policies import LearnedPolicies
from muxrl.servers.policies import ServerProblem
from muxrl.servers.server import PolicyServer, make_policies, serve_forever

T = 8
"""Steps of an episode. Batches of 4 or 32 steps end with one."""
T_IN_TEAMS = 40
"""Likewise: five such episodes make a batch."""
PATIENCE_S = 60.0

_ON_POLICY = {"train_batch_size_per_learner": 32, "lr": 0.01}
_EPOCHS = {**_ON_POLICY, "minibatch_size": 16, "num_epochs": 2}
_SCHEDULES = {
    "lr": [[0, 0.01], [400, 0.001]],
    "entropy_coeff": [[0, 0.1], [400, 0.0]],
    "use_kl_loss": True,
    "kl_coeff": 0.5,
}
_ASYNCHRONOUS = {"train_batch_size_per_learner": 32, "rollout_fragment_length": T, "lr": 0.01}
_REPLAY = {
    "train_batch_size_per_learner": 8,
    "num_steps_sampled_before_learning_starts": 32,
    "min_sample_timesteps_per_iteration": 16,
    "replay_buffer_config": {"capacity": 48},
    "rollout_fragment_length": 4,
}
_DQN = {**_REPLAY, "target_network_update_freq": 24, "lr": 0.01, "n_step": 3}
_PRIORITIZED = {"type": "MultiAgentPrioritizedEpisodeReplayBuffer", "capacity": 48}
_TEAM = {
    "batch_size_episodes": 4,
    "num_episodes_before_learning": 4,
    "buffer_capacity_episodes": 6,
    "target_update_freq": 3,
    "min_sample_timesteps_per_iteration": 16,
    "epsilon": [[0, 1.0], [200, 0.1]],
    "hidden_dim": 8,
    "lr": 0.01,
}
_SMALL = {"fcnet_hiddens": [8]}
_LSTM = {**_SMALL, "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "PPO": ("PPO", _EPOCHS, _SMALL),
    "PPO with schedules": ("PPO", {**_EPOCHS, **_SCHEDULES}, _SMALL),
    "PPO with an LSTM": ("PPO", _EPOCHS, _LSTM),
    "A2C": ("A2C", _ON_POLICY, _SMALL),
    "MAPPO": ("MAPPO", _EPOCHS, _SMALL),
    "DQN": ("DQN", _DQN, _SMALL),
    "DQN by priority": ("DQN", {**_DQN, "replay_buffer_config": _PRIORITIZED}, _SMALL),
    "SAC": ("SAC", _REPLAY, _SMALL),
    "IMPALA": ("IMPALA", _ASYNCHRONOUS, _SMALL),
    "APPO": ("APPO", {**_ASYNCHRONOUS, "target_network_update_freq": 2}, _SMALL),
    "QMIX": ("QMIX", _TEAM, {}),
    "QMIX, rewards standardized": ("QMIX", {**_TEAM, "standardize_rewards": True}, {}),
    "VDN": ("VDN", _TEAM, {}),
    "IQL": ("IQL", _TEAM, {}),
}
_IN_TEAMS = {"QMIX", "VDN", "IQL", "MAPPO"}


def plan_of(case: str, **fields: Any) -> ServerPlan:
    algorithm, settings, model = CASES[case]
    groups = {"team": ("a", "b")} if algorithm in _IN_TEAMS else {}
    plan = make_plan(groups=groups)
    plan = dataclasses.replace(plan, algorithm=algorithm, settings=settings, model=model)
    return dataclasses.replace(plan, **fields)


class Served:
    """Policies in this process, and one simulation that plays them in lockstep."""

    def __init__(self, plan: ServerPlan) -> None:
        self.problems: list[str] = []
        policies = make_policies(plan, None, self.problems.append)
        assert isinstance(policies, LearnedPolicies)
        self.policies = policies
        self.policies.start()

    def play(self, first: int, last: int) -> None:
        """Plays whole episodes; what happens in each depends on its number and its actions."""
        store = self.policies.store
        t_max = T_IN_TEAMS if store.plan.groups else T
        for number in range(first, last):
            rng = np.random.default_rng(number)
            episode_id, rewards = f"episode-{number}", {}
            store.accept(StartEpisode(episode_id), 0.0)
            for t in range(t_max):
                seen = {agent: rng.random(2, np.float32) for agent in "ab"}
                pending = store.accept(Step(episode_id, t, seen, rewards), 0.0)
                store.finish_frame()
                actions = self._act(pending)
                rewards = {a: float(actions[a] == (seen[a][0] > 0.5)) for a in "ab"}
            final = {agent: rng.random(2, np.float32) for agent in "ab"}
            store.accept(
                EndEpisode(episode_id, t_max, True, rewards, {}, dict.fromkeys("ab", True), final),
                0.0,
            )
            store.finish_frame()
            self.wait()

    def _act(self, pending: Any) -> Any:
        self.wait()
        assert isinstance(pending, PendingStep)
        ((chosen,), version) = self.policies.acting.act([pending])
        return pending.finish(chosen, version).actions

    def wait(self) -> None:
        """Waits at the gate, as frames do."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.policies.feed.is_open:
            assert not self.problems
            assert time.monotonic() < deadline, "the update took too long"
            time.sleep(0.001)

    def end(self) -> None:
        assert self.policies.finish(PATIENCE_S)
        self.policies.close()

    def state(self) -> Any:
        """All that makes two learners the same: weights, targets, optimizers, counts."""
        learner: Any = self.policies.algo.learner_group._learner
        state = learner.get_state(not_components=["metrics_logger"])
        return {
            "modules": copy.deepcopy(state["rl_module"]),
            "optimizers": copy.deepcopy(state["optimizer"]),
            "counts": dataclasses.asdict(self.policies.store.counts),
            "weights_seq_no": self.policies.acting.weights_seq_no,
            "env_steps": self.policies.acting.num_env_steps_sampled,
        }


def scramble() -> None:
    """Leaves the generators of this process as a new process might have them."""
    torch.manual_seed(987)
    np.random.seed(987)
    random.seed(987)


def assert_same(one: Any, other: Any) -> None:
    tree.assert_same_structure(one, other)
    for (path, a), (_, b) in zip(
        tree.flatten_with_path(one), tree.flatten_with_path(other), strict=True
    ):
        assert np.array_equal(a, b), f"{'/'.join(map(str, path))}: {a} and {b}"


@pytest.mark.parametrize("case", CASES)
def test_resumed_at_the_end_of_an_episode_it_ends_bit_for_bit_alike(
    running_ray: None, tmp_path: Path, case: str
) -> None:
    k, num = 11, 23
    scramble()
    whole = Served(plan_of(case))
    whole.play(0, k)
    torch_state_at_k = torch.get_rng_state()
    begun = whole.state()["modules"]
    whole.play(k, num)
    whole.end()
    expected = whole.state()
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(tree.flatten(begun), tree.flatten(expected["modules"]), strict=True)
    ), "it learns in the second half, too"

    scramble()
    first = Served(plan_of(case))
    first.play(0, k)
    assert torch.equal(torch.get_rng_state(), torch_state_at_k), "two runs of a seed are alike"
    first.policies.save(tmp_path / "saved")
    first.end()

    scramble()
    second = Served(plan_of(case, resume_from=str(tmp_path / "saved")))
    assert torch.equal(torch.get_rng_state(), torch_state_at_k)
    second.play(k, num)
    second.end()
    assert_same(second.state(), expected)
    assert second.policies.acting.weights_seq_no > first.policies.acting.weights_seq_no


# --- what a checkpoint is, and what it is refused for ------------------------------------------


@pytest.fixture(scope="module")
def saved(running_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a DQN server after nine episodes."""
    path = tmp_path_factory.mktemp("saved") / "dqn"
    served = Served(plan_of("DQN"))
    served.play(0, 9)
    served.policies.save(path)
    served.end()
    return path


def refusal(plan: ServerPlan) -> str:
    with pytest.raises(ServerProblem) as refused:
        Served(plan)
    return str(refused.value)


def test_a_checkpoint_is_as_of_one_moment_and_free_of_our_pickles(saved: Path) -> None:
    about = json.loads((saved / "muxrl.json").read_text())
    assert (about["format"], about["algorithm"], about["env_steps"]) == (2, "DQN", 72)
    assert about["replay"]["mib"] < 1
    for name in ("muxrl_state.npz", "muxrl_replay.npz"):
        with np.load(saved / name, allow_pickle=False) as arrays:
            assert all(array.dtype != object for array in arrays.values())
    assert list(saved.parent.iterdir()) == [saved], "nothing half-written beside it"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"algorithm": "SAC", "settings": _REPLAY}, "algorithm is DQN there and SAC here"),
        ({"model": {"fcnet_hiddens": [9]}}, "model.fcnet_hiddens is [8] there and [9] here"),
        (
            {"agents": {**make_plan("a").agents}},
            'agents.b is {"policy": "default"',
        ),
        (
            {"agents": make_plan({"a": Box((2,)), "b": Box((2,), "float32", 0, 1)}).agents},
            "agents.b.observation_space.low is",
        ),
        (
            {"settings": {**_DQN, "replay_buffer_config": _PRIORITIZED}},
            "a replay without priorities was kept, and the replay now draws by priority",
        ),
        ({"settings": {**_DQN, "num_atoms": 5}}, "the network of policy 'default' is another"),
        ({"resume_from": "/no/such/folder"}, "there is no checkpoint at '/no/such/folder'"),
    ],
)
def test_a_checkpoint_of_another_server_is_refused_by_what_differs(
    saved: Path, change: dict[str, Any], reason: str
) -> None:
    told = refusal(dataclasses.replace(plan_of("DQN", resume_from=str(saved)), **change))
    assert told.startswith("server 'scripted' cannot go on from ")
    assert reason in told


def test_a_checkpoint_of_muxrl_0_1_lends_its_policies_only(saved: Path, tmp_path: Path) -> None:
    old = shutil.copytree(saved, tmp_path / "old")
    about = json.loads((old / "muxrl.json").read_text())
    (old / "muxrl.json").write_text(json.dumps({**about, "format": 1}))
    told = refusal(plan_of("DQN", resume_from=str(old)))
    assert "it was written by muxrl 0.1, without counts, replay and random numbers" in told
    assert "initialize_from" in told
    Served(plan_of("DQN", initialize_from=str(old))).end()


@pytest.mark.parametrize("name", ["muxrl_state.npz", "muxrl_replay.npz", "algorithm_state.pkl"])
def test_a_torn_file_is_named(saved: Path, tmp_path: Path, name: str) -> None:
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
        plan_of("DQN", resume_from=str(saved), settings={**_DQN, "lr": 0.5, "gamma": 0.9})
    )
    optimizers = served.state()["optimizers"].values()
    assert [o["state"]["param_groups"][0]["lr"] for o in optimizers] == [0.5]
    served.end()
    assert "lr: 0.5, was 0.01" in caplog.text
    assert "gamma: 0.9, was the default" in caplog.text


@pytest.mark.parametrize(
    ("case", "table", "then", "now", "begins_at"),
    [
        ("PPO with schedules", "curr_kl_coeffs_per_module", {}, {"kl_coeff": 7.0}, 7.0),
        (
            "SAC",
            "curr_log_alpha",
            {"initial_alpha": 0.3},
            {"initial_alpha": 5.0},
            pytest.approx(math.log(5.0)),
        ),
    ],
)
def test_a_first_value_that_has_changed_is_begun_with(
    running_ray: None,
    tmp_path: Path,
    case: str,
    table: str,
    then: dict[str, Any],
    now: dict[str, Any],
    begins_at: Any,
) -> None:
    plan = plan_of(case)
    saved_plan = dataclasses.replace(plan, settings={**plan.settings, **then})
    first = Served(saved_plan)
    first.play(0, 9)
    first.policies.save(tmp_path / "saved")
    first.end()

    def value_of(served: Served) -> float:
        learner: Any = served.policies.algo.learner_group._learner
        return float(getattr(learner, table)["default"])

    values = []
    for settings in (saved_plan.settings, {**plan.settings, **now}):
        served = Served(
            dataclasses.replace(plan, settings=settings, resume_from=str(tmp_path / "saved"))
        )
        values.append(value_of(served))
        served.end()
    assert values == [value_of(first), begins_at]


def test_a_replay_that_is_too_large_is_left_out_aloud_and_filled_again(
    running_ray: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of("DQN", keep_replay_mib=0)
    first = Served(plan)
    first.play(0, 9)
    first.policies.save(tmp_path / "saved")
    first.end()
    assert "saves no replay" in caplog.text
    about = json.loads((tmp_path / "saved" / "muxrl.json").read_text())
    assert "more than checkpoint.replay_max_mib (0)" in about["replay"]["left_out"]
    assert not (tmp_path / "saved" / "muxrl_replay.npz").exists()

    caplog.clear()
    second = Served(dataclasses.replace(plan, resume_from=str(tmp_path / "saved")))
    assert "goes on with an empty replay" in caplog.text
    version = second.policies.acting.weights_seq_no
    second.play(9, 12)  # 24 steps, and 32 are needed
    assert second.policies.acting.weights_seq_no == version
    second.play(12, 14)
    assert second.policies.acting.weights_seq_no > version
    second.end()


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one_and_learning_goes_on(
    running_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        patch.setattr("muxrl.servers.checkpoint.write_state", fill)
        with pytest.raises(OSError, match="No space left"):
            served.policies.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "muxrl.json").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "saved"]
    served.play(8, 12)
    assert served.policies.acting.weights_seq_no == 3, "it learned after that"
    served.policies.save(tmp_path / "saved")
    served.end()
    assert json.loads((tmp_path / "saved" / "muxrl.json").read_text())["env_steps"] == 96


def test_an_episode_that_is_open_is_left_out_and_what_has_ended_is_learned(
    running_ray: None, tmp_path: Path
) -> None:
    first = Served(plan_of("PPO"))
    first.play(0, 3)  # 24 steps, and 32 make a batch
    store = first.policies.store
    store.accept(StartEpisode("open"), 0.0)
    first._act(store.accept(Step("open", 0, dict.fromkeys("ab", np.zeros(2, np.float32))), 0.0))
    first.policies.save(tmp_path / "saved")
    first.end()
    second = Served(plan_of("PPO", resume_from=str(tmp_path / "saved")))
    assert second.policies.store.num_open == 0
    assert second.policies.acting.weights_seq_no == 0
    second.play(3, 4)
    assert second.policies.acting.weights_seq_no > 0, "three episodes of before, and one more"
    second.end()


def test_a_frozen_server_draws_what_it_would_have_drawn(running_ray: None, tmp_path: Path) -> None:
    plan = plan_of("PPO")
    moves = {a: dataclasses.replace(p, action_space=Box((2,))) for a, p in plan.agents.items()}
    plan = dataclasses.replace(plan, agents=moves)
    live = Served(plan)
    live.policies.save(tmp_path / "ppo")
    live.end()
    settings = {"checkpoint": str(tmp_path / "ppo"), "should_explore": True}
    frozen = dataclasses.replace(plan, algorithm="FROZEN", settings=settings, model={})

    def draw(policies: Any, number: int) -> Any:
        policies.store.accept(StartEpisode(f"e{number}"), 0.0)
        seen = dict.fromkeys("ab", np.zeros(2, np.float32))
        pending = policies.store.accept(Step(f"e{number}", 0, seen), 0.0)
        ((chosen,), version) = policies.acting.act([pending])
        return pending.finish(chosen, version).actions

    torch.manual_seed(1)
    first = make_policies(frozen, None, pytest.fail)
    expected = [draw(first, 0)]
    before = torch.get_rng_state()
    first.save(tmp_path / "saved")
    expected.append(draw(first, 1))
    assert torch.equal(torch.get_rng_state(), before), "a learner beside it draws the same"

    torch.manual_seed(2)
    assert_same(draw(make_policies(frozen, None, pytest.fail), 0), expected[0])
    going_on = dataclasses.replace(frozen, resume_from=str(tmp_path / "saved"))
    assert_same(draw(make_policies(going_on, None, pytest.fail), 1), expected[1])
    with pytest.raises(AssertionError):
        assert_same(*expected)


# --- initialize_from ---------------------------------------------------------------------------


def test_initialized_policies_have_the_weights_and_nothing_else(saved: Path) -> None:
    served = Served(plan_of("DQN", initialize_from=str(saved)))
    fresh = Served(plan_of("DQN"))
    resumed = Served(plan_of("DQN", resume_from=str(saved)))
    for one in (served, fresh, resumed):
        one.end()
    assert_same(served.state()["modules"], resumed.state()["modules"])
    acting = served.policies.acting.modules.get_state()
    assert_same(acting, resumed.policies.acting.modules.get_state())
    for part in ("optimizers", "counts", "weights_seq_no", "env_steps"):
        assert_same(served.state()[part], fresh.state()[part])


def test_initial_weights_of_other_policies_are_refused(saved: Path) -> None:
    plan = plan_of("DQN", initialize_from=str(saved))
    assert "it is of DQN, and the server is SAC" in refusal(
        dataclasses.replace(plan, algorithm="SAC", settings=_REPLAY)
    )
    renamed = {a: dataclasses.replace(p, policy_id="mine") for a, p in plan.agents.items()}
    assert "it has no policy 'mine', only 'default'" in refusal(
        dataclasses.replace(plan, agents=renamed)
    )
    others = make_plan({"a": Box((3,)), "b": Box((3,))}).agents
    assert "its policy 'default' has other spaces" in refusal(
        dataclasses.replace(plan, agents=others)
    )
    assert "the network of policy 'default' is another" in refusal(
        dataclasses.replace(plan, model={"fcnet_hiddens": [9]})
    )


# --- muxrl serve --------------------------------------------------------------------------------


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Gives back the handlers that `serve_forever` replaces."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_serve_writes_checkpoints_while_it_serves_and_tries_again_where_it_could_not(
    running_ray: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    last = tmp_path / "checkpoints" / "scripted" / "last"
    last.parent.parent.mkdir()
    last.parent.write_text("not a folder")  # so the first ones cannot be written
    written: list[float] = []
    phases: list[str] = []

    def is_newer() -> bool:
        with contextlib.suppress(OSError):  # there is none yet, or it is being replaced
            at = json.loads((last / "muxrl.json").read_text())["written_at"]
            if at not in written:
                written.append(at)
                return True
        return False

    class Watched(PolicyServer):
        def start(self) -> str:
            address = super().start()
            threading.Thread(target=self._watch, daemon=True).start()
            return address

        def _watch(self) -> None:
            try:
                wait_until(lambda: "no checkpoint, and the next one when it is due" in caplog.text)
                last.parent.unlink()
                for _ in range(2):
                    wait_until(is_newer)
                    phases.append(self.status().phase)
            finally:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("muxrl.servers.server.PolicyServer", Watched)
    with own_signals():
        assert serve_forever(plan_of("A2C"), tmp_path, interval_s=0.2) == 0
    assert phases == ["ready", "ready"]
    assert [path.name for path in last.parent.iterdir()] == ["last"]


def test_serve_never_overwrites_a_checkpoint_and_goes_on_from_the_newest(
    running_ray: None,
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
    with own_signals():
        assert serve_forever(plan, tmp_path, resume=True) == 0
    assert began[0].plan.resume_from == str(last)
    assert began[0].status().num_env_steps == 72
    assert json.loads((last / "muxrl.json").read_text())["env_steps"] == 72
