"""RLlib's algorithms by their adapter: they follow masks, resume to the bit, and learn what was
played."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from tests.servers.resumable import Served, T
from tests.servers.scripted_store import make_plan

from muxrl.protocol.spaces import Box, MultiDiscrete
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.config import AgentPlan, ServerConfig, ServerPlan
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.interface import PolicySpec, Rows
from muxrl.servers.trainers.lookup import find_trainer
from muxrl.servers.trainers.plain_state import from_plain, to_plain
from muxrl.servers.trainers.rllib.entry import RLlibEntry
from muxrl.servers.trainers.sound_state import SoundState

pytestmark = pytest.mark.usefixtures("rllib")

NUM_STEPS = 40
SMALL = {"fcnet_hiddens": [8]}
LSTM = {**SMALL, "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 7}
FALLING = [[0, 0.01], [400, 0.0001]]
ON_POLICY = {"train_batch_size_per_learner": NUM_STEPS, "lr": FALLING}
PPO_SETTINGS = {
    **ON_POLICY,
    "minibatch_size": 16,
    "num_epochs": 2,
    "kl_coeff": 0.5,
    "entropy_coeff": [[0, 0.1], [400, 0.0]],
}
REPLAY = {
    "num_steps_sampled_before_learning_starts": 10,
    "train_batch_size_per_learner": 8,
    "replay_buffer_config": {"capacity": 200},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "RLLIB_PPO": PPO_SETTINGS,
    "RLLIB_APPO": ON_POLICY,
    "RLLIB_IMPALA": ON_POLICY,
    "RLLIB_DQN": {
        **REPLAY,
        "target_network_update_freq": 50,
        "epsilon": [[0, 1.0], [200, 0.1]],
        "lr": FALLING,
    },
    "RLLIB_SAC": {**REPLAY, "actor_lr": FALLING, "initial_alpha": 0.3},
}
DISCRETE, BOX = spaces.Discrete(4), spaces.Box(-1.0, 1.0, (2,))


def entry_of(name: str) -> RLlibEntry:
    entry = find_trainer(name)
    assert isinstance(entry, RLlibEntry)
    return entry


def made(
    name: str,
    settings: dict[str, Any] | None = None,
    model: dict[str, Any] = SMALL,
    *,
    acts: spaces.Space = DISCRETE,
    has_masks: bool = False,
    rl_module: str = "",
) -> Any:
    seen = spaces.Box(-1.0, 1.0, (3,))
    spec = PolicySpec("default", ("a", "b"), seen, acts, has_masks, seed=5)
    settings = SETTINGS[name] if settings is None else settings
    plan: Any = SimpleNamespace(settings=settings, model=model, rl_module=rl_module)
    return entry_of(name)._made(spec, plan)


class Player:
    """Plays a trainer's actions in episodes of at least 80 steps, which are cut into batches."""

    def __init__(self, trainer: Any, seed: int = 0, *, has_masks: bool = False) -> None:
        self.trainer, self.has_masks = trainer, has_masks
        self.rng = np.random.default_rng(seed)
        self.t, self.num_episodes, self.states = 0, 0, [None]
        self.seen, self.masks = [self._drawn()], [self._drawn_mask()]

    def _drawn(self) -> np.ndarray:
        return self.rng.uniform(-1.0, 1.0, 3).astype(np.float32)

    def _drawn_mask(self) -> np.ndarray:
        mask = (self.rng.random(4) < 0.5).astype(np.float32)
        mask[self.rng.integers(4)] = 1.0
        return mask

    def rows(self, *, should_explore: bool = True, is_training: bool = True) -> Rows:
        masks = self.masks[-1][None].copy() if self.has_masks else None
        rows = self.seen[-1][None].copy(), masks, self.states, ("a",)
        env_steps = self.trainer.env_steps
        return Rows(*rows, should_explore, is_training, self.rng, env_steps=env_steps)

    def play(self, num_steps: int = NUM_STEPS) -> Trajectory:
        self.seen, self.masks, began = self.seen[-1:], self.masks[-1:], self.t
        acted, outputs = [], []
        for _ in range(num_steps):
            answer = self.trainer.act(self.rows())
            acted.append(answer.actions[0])
            if self.has_masks:
                assert self.masks[-1][acted[-1]] == 1.0
            outputs.append({name: column[0] for name, column in answer.outputs.items()})
            self.states = [None] if answer.states is None else answer.states
            self.seen.append(self._drawn())
            self.masks.append(self._drawn_mask())
        self.t += num_steps
        self.trainer.env_steps += num_steps  # a server does this, too
        one = Trajectory(
            f"e{self.num_episodes}_a", f"e{self.num_episodes}", "a", "default",
            np.array(self.seen), np.array(acted), self.rng.normal(size=num_steps),
            {name: np.array([each[name] for each in outputs]) for name in outputs[0]}, began,
            is_truncated=self.t >= 80, masks=np.array(self.masks) if self.has_masks else None,
        )  # fmt: skip
        if one.is_truncated:
            self.t, self.num_episodes, self.states = 0, self.num_episodes + 1, [None]
        return one


