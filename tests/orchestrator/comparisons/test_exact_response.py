"""Exploitability and best responses in poker are exact for policies of `muxrl.load_policy`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyspiel
import pytest
import torch
from tests.servers.export.untrained import plan_of, save

from muxrl.client.adapters import make_simulation
from muxrl.orchestrator.comparisons.exact_response import exact_response
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.load_policy import load_policy
from muxrl.orchestrator.measure.exact_games import ExactGame, Mean
from muxrl.orchestrator.storage.checkpoints import Manifest
from muxrl.servers.server import make_policies

EXAMPLE = "muxrl.experiments.examples.own_trainer.policy_gradient"


@pytest.mark.parametrize(("game", "uniform"), [("kuhn_poker", 11 / 24), ("leduc_poker", 2.3736)])
def test_uniform_policies_are_as_exploitable_as_open_spiel_says(
    tmp_path: Path, game: str, uniform: float
) -> None:
    simulation = make_simulation(f"open_spiel:{game}", {})
    sees, acts = (
        spaces["player_0"] for spaces in (simulation.observation_spaces, simulation.action_spaces)
    )
    path = save(plan_of("PPO", sees, acts), tmp_path, torch.zeros_like)
    exact, policies = ExactGame(game), load_policy(path)
    table = exact.table([policies["a"], policies["b"]])
    assert exact.exploitability(table) == pytest.approx(uniform, abs=1e-4)
    known = pyspiel.load_game(game)
    assert exact.exploitability(table) == pytest.approx(
        pyspiel.exploitability(known, pyspiel.UniformRandomPolicy(known))
    )
    mean = Mean(exact)
    for _ in range(3):
        mean.add(table)
    np.testing.assert_allclose(mean.table, table)


def sure_of(action: int) -> Any:
    """Returns a function that sets all weights so that the policy always takes this action."""

    def put(parameter: torch.Tensor) -> torch.Tensor:
        leans = torch.zeros_like(parameter)
        if parameter.shape == (2,):
            leans[action] = 40.0
        return leans

    return put


def test_the_mean_of_snapshots_is_as_exploitable_as_open_spiel_says(tmp_path: Path) -> None:
    """One snapshot always passes, one always bets: after a pass, the mean folds for sure."""
    from open_spiel.python.algorithms.exploitability import nash_conv
    from open_spiel.python.algorithms.policy_aggregator import PolicyAggregator
    from open_spiel.python.policy import TabularPolicy

    puts = [sure_of(0), sure_of(1), leaning]
    for env_steps, put in zip((10, 20, 100), puts, strict=True):
        save(plan_of("PPO", *kuhn_spaces()), tmp_path / str(env_steps) / "main", put)
    exact, game = ExactGame("kuhn_poker"), pyspiel.load_game("kuhn_poker")

    def table(mean_of: Any) -> np.ndarray:
        policies = load_policy(tmp_path, mean_of=mean_of)
        return exact.table([policies["a"], policies["b"]])

    (tmp_path / "100").rename(tmp_path / "apart")
    states = [state.information_state_string() for state in exact._policy.states]
    two = dict(zip(states, table("all"), strict=True))
    np.testing.assert_allclose(two["0"], [0.5, 0.5])
    np.testing.assert_allclose(two["0pb"], [1, 0], atol=1e-9)
    (tmp_path / "apart").rename(tmp_path / "100")
    singles = []
    for put_in in ("10", "20", "100"):
        single = TabularPolicy(game)
        policy = load_policy(tmp_path / put_in)["a"]
        single.action_probability_array[:] = exact.table([policy, policy])
        singles.append(single)
    aggregated = PolicyAggregator(game).aggregate([0, 1], [singles, singles], [[1 / 3] * 3] * 2)
    expected = nash_conv(game, aggregated) / 2
    assert exact.exploitability(table(3)) == pytest.approx(expected, abs=1e-6)
    assert exact.exploitability(table("all")) == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(table(1), exact.table([load_policy(tmp_path / "100")["a"]] * 2))


def kuhn_spaces() -> tuple[Any, Any]:
    made = make_simulation("open_spiel:kuhn_poker", {})
    return made.observation_spaces["player_0"], made.action_spaces["player_0"]


def of_run(
    path: Path,
    opponent: str,
    game: str = "kuhn_poker",
    put: Any = torch.zeros_like,
    settings: dict[str, Any] | None = None,
    **simulation: Any,
) -> Any:
    """Returns a run whose checkpoint plays "a" against "b"; `put` sets the weights."""
    for server_id in ("main", "rivals"):
        save(plan_of("PPO", *kuhn_spaces()), path / "checkpoints" / "10" / server_id, put)
    Manifest(10, 0.0, "", None, {}, {}, {}, {}).write(path / "checkpoints" / "10")
    rivals = {"algorithm": opponent, "settings": settings or {}}
    config = load_config(
        {
            "simulation": {"env": f"open_spiel:{game}", **simulation},
            "servers": {"main": {"algorithm": "PPO"}, "rivals": rivals},
            "checkpoint": {"keep_every_env_steps": 10},
        }
    )
    return SimpleNamespace(path=path, config=config, server_of={"a": "main", "b": "rivals"})


@pytest.mark.parametrize("opponent", ["PPO", "RANDOM"])
def test_a_best_response_is_exact_in_a_small_game(tmp_path: Path, opponent: str) -> None:
    run = of_run(tmp_path, opponent)
    game = ExactGame("kuhn_poker")
    found = exact_response(run, "b", "10", should_explore=True)
    assert found.gain == pytest.approx(game.gains(game.table([None, None]))[1])
    assert found.own == pytest.approx(-1 / 8)
    run.config.simulation.parameters = {"seat": {"sides": ["a", "b"]}}
    both = exact_response(run, "b", "10", should_explore=True)
    assert (both.own, both.gain) == pytest.approx((0, 11 / 24))


def test_greedy_policies_take_their_first_likeliest_action(tmp_path: Path) -> None:
    """A policy that always passes loses the ante to one that always bets."""
    found = exact_response(of_run(tmp_path, "PPO"), "a", "10", should_explore=False)
    assert (found.best_response, found.own) == (1, 0)


def test_a_best_response_is_known_where_the_run_s_own_policy_is_not(tmp_path: Path) -> None:
    run = of_run(tmp_path, "SCRIPTED")
    found = exact_response(run, "b", "10", should_explore=True)
    assert found.best_response > 0
    assert found.own is found.gain is None
    assert exact_response(run, "a", "10", should_explore=True) is None


def value_of(one: np.ndarray, other: np.ndarray, seat: int) -> float:
    """Returns what a table earns in a seat, as OpenSpiel itself computes it."""
    from open_spiel.python.algorithms.expected_game_score import policy_value
    from open_spiel.python.policy import TabularPolicy

    game = pyspiel.load_game("kuhn_poker")
    policies = TabularPolicy(game), TabularPolicy(game)
    policies[seat].action_probability_array[:] = one
    policies[1 - seat].action_probability_array[:] = other
    return float(policy_value(game.new_initial_state(), policies)[seat])


def best_against(mixture: list[tuple[float, np.ndarray]], seat: int) -> float:
    """Returns what the best pure strategy earns against policies that are drawn for each game."""
    states = ExactGame("kuhn_poker")
    own, tables = np.flatnonzero(states.seats == seat), []
    for chosen in np.ndindex(*[2] * len(own)):
        table = states.uniform.copy()
        table[own] = np.eye(2)[list(chosen)]
        tables.append(table)
    total = sum(weight for weight, _ in mixture)
    return max(
        sum(weight * value_of(table, other, seat) for weight, other in mixture) / total
        for table in tables
    )


def leaning(parameter: torch.Tensor) -> torch.Tensor:
    """Returns biases alone, of a policy that bets three times in four."""
    leans = torch.zeros_like(parameter)
    if parameter.shape == (2,):
        leans[1] = np.log(3.0)
    return leans


def test_a_best_response_to_a_pool_is_to_what_it_draws(tmp_path: Path) -> None:
    """The pool draws live weights, a snapshot, random actions and a checkpoint by their weights;
    both roles are checked."""
    sees, acts = kuhn_spaces()
    moved = plan_of("PPO", sees, acts)
    save(moved, tmp_path / "old", lambda p: leaning(p.flip(0)).flip(0))  # a policy that passes
    save(moved, tmp_path / "checkpoints" / "20" / "main", lambda p: torch.full_like(p, 0.3))
    members: dict[str, Any] = {
        "now": {"live": "main", "weight": 2},
        "past": {"snapshots": "main", "weight": 3, "last": 1},
        "chance": {"algorithm": "RANDOM", "weight": 0.5},
        "old": {"algorithm": "FROZEN", "checkpoint": str(tmp_path / "old"), "weight": 1.5,
                "should_explore": True},
    }  # fmt: skip
    run = of_run(tmp_path, "POOL", put=leaning, settings={"members": members})
    save(moved, tmp_path / "checkpoints" / "20" / "rivals", leaning)
    Manifest(20, 0.0, "", None, {}, {}, {}, {}).write(tmp_path / "checkpoints" / "20")
    game = ExactGame("kuhn_poker")

    def table(path: Path) -> np.ndarray:
        policies = load_policy(path)
        return game.table([policies["a"], policies["a"]])

    live = table(tmp_path / "checkpoints" / "20" / "main")
    pool = [
        (2.0, live),
        (3.0, live),  # the newest snapshot, which has the same weights
        (0.5, game.uniform),
        (1.5, table(tmp_path / "old")),
    ]
    main = exact_response(run, "a", "20", should_explore=True)
    assert main.best_response == pytest.approx(best_against(pool, 0))
    expected = sum(weight * value_of(live, other, 0) for weight, other in pool) / 7
    assert main.own == pytest.approx(expected)
    rivals = exact_response(run, "b", "20", should_explore=True)
    assert rivals.best_response == pytest.approx(best_against([(1.0, live)], 1))
    assert rivals.own == pytest.approx(-expected)
    earlier = exact_response(run, "a", "10", should_explore=True)
    then = table(tmp_path / "checkpoints" / "10" / "main")
    assert earlier.best_response == pytest.approx(
        best_against([(5.0, then), *pool[2:]], 0)
    )  # there was one snapshot then


def test_random_opponents_act_at_random_on_both_sides(tmp_path: Path) -> None:
    """A best response in one seat does not change the opponents that the next one meets."""
    run = of_run(tmp_path, "RANDOM", put=leaning, parameters={"seat": {"sides": ["a", "b"]}})
    found = exact_response(run, "b", "10", should_explore=True)
    game, policy = ExactGame("kuhn_poker"), load_policy(tmp_path / "checkpoints/10/main")["a"]
    table = game.table([policy, policy])
    values = [value_of(table, game.uniform, seat) for seat in (0, 1)]
    best = [best_against([(1.0, table)], seat) for seat in (0, 1)]
    assert found.own == pytest.approx(-np.mean(values))
    assert found.best_response == pytest.approx(np.mean(best))


@pytest.mark.parametrize("name", ["SB3_PPO", "PolicyGradient"])
def test_policies_of_trainers_of_one_s_own_are_measured_exactly(tmp_path: Path, name: str) -> None:
    """Stable-Baselines3's policies observe no mask; in this game no action is ever forbidden."""
    sees, acts = kuhn_spaces()
    settings: dict[str, Any] = {}
    if name == "SB3_PPO":
        sees, settings = sees.spaces["observation"], {"batch_env_steps": 8, "total_timesteps": 9}
    algorithm = {"PolicyGradient": f"{EXAMPLE}:PolicyGradient"}.get(name, name)
    plan = plan_of(algorithm, sees, acts, settings=settings, model={})
    trainers: Any = make_policies(plan, pytest.fail)
    trainers.save(tmp_path / "saved")
    network = trainers.acting.learners["both"].network if name == "SB3_PPO" else None
    policy: Any = load_policy(tmp_path / "saved")["a"]
    game = ExactGame("kuhn_poker")
    if network is not None:
        policy = SimpleNamespace(
            probabilities=lambda seen, own=policy: own.probabilities(seen["observation"])
        )
        logits = network()
    else:
        net = trainers.acting.learners["both"].net
        logits = lambda seen: net(seen)[:, :-1]  # noqa: E731
    expected = game.uniform.copy()
    for row, state in enumerate(game._policy.states):
        seen = torch.tensor([state.information_state_tensor(state.current_player())])
        expected[row] = logits(seen).softmax(1).detach().numpy()
    assert np.abs(expected - game.uniform).max() > 1e-4
    table = game.table([policy, policy])
    np.testing.assert_allclose(table, expected, atol=1e-6)
    assert game.exploitability(table) == pytest.approx(game.exploitability(expected), abs=1e-6)


@pytest.mark.parametrize("game", ["matrix_rps", "tic_tac_toe"])
def test_no_exact_response_is_given_in_other_games(tmp_path: Path, game: str) -> None:
    run = of_run(tmp_path, "PPO", game)
    assert exact_response(run, "a", "10", should_explore=True) is None
    run.config.simulation.env = "m:e"
    assert exact_response(run, "a", "10", should_explore=True) is None
