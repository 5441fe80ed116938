from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.policy import PolicySpec
from ray.rllib.utils.numpy import convert_to_numpy

from muxrl.servers.algorithms.a2c import A2CConfig, A2CTorchLearner
from muxrl.servers.algorithms.ppo import PPOConfig
from muxrl.servers.algorithms.registry import get_algorithm

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = spaces.Discrete(2)
CONTINUOUS = spaces.Box(-1.0, 1.0, (2,), np.float32)
GAMMA = 0.9


def make_learner(
    policies: dict[str, spaces.Space] | None = None,
    use_lstm: bool = False,
    config_class: Any = A2CConfig,
    **settings: Any,
) -> Any:
    policies = policies or {"p": DISCRETE}
    model = DefaultModelConfig(
        fcnet_hiddens=[8], vf_share_layers=False, use_lstm=use_lstm, max_seq_len=4, lstm_cell_size=8
    )
    config = (
        config_class()
        .training(**{"gamma": GAMMA, **settings})
        .multi_agent(
            policies={m: PolicySpec(None, BOX, act) for m, act in policies.items()},
            policy_mapping_fn=lambda agent_id, *args, **kwargs: agent_id,
        )
        .rl_module(model_config=model)
        .debugging(seed=0)
    )
    config.validate()
    return config.build_learner(spaces={m: (BOX, act) for m, act in policies.items()})


def play(length: int, action_space: spaces.Space, seed: int, terminated: bool, **extra: Any) -> Any:
    rng = np.random.default_rng(seed)
    action_space.seed(seed)
    episode = SingleAgentEpisode(observation_space=BOX, action_space=action_space)
    episode.add_env_reset(BOX.sample())
    for t in range(length):
        episode.add_env_step(
            rng.uniform(-1, 1, 3).astype(np.float32),
            action_space.sample(),
            float(t + 1),
            terminated=terminated and t == length - 1,
            extra_model_outputs=extra,
        )
    return episode


def play_multi(policies: dict[str, spaces.Space], length: int, states: dict[str, Any]) -> Any:
    episode = MultiAgentEpisode(
        observation_space=dict.fromkeys(policies, BOX),
        action_space=dict(policies),
        agent_to_module_mapping_fn=lambda agent_id, *args, **kwargs: agent_id,
    )
    rng = np.random.default_rng(0)

    def see() -> Any:
        return {m: rng.uniform(-1, 1, 3).astype(np.float32) for m in policies}

    episode.add_env_reset(observations=see())
    for t in range(length):
        episode.add_env_step(
            see(),
            {m: space.sample() for m, space in policies.items()},
            dict.fromkeys(policies, 1.0),
            terminateds={"__all__": t == length - 1},
            extra_model_outputs={m: {Columns.STATE_OUT: s} for m, s in states.items() if s},
        )
    return episode.to_numpy()


def training_batch(learner: A2CTorchLearner, *episodes: Any) -> dict[str, Any]:
    """Returns the connectors' output for module p."""
    for episode in episodes:
        episode.module_id = "p"
        episode.agent_id = "p"
        episode.multi_agent_episode_id = episode.id_
    return learner._learner_connector(  # type: ignore[misc]
        rl_module=learner.module, batch={}, episodes=list(episodes), shared_data={}
    )


def test_advantages_are_n_step_returns_minus_values() -> None:
    learner = make_learner()
    done, cut = play(3, DISCRETE, 0, terminated=True), play(2, DISCRETE, 1, terminated=False)
    last = torch.from_numpy(cut.get_observations(-1))[None]
    batch = training_batch(learner, done.to_numpy(), cut.to_numpy())["p"]
    with torch.no_grad():
        values = learner.module["p"].compute_values(batch)
        bootstrap = learner.module["p"].compute_values({Columns.OBS: last}).item()

    returns = [1 + GAMMA * (2 + GAMMA * 3), 2 + GAMMA * 3, 3.0]
    returns_cut = [1 + GAMMA * (2 + GAMMA * bootstrap), 2 + GAMMA * bootstrap]
    expected = torch.tensor(returns + returns_cut) - values
    torch.testing.assert_close(batch[Postprocessing.ADVANTAGES], expected)
    torch.testing.assert_close(
        batch[Postprocessing.VALUE_TARGETS], torch.tensor(returns + returns_cut)
    )


@pytest.mark.parametrize("standardize", [False, True])
def test_a_recurrent_module_keeps_rllibs_pipeline(standardize: bool) -> None:
    learner = make_learner(use_lstm=True, standardize_advantages=standardize)
    names = [type(c).__name__ for c in learner._learner_connector.connectors]  # type: ignore[union-attr]
    assert not learner.is_lean
    assert names[-1] == (
        "GeneralAdvantageEstimation" if standardize else "RawAdvantageEstimation"
    ), "it needs the complete batch"


@pytest.mark.parametrize("algorithm", [A2CConfig, PPOConfig])
def test_what_logged_actions_earn_is_not_held_against_own_ones(algorithm: Any) -> None:
    settings = {"standardize_advantages": True} if algorithm is A2CConfig else {}
    learner = make_learner(config_class=algorithm, **settings)
    own, logged = (
        play(n, DISCRETE, n, terminated=True, **{Columns.ACTION_LOGP: np.float32(logp)})
        for n, logp in ((4, -0.5), (60, np.inf))
    )
    batch = training_batch(learner, own.to_numpy(), logged.to_numpy())["p"]
    advantages = batch[Postprocessing.ADVANTAGES][batch[Columns.ACTION_LOGP] == -0.5]
    assert advantages.shape == (4,)
    assert advantages.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert advantages.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-4)


