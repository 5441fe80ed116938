from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from ray.rllib.algorithms.ppo.ppo import PPOConfig

from servers.algorithms.a2c import A2CConfig
from servers.algorithms.qmix import QMIXConfig, TeamSpec
from servers.algorithms.registry import ALGORITHMS, AlgorithmProblem, get_algorithm

BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)
DISCRETE = spaces.Discrete(3)


@pytest.mark.parametrize("entry", ALGORITHMS, ids=lambda entry: entry.name)
def test_every_entry_makes_a_valid_config_of_its_defaults(entry: Any) -> None:
    assert get_algorithm(entry.name.lower()) is entry
    assert entry.default_while_learning == ("wait" if entry.is_on_policy else "serve")
    defaults = entry.settings()
    config = entry.make_config(defaults, entry.model_settings())
    config.validate()
    assert type(config) is entry.config_class
    for name, value in defaults.items():
        assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("QMX", "unknown algorithm 'QMX' (did you mean 'QMIX'?); known: PPO, A2C, QMIX, VDN, IQL"),
        ("a3c", "unknown algorithm 'a3c' (did you mean 'A2C'?); known: PPO, A2C, QMIX, VDN, IQL"),
        ("Rainbow", "unknown algorithm 'Rainbow'; known: PPO, A2C, QMIX, VDN, IQL"),
    ],
)
def test_an_unknown_name_is_answered_with_a_known_one(name: str, message: str) -> None:
    with pytest.raises(AlgorithmProblem) as caught:
        get_algorithm(name)
    assert str(caught.value) == message


def test_settings_reach_the_config() -> None:
    config = get_algorithm("A2C").make_config(
        {"lr": 0.01, "lambda_": 0.9, "train_batch_size_per_learner": 64},
        {"fcnet_hiddens": [32], "use_lstm": True},
    )
    assert isinstance(config, A2CConfig)
    assert (config.lr, config.lambda_, config.train_batch_size_per_learner) == (0.01, 0.9, 64)
    assert config.model_config["fcnet_hiddens"] == [32]
    assert config.model_config["use_lstm"] is True
    assert config.model_config["fcnet_activation"] == "tanh"


def test_the_default_networks_are_small_and_separate() -> None:
    config = get_algorithm("ppo").make_config({}, {})
    assert isinstance(config, PPOConfig)
    assert config.model_config["fcnet_hiddens"] == [64, 64]
    assert config.model_config["fcnet_activation"] == "tanh"
    assert config.model_config["vf_share_layers"] is False


def test_vdn_and_iql_are_qmix_with_another_mixer() -> None:
    for name, mixer in (("QMIX", "qmix"), ("VDN", "vdn"), ("IQL", "none")):
        config = get_algorithm(name).make_config({"hidden_dim": 32})
        assert isinstance(config, QMIXConfig)
        assert (config.mixer, config.hidden_dim) == (mixer, 32)
        assert config.model_config["mixer"] == mixer


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("A2C", {"learning_rate": 1}, "A2C has no setting 'learning_rate'"),
        ("PPO", {"entropy_coef": 1}, r"PPO has no setting 'entropy_coef' \(did you mean 'entropy_"),
        ("QMIX", {"_env": 1}, "QMIX has no setting '_env'"),
        ("QMIX", {"num_env_runners": 2}, "'num_env_runners' is not a setting of QMIX for a user"),
        ("QMIX", {"policies": {}}, "'policies' is not a setting of QMIX for a user"),
        ("PPO", {"env": "x"}, "'env' is not a setting of PPO for a user"),
        ("PPO", {"model": {}}, "'model' is not a setting of PPO for a user"),
        ("A2C", {"clip_param": 0.1}, "A2C makes no use of 'clip_param'"),
        ("QMIX", {"train_batch_size": 9}, "QMIX makes no use of 'train_batch_size'"),
        ("VDN", {"mixer": "qmix"}, "VDN is QMIXConfig with mixer='vdn'.* use QMIX"),
        ("A2C", {"lr": "1e-3"}, "A2C's setting 'lr' must be a number, not '1e-3'; in YAML write"),
        ("QMIX", {"double_q": 1}, "QMIX's setting 'double_q' must be true or false, not 1"),
    ],
)
def test_a_setting_that_is_not_the_users_is_refused(
    algorithm: str, settings: Any, message: str
) -> None:
    with pytest.raises(AlgorithmProblem, match=message):
        get_algorithm(algorithm).make_config(settings, {})


def test_model_settings_are_checked() -> None:
    with pytest.raises(AlgorithmProblem, match=r"'fcnet_hidden' \(did you mean 'fcnet_hiddens'"):
        get_algorithm("PPO").make_config({}, {"fcnet_hidden": [8]})
    with pytest.raises(AlgorithmProblem, match="QMIX has no separate model settings"):
        get_algorithm("QMIX").make_config({}, {"fcnet_hiddens": [8]})


def test_spaces_that_fit() -> None:
    image = spaces.Box(0, 255, (42, 42, 3), np.uint8)
    for name in ("PPO", "A2C"):
        for observation_space in (BOX, image):
            for action_space in (DISCRETE, BOX, spaces.MultiDiscrete([2, 3])):
                get_algorithm(name).check_spaces("x", observation_space, action_space)
    team = TeamSpec(("a",), {"a": BOX}, {"a": DISCRETE})
    for name in ("QMIX", "VDN", "IQL"):
        get_algorithm(name).check_spaces("x", BOX, DISCRETE)
        get_algorithm(name).check_spaces("x", team.observation_space, team.action_space)


def test_spaces_that_do_not_fit() -> None:
    with pytest.raises(AlgorithmProblem) as caught:
        get_algorithm("QMIX").check_spaces("x", BOX, BOX, agent_id="red_1")
    assert str(caught.value) == (
        f"policy 'x': QMIX cannot do the action space {BOX} of agent 'red_1': it learns one value "
        "per discrete action, counted from 0; use PPO or A2C"
    )
    with pytest.raises(AlgorithmProblem, match="VDN cannot read the observation space Discrete"):
        get_algorithm("VDN").check_spaces("x", DISCRETE, DISCRETE)
    with pytest.raises(AlgorithmProblem, match="PPO cannot read the observation space Discrete"):
        get_algorithm("PPO").check_spaces("x", DISCRETE, DISCRETE)
    with pytest.raises(AlgorithmProblem, match="A2C cannot do the action space Tuple"):
        get_algorithm("A2C").check_spaces("x", BOX, spaces.Tuple([DISCRETE]))