def flat(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: one.clone() for name, one in trainer.weights().items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


# --- acting and learning --------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_masks_are_followed_in_acting_and_in_learning(name: str) -> None:
    trainer = made(name, has_masks=True)
    player = Player(trainer, has_masks=True)
    before = flat(trainer)
    for _ in range(3):
        metrics = trainer.learn([player.play()])
    assert np.isfinite(metrics["total_loss"])
    assert any(not torch.equal(one, before[name]) for name, one in flat(trainer).items())
    for _ in range(20):
        player.masks.append(player._drawn_mask())
        rows = player.rows(should_explore=False, is_training=False)
        assert player.masks[-1][trainer.act(rows).actions[0]] == 1.0
        if trainer.samples_actions:
            (drawn,) = trainer.probabilities(rows).numpy()
            assert drawn.sum() == pytest.approx(1.0)
            assert not drawn[player.masks[-1] == 0].any()


WAITING = {**SETTINGS["RLLIB_DQN"], "num_steps_sampled_before_learning_starts": 150}
CASES = [
    *((name, SETTINGS[name], SMALL, DISCRETE) for name in SETTINGS),
    ("RLLIB_DQN", WAITING, SMALL, DISCRETE),
    ("RLLIB_PPO", PPO_SETTINGS, LSTM, DISCRETE),
    ("RLLIB_APPO", ON_POLICY, LSTM, DISCRETE),
    ("RLLIB_PPO", PPO_SETTINGS, SMALL, BOX),
    ("RLLIB_SAC", SETTINGS["RLLIB_SAC"], SMALL, BOX),
    ("RLLIB_PPO", PPO_SETTINGS, SMALL, spaces.MultiDiscrete([2, 3])),
]


@pytest.mark.parametrize(("name", "settings", "model", "acts"), CASES)
def test_a_trainer_that_loads_a_state_continues_to_the_bit(
    name: str, settings: dict[str, Any], model: dict[str, Any], acts: spaces.Space
) -> None:
    """A trainer's state has its replay, priorities, counters and schedules, also in mid-episode."""
    trainer = made(name, settings, model, acts=acts)
    player = Player(trainer)
    for _ in range(3):
        trainer.learn([player.play()])
    state = to_plain(trainer.state())
    other = made(name, settings, model, acts=acts)
    other.load(from_plain(state))
    assert_same(flat(trainer), flat(other))
    for _ in range(3):
        one = player.play()
        other.env_steps = trainer.env_steps
        trainer.learn([dataclasses.replace(one)])
        other.learn([dataclasses.replace(one)])
    assert_same(flat(trainer), flat(other))
    rows, again = player.rows(), player.rows()
    rows = dataclasses.replace(rows, rng=np.random.default_rng(1))
    again = dataclasses.replace(again, rng=np.random.default_rng(1))
    np.testing.assert_array_equal(trainer.act(rows).actions, other.act(again).actions)


def test_a_schedule_that_has_changed_is_followed_at_once() -> None:
    trainer = made("RLLIB_PPO")
    player = Player(trainer)
    for _ in range(3):
        trainer.learn([player.play()])
    other = made("RLLIB_PPO", {**PPO_SETTINGS, "lr": [[0, 0.01], [3 * NUM_STEPS, 0.0]]})
    other.load(from_plain(to_plain(trainer.state())))
    other.learn([player.play()])
    assert_same(flat(other), flat(trainer))


def test_the_generators_of_the_process_stay_where_they_are() -> None:
    """Training leaves the global generators alone, since other servers of the process may use
    them."""

    def drawn() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[2]

    before = drawn()
    trainer = made("RLLIB_PPO")
    trainer.learn([Player(trainer).play()])
    assert drawn() == before


@pytest.mark.parametrize("has_masks", [False, True])
@pytest.mark.parametrize("model", [SMALL, LSTM])
def test_an_update_reads_observations_and_states_as_acting_did(
    model: dict[str, Any], has_masks: bool
) -> None:
    """If no weight has changed, an update finds no KL divergence.

    With an LSTM this holds only if each sequence begins with the state in which its first action
    was chosen.
    """
    settings = {**ON_POLICY, "num_epochs": 1, "minibatch_size": None, "lr": 0.0}
    trainer = made("RLLIB_PPO", settings, model, has_masks=has_masks)
    player = Player(trainer, has_masks=has_masks)
    for _ in range(4):
        metrics = trainer.learn([player.play()])
        assert abs(metrics["mean_kl_loss"]) < 1e-6


def test_pieces_of_one_life_in_a_batch_are_kept_apart() -> None:
    settings = {**ON_POLICY, "num_epochs": 1, "minibatch_size": None, "lr": 0.0}
    trainer = made("RLLIB_PPO", settings, LSTM)
    player = Player(trainer)
    first, second, other = player.play(20), player.play(20), Player(trainer, seed=1).play(15)
    metrics = trainer.learn([second, dataclasses.replace(other, id="e9_a"), first])
    assert abs(metrics["mean_kl_loss"]) < 1e-6


@pytest.mark.parametrize("num_steps", [6, 7, 14])
def test_the_value_after_a_piece_is_computed_with_the_state_after_its_last_step(
    num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value is right also if the piece fills the sequences of 7 steps, so that another one
    begins."""
    trainer = made("RLLIB_PPO", {**PPO_SETTINGS, "num_epochs": 1, "minibatch_size": None}, LSTM)
    player = Player(trainer)
    player.play(3)
    one = player.play(num_steps)
    expected = trainer.value(player.rows())
    kind, valued = type(trainer._module), []
    compute = kind.compute_values

    def compute_values(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        valued.append(compute(self, *args, **kwargs))
        return valued[-1]

    monkeypatch.setattr(kind, "compute_values", compute_values)
    trainer.learn([one])
    assert valued[0].flatten()[num_steps].item() == pytest.approx(float(expected), rel=1e-4)


def test_logged_actions_have_no_weight_in_the_policys_loss() -> None:
    settings = {**ON_POLICY, "use_kl_loss": False, "num_epochs": 1, "minibatch_size": None}
    trainer = made("RLLIB_PPO", settings)
    one, before = Player(trainer).play(), flat(trainer)
    one.outputs = {**one.outputs, LOG_PROB: np.full(NUM_STEPS, np.inf, np.float32)}
    trainer.learn([one])
    after = flat(trainer)
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all("critic" in name or name.startswith("vf.") for name in changed), changed


@pytest.mark.parametrize("name", ["RLLIB_IMPALA", "RLLIB_APPO"])
def test_v_trace_learns_from_logged_actions_whose_probabilities_are_known(name: str) -> None:
    def learned(log_prob: float) -> dict[str, torch.Tensor]:
        trainer = made(name, {**ON_POLICY, "entropy_coeff": 0.0})
        one, before = Player(trainer).play(), flat(trainer)
        known = np.full(NUM_STEPS, log_prob, np.float32)
        one.outputs = {**one.outputs, "is_logged": np.ones(NUM_STEPS, bool), LOG_PROB: known}
        trainer.learn([one])
        return {n: one - before[n] for n, one in flat(trainer).items() if "critic" not in n}

    likely, unlikely = learned(np.log(0.9)), learned(np.log(0.25))
    assert any(not torch.equal(one, unlikely[n]) for n, one in likely.items())
    assert not any(one.any() for one in learned(np.inf).values())


def share_of_best(trainer: Any, env_steps: int) -> float:
    """Returns how often a DQN that explores takes its best action."""
    (size,) = trainer.spaces[0].shape
    seen = np.tile(np.linspace(0.1, 0.9, size, dtype=np.float32), (200, 1))

    def act(*, explores: bool) -> Any:
        rows = seen, None, [None] * 200, ("a",) * 200
        rng = np.random.default_rng(0)
        return trainer.act(Rows(*rows, explores, True, rng, env_steps=env_steps)).actions

    return float(np.mean(act(explores=True) == act(explores=False)))


def test_dqn_explores_by_its_schedule() -> None:
    trainer = made("RLLIB_DQN", {**SETTINGS["RLLIB_DQN"], "epsilon": [[0, 1.0], [100, 0.0]]})
    first, half, last = (share_of_best(trainer, env_steps) for env_steps in (0, 50, 100))
    assert first < 0.4 < half < 0.8 < last == 1.0


def test_schedules_go_over_the_servers_env_steps_and_begin_anew_with_anothers_weights(
    tmp_path: Path,
) -> None:
    num = 8
    settings = {**SETTINGS["RLLIB_DQN"], "epsilon": [[0, 1.0], [num * T, 0.0]]}

    def plan(**fields: Any) -> ServerPlan:
        given = {"algorithm": "RLLIB_DQN", "settings": settings, "model": SMALL, **fields}
        return make_plan("ab", shares_policy=False, **given)

    def shares(acting: Actors) -> list[float]:
        trainers = acting.learners.values()
        return [share_of_best(one, acting.num_env_steps_sampled) for one in trainers]

    served = Served(plan())
    served.play(0, num, lambda number: "ab" if number % 4 == 3 else "a")
    served.policies.save(tmp_path / "saved")
    served.end()
    acting = served.policies.acting
    assert shares(acting) == [1.0, 1.0]
    lr = np.interp(num * T, *np.transpose(FALLING))
    for one in acting.learners.values():
        for _, optimizer in one._optimizers():
            assert optimizer.param_groups[0]["lr"] == pytest.approx(lr)

    other = Served(plan(initialize_from=str(tmp_path / "saved")))
    other.end()
    assert max(shares(other.policies.acting)) < 0.6
    for policy_id, one in other.policies.acting.learners.items():
        assert_same(flat(one), flat(acting.learners[policy_id]))


def test_older_weights_which_have_env_steps_are_read() -> None:
    trainer, other = made("RLLIB_DQN"), made("RLLIB_DQN")
    trainer.learn([Player(trainer).play()])
    other.set_weights({**trainer.weights(), "env_steps": NUM_STEPS})
    assert_same(flat(other), flat(trainer))


def test_a_replay_is_filled_as_often_as_rllib_samples_before_it_learns() -> None:
    settings = {**REPLAY, "training_intensity": 2}
    trainer = made("RLLIB_DQN", settings)
    # A batch has 8 steps, and each played step is learned from 2 times.
    assert trainer.batch_env_steps == 4
    player = Player(trainer)
    for _ in range(5):
        metrics = trainer.learn([player.play(4)])
    assert metrics["num_module_steps_trained_lifetime"] == 8 * 3  # after 12, 16 and 20 steps


def test_a_spoilt_update_is_undone_without_the_replay() -> None:
    trainer = made("RLLIB_DQN")
    player = Player(trainer)
    trainer.learn([player.play()])
    sound, kept = SoundState(trainer, 0), flat(trainer)
    trainer.learn([player.play()])
    with torch.no_grad():
        next(trainer._module.parameters()).fill_(torch.nan)
    assert "weights()['" in sound.find_corrupt(is_all=False)
    sound.go_back()
    assert_same(flat(trainer), kept)
    assert trainer._algorithm.local_replay_buffer.get_num_timesteps() == 2 * NUM_STEPS
    assert np.isfinite(trainer.learn([player.play()])["total_loss"])


class AsksTwice(PPO):
    def training_step(self) -> None:
        super().training_step()
        super().training_step()


class AskingTwiceConfig(PPOConfig):
    def __init__(self) -> None:
        super().__init__(algo_class=AsksTwice)


def test_an_algorithm_that_samples_more_than_there_is_gets_an_error() -> None:
    trainer = made(f"{__name__}:AskingTwiceConfig", PPO_SETTINGS)
    with pytest.raises(RuntimeError, match=r"AsksTwice.training_step\(\) asks for more"):
        trainer.learn([Player(trainer).play()])


# --- the entry ------------------------------------------------------------------------------


class OfRLlib(PPOConfig):
    """A variant of RLlib's."""


class OfNone(AlgorithmConfig):
    pass


@pytest.mark.parametrize(
    ("name", "learns_from"),
    [
        ("RLLIB_PPO", "newest"),
        ("rllib_appo", "recent"),
        ("RLLIB_IMPALA", "recent"),
        ("RLLIB_DQN", "replay"),
        ("ray.rllib.algorithms.sac:SACConfig", "replay"),
        (f"{__name__}:OfRLlib", "newest"),
    ],
)
def test_a_config_is_fed_as_its_kind_is(name: str, learns_from: str) -> None:
    """Every kind of trainer waits while it learns, since none has copies that act."""
    entry = entry_of(name)
    assert (entry.learns_from, entry.find_while_learning("auto")) == (learns_from, "wait")
    assert entry.samples_actions == ("DQN" not in name)
    if name.endswith("OfRLlib"):
        assert (entry.name, entry.summary) == (name, "A variant of RLlib's.")


def test_a_config_of_another_kind_is_refused() -> None:
    with pytest.raises(AlgorithmProblem, match=r"none of the kinds .* from PPOConfig, APPOC"):
        find_trainer(f"{__name__}:OfNone")


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("RLLIB_PPO", {"lrr": 1}, "RLLIB_PPO has no setting 'lrr'; did you mean 'lr'"),
        ("RLLIB_SAC", {"model": {}}, "has no setting 'model'"),
        ("RLLIB_APPO", {"num_aggregator_actors_per_learner": 2}, "no setting 'num_aggregator"),
        ("RLLIB_PPO", {"train_batch_size_per_learner": 10, "minibatch_size": 20}, "minibatch_s"),
    ],
)
def test_settings_that_users_may_not_give_are_refused(
    name: str, settings: dict[str, Any], sentence: str
) -> None:
    entry = entry_of(name)
    plan = dataclasses.replace(make_plan("ab"), algorithm=name, settings=settings)
    config = ServerConfig(name, settings=settings)
    found = [*entry.find_config_problems(config), *entry.find_problems(plan)]
    assert len(found) == 1, found
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(found[0])