def test_advantages_are_standardised_only_on_request() -> None:
    episode = play(5, DISCRETE, 0, terminated=True).to_numpy()
    standardised = make_learner(standardize_advantages=True)
    batch = training_batch(standardised, episode)["p"]
    advantages = batch[Postprocessing.ADVANTAGES]
    assert advantages.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert advantages.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_against_numbers_made_by_hand(masked: bool) -> None:
    learner = make_learner(entropy_coeff=0.1, vf_loss_coeff=0.5)
    config = learner.config.get_config_for_module("p")
    # pi = (1/4, 3/4) and (1/2, 1/2); V = 1 and -2.
    logits = torch.log(torch.tensor([[1.0, 3.0], [1.0, 1.0], [9.0, 1.0]]))
    batch = {
        Columns.OBS: torch.zeros(3, 3),
        Columns.ACTIONS: torch.tensor([1, 0, 0]),
        Postprocessing.ADVANTAGES: torch.tensor([2.0, -1.0, 50.0]),
        Postprocessing.VALUE_TARGETS: torch.tensor([4.0, 0.0, 99.0]),
        Columns.LOSS_MASK: torch.tensor([True, True, False]),
    }
    values = torch.tensor([1.0, -2.0, 7.0])
    if not masked:
        batch = {key: value[:2] for key, value in batch.items() if key != Columns.LOSS_MASK}
        logits, values = logits[:2], values[:2]
    learner.module["p"].compute_values = lambda batch, embeddings=None: values
    loss = learner.compute_loss_for_module(
        module_id="p", config=config, batch=batch, fwd_out={Columns.ACTION_DIST_INPUTS: logits}
    )
    policy_loss = -(np.log(3 / 4) * 2.0 + np.log(1 / 2) * -1.0) / 2
    vf_loss = (3.0**2 + 2.0**2) / 2
    entropy = (-(np.log(1 / 4) / 4 + 3 * np.log(3 / 4) / 4) + np.log(2)) / 2
    assert loss.item() == pytest.approx(policy_loss + 0.5 * vf_loss - 0.1 * entropy, rel=1e-5)


@pytest.mark.parametrize("use_lstm", [False, True])
def test_several_modules_discrete_and_continuous(use_lstm: bool) -> None:
    policies = {"d": DISCRETE, "c": CONTINUOUS}
    learner = make_learner(policies, use_lstm=use_lstm)
    before = learner.module.get_state()
    states = {
        m: convert_to_numpy(learner.module[m].get_initial_state()) if use_lstm else {}
        for m in policies
    }
    result = learner.update(episodes=[play_multi(policies, 7, states)])
    for module_id in policies:
        for key in ("policy_loss", "vf_loss", "entropy", "total_loss"):
            assert np.isfinite(float(result[module_id][key].peek())), (module_id, key)
        after = learner.module[module_id].get_state()
        assert any((after[k] != before[module_id][k]).any() for k in after)


def test_a_good_action_becomes_more_probable() -> None:
    learner = make_learner(entropy_coeff=0.0, lr=0.01)
    observation = np.full(3, 0.5, np.float32)

    def probability() -> float:
        with torch.no_grad():
            out = learner.module["p"].forward_train({"obs": torch.tensor(observation)[None]})
        return out[Columns.ACTION_DIST_INPUTS].softmax(-1)[0, 1].item()

    before = probability()
    for _ in range(30):
        episodes = []
        for action in (0, 1):
            episode = SingleAgentEpisode(observation_space=BOX, action_space=DISCRETE)
            episode.add_env_reset(observation)
            episode.add_env_step(observation, action, float(action), terminated=True)
            episode.module_id = episode.agent_id = "p"
            episode.multi_agent_episode_id = episode.id_
            episodes.append(episode.to_numpy())
        learner.update(episodes=episodes)
    assert probability() > before + 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_epochs": 2}, "one update per batch"),
        ({"minibatch_size": 64}, "one update per batch"),
        ({"use_kl_loss": True}, "A2C has no KL term"),
        ({"use_critic": False}, "A2C needs its critic"),
    ],
)
def test_settings_that_contradict_a2c_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        A2CConfig().training(**settings).validate()


@pytest.mark.night  # by day: test_each_algorithm.py, its dials
@pytest.mark.learning
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("rllib")
def test_a2c_learns_cart_pole_with_its_defaults() -> None:
    """450 came after 50,000 and 63,000 env steps (seeds 1 and 0), 22 and 27 s on one core."""
    config = (
        get_algorithm("A2C")
        .make_config({}, {})
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .debugging(seed=0, log_sys_usage=False)
    )
    algo = config.build_algo()
    returns = []
    try:
        while not returns or (max(returns) < 400 and len(returns) < 200):
            returns.append(algo.train()["env_runners"].get("episode_return_mean", 0.0))
    finally:
        algo.stop()
    assert max(returns) >= 400
    assert returns[0] < 100
