"""Compares present defaults with RLlib's former ones: does any task get worse? See README.md."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from muxrl.experiments.studies.beside_sb3.cases import ByServer
from muxrl.experiments.studies.cartpole.cases import TABLE as CARTPOLE
from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main
from muxrl.experiments.studies.central_critic.cases import TABLE as CENTRAL_CRITIC
from muxrl.experiments.studies.each_algorithm.cases import CASES as EACH_ALGORITHM
from muxrl.experiments.studies.outcomes import Figures
from muxrl.orchestrator.launch.in_process import Served

FORMER: dict[str, dict[str, Any]] = {
    "PPO": {"optimizer_epsilon": 1.0e-8, "vf_clip_param": 10.0},
    "MAPPO": {"optimizer_epsilon": 1.0e-8, "clip_jointly": True},
    "SAC": {"actor_lr": 3.0e-5, "target_entropy": None},
    "DQN": {"td_error_loss_fn": "huber"},
}
"""By algorithm: the defaults that have changed, with their former values."""

_NUM_CUES = 4


def sampled_and_greedy(served: Served) -> Figures:
    """Plays 50 episodes with sampled actions, and the same 50 greedily."""
    sampled = evaluated(50, should_explore=True)(served)
    return {**sampled, "greedy": evaluated(50)(served)["return"]}


def _with(case: Case, server: str, settings: Mapping[str, Any], without: str = "") -> Case:
    """Returns the case with more settings, and without the setting `without`."""
    overrides = list(case.overrides)
    if without:
        (at,) = [i for i, line in enumerate(overrides) if ".settings=" in line]
        key, _, text = overrides[at].partition("=")
        given = {k: v for k, v in json.loads(text).items() if k != without}
        overrides[at] = f"{key}={json.dumps(given)}"
    more = (f"servers.{server}.settings.{k}={json.dumps(v)}" for k, v in settings.items())
    return dataclasses.replace(case, overrides=(*overrides, *more))


def _by_rule(case: Case) -> Case:
    return dataclasses.replace(case, measure=sampled_and_greedy)


def _both(task: str, case: Case, server: str, algorithm: str, without: str = "") -> dict[str, Case]:
    former = {k: v for k, v in FORMER[algorithm].items() if not without or k == without}
    return {
        f"{task}: former": _with(case, server, former, without),
        f"{task}: now": _with(case, server, {}, without),
    }


def _dqn(task: str) -> dict[str, Case]:
    """Returns DQN with its present and former default, measured on the way, as it takes long."""
    return {
        f"DQN, {task}: {name}": ByServer(
            "",
            (),
            env_steps=50_000,
            every=10_000,
            measure=evaluated(20),
            env=f"gymnasium:{task}-v1",
            algorithm="DQN",
            settings=settings,
            model={},
            num_envs=1,
        )
        for name, settings in (("former", FORMER["DQN"]), ("now", {}))
    }


_SAC_CUES = _by_rule(EACH_ALGORITHM["SAC, discrete"])
_SAC_DIALS = _by_rule(EACH_ALGORITHM["SAC, continuous"])
_CENTRAL = dataclasses.replace(CENTRAL_CRITIC.cases["MAPPO"], env_steps=6_000, every=None)
_PAPERS = {"normalize_values": True, "huber_delta": 10.0, "vf_clip_param": 0.2}
_MAPPO_RECALL = _with(_by_rule(EACH_ALGORITHM["MAPPO, LSTM"]), "x", _PAPERS)
_RAW = {"normalize_values": False}
"""Settings with which MAPPO's critic learns returns as they are, which is the default now."""
_WEATHER = _with(_CENTRAL, "team", {**_RAW, "vf_clip_param": None, "huber_delta": None})
"""The game with MAPPO's defaults."""

CASES: dict[str, Case] = {
    **_both("SAC, cues, target_entropy", _SAC_CUES, "x", "SAC", "target_entropy"),
    **{
        f"SAC, cues, target_entropy: {share} log n": _with(
            _SAC_CUES, "x", {"target_entropy": share * math.log(_NUM_CUES)}, "target_entropy"
        )
        for share in (0.98, 0.5)
    },
    **_both("SAC, dials, actor_lr", _SAC_DIALS, "x", "SAC", "actor_lr"),
    **_both("PPO, dials", _by_rule(EACH_ALGORITHM["PPO, continuous"]), "x", "PPO"),
    **{
        f"A2C, dials: epsilon {epsilon:.0e}": _with(
            _by_rule(EACH_ALGORITHM["A2C, continuous"]), "x", {"optimizer_epsilon": epsilon}
        )
        for epsilon in (1.0e-8, 1.0e-5)
    },
    **_both("MAPPO, recall", _MAPPO_RECALL, "x", "MAPPO"),
    "MAPPO, recall: raw values": _with(_MAPPO_RECALL, "x", _RAW),
    **_both("MAPPO, cues in weather", _CENTRAL, "team", "MAPPO"),
    "MAPPO, cues in weather: raw values": _with(_CENTRAL, "team", _RAW),
    "MAPPO, cues in weather: raw values, unclipped": _with(
        _CENTRAL, "team", {**_RAW, "vf_clip_param": None}
    ),
    "MAPPO, cues in weather: default": _WEATHER,
    "MAPPO, cues in weather: normalized rewards": dataclasses.replace(
        _WEATHER, overrides=(*_WEATHER.overrides, "servers.team.normalize_rewards=true")
    ),
    **_both("PPO, CartPole", CARTPOLE.cases["PPO through a server"], "ppo", "PPO"),
    **_dqn("CartPole"),
    **_dqn("Acrobot"),
}

TABLE = CaseTable(CASES, seeds=(0, 1, 2))

if __name__ == "__main__":
    main(TABLE, __doc__)