def test_settings_reach_rllib_by_the_type_that_they_have() -> None:
    entry = entry_of("RLLIB_PPO")
    defaults, rllib = entry.settings(), PPOConfig()
    assert all(getattr(rllib, name) == value for name, value in defaults.items())
    given = {"train_batch_size_per_learner": 5e2, "entropy_coeff": [[0, 0.1], [100, 0.0]],
             "grad_clip": 0.5, "lambda_": 0.9}  # fmt: skip
    trainer = made("RLLIB_PPO", {**given, "minibatch_size": 100})
    config = trainer._algorithm.config
    assert config.train_batch_size_per_learner == trainer.batch_env_steps == 500
    assert isinstance(config.train_batch_size_per_learner, int)
    assert (config.entropy_coeff, config.grad_clip) == ([[0, 0.1], [100, 0.0]], 0.5)
    assert config.lambda_ == 0.9


def test_network_settings_are_rllibs_with_its_defaults() -> None:
    entry = entry_of("RLLIB_PPO")
    assert entry.model_settings()["fcnet_hiddens"] == [256, 256]
    assert entry.model_settings()["vf_share_layers"] is False
    (problem,) = entry.find_config_problems(ServerConfig("", model={"fcnet_hidden": [8]}))
    assert "no model setting 'fcnet_hidden'; did you mean 'fcnet_hiddens'" in problem
    trainer = made("RLLIB_PPO", model={"fcnet_hiddens": [24]})
    assert flat(trainer)["pi.net.mlp.0.weight"].shape == (4, 24)


OWN = "muxrl.experiments.examples.own_module:SharedTrunk"


@pytest.mark.parametrize("name", ["RLLIB_PPO", "RLLIB_IMPALA"])
def test_a_users_module_gets_model_unchanged_and_learns(name: str) -> None:
    trainer = made(name, model={"width": 8}, rl_module=OWN)
    assert trainer._module.trunk[0].out_features == 8
    player, before = Player(trainer), flat(trainer)
    trainer.learn([player.play()])
    assert not torch.equal(flat(trainer)["policy.weight"], before["policy.weight"])
    assert trainer.value(player.rows()).shape == (1,)


@pytest.mark.parametrize(
    ("name", "path", "sentence"),
    [
        ("RLLIB_PPO", "SharedTrunk", "must look like 'my_package.my_module:MyRLModule', not 'Sha"),
        ("RLLIB_PPO", "no_such_package:X", "cannot be imported: ModuleNotFoundError: No module"),
        ("RLLIB_PPO", f"{OWN[:-2]}k", "has no 'SharedTruk'; did you mean 'SharedTrunk'"),
        ("RLLIB_PPO", "pathlib:Path", "and RLLIB_PPO needs a subclass of RLlib's TorchRLModule"),
        ("RLLIB_PPO", "math:pi", "is an object of float"),
        ("RLLIB_DQN", OWN, "lacks QNetAPI and TargetNetworkAPI, which RLLIB_DQN's learner calls"),
        ("RLLIB_APPO", OWN, "lacks TargetNetworkAPI, which RLLIB_APPO's"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(name: str, path: str, sentence: str) -> None:
    (problem,) = entry_of(name).find_config_problems(ServerConfig(name, rl_module=path))
    assert sentence in problem


@pytest.mark.parametrize(
    ("name", "acts", "sentence"),
    [
        ("RLLIB_DQN", Box((2,)), "RLLIB_DQN cannot do the action space Box"),
        ("RLLIB_SAC", Box((2,)), "it has no bounds, and actions are scaled"),
        ("RLLIB_PPO", Box((2,), "float32", 0.0), "it has bounds on some sides only"),
        ("RLLIB_PPO", MultiDiscrete((2, 3)), ""),
        ("RLLIB_DQN", MultiDiscrete((2, 3)), ""),
        ("RLLIB_PPO", Box((2,)), ""),
    ],
)
def test_action_spaces_that_rllibs_algorithms_take_and_refuse(
    name: str, acts: Any, sentence: str
) -> None:
    agent = AgentPlan("default", Box((3,), "float32", -1.0, 1.0), acts)
    plan = dataclasses.replace(make_plan("a"), algorithm=name, agents={"a": agent})
    found = list(entry_of(name).find_problems(plan))
    assert len(found) == bool(sentence), found
    assert not found or sentence in found[0]


@pytest.mark.parametrize("config", [DQNConfig, SACConfig, PPOConfig])
def test_the_module_of_a_brought_config_stays(
    config: type[AlgorithmConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = type("Own", (config().get_default_rl_module_spec().module_class,), {})

    class Brought(config):  # type: ignore[misc, valid-type]
        def get_default_rl_module_spec(self) -> RLModuleSpec:
            return RLModuleSpec(own)

    monkeypatch.setitem(globals(), "Brought", Brought)
    settings = PPO_SETTINGS if config is PPOConfig else REPLAY
    assert type(made(f"{__name__}:Brought", settings)._module) is own


def test_columns_are_called_as_rllib_calls_them() -> None:
    assert (DISTRIBUTION, LOG_PROB) == (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP)
