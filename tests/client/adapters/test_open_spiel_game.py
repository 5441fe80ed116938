from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyspiel
import pytest

from muxrl.client.adapters import SimulationError, make_simulation
from muxrl.client.first_look import look
from muxrl.protocol.values import sample_action

GAMES = [
    "kuhn_poker",
    "kuhn_poker(players=3)",
    "leduc_poker",
    "tic_tac_toe",  # has observation tensors, but no information state tensors
    "pig(winscore=15)",  # has chance nodes between turns
    # Players act at the same time, with chance nodes between steps.
    "goofspiel(num_cards=4,imp_info=True)",
    "oshi_zumo(coins=6)",  # pays rewards before the end
    "matrix_rps",
]


def a_legal_action(simulation: Any, seed: int) -> Callable[[str, Any], Any]:
    rng = np.random.default_rng(seed)
    return lambda agent, seen: sample_action(simulation.action_spaces[agent], seen, rng)


@pytest.mark.parametrize("game", GAMES)
def test_turns_masks_tensors_and_returns_are_open_spiel_s(play: Any, game: str) -> None:
    simulation = make_simulation(f"open_spiel:{game}", {})
    look(simulation)
    for seed in range(8):
        asked: list[tuple[str, Any, int]] = []
        choose = a_legal_action(simulation, seed)

        def note(agent: str, seen: Any, asked: Any = asked, choose: Any = choose) -> Any:
            asked.append((agent, seen, choose(agent, seen)))
            return asked[-1][2]

        played = play(simulation, note, seed)
        seats = simulation.possible_agents
        state = pyspiel.load_game(game).new_initial_state()
        moves = iter(simulation._state.full_history())
        turn = iter(asked)
        while not state.is_terminal():
            if state.is_chance_node():
                state.apply_action(next(moves).action)
                continue
            at_once = state.is_simultaneous_node()
            acting = range(state.num_players()) if at_once else [state.current_player()]
            made = []
            for seat in acting:
                agent, seen, action = next(turn)
                assert agent == seats[seat]
                assert np.flatnonzero(seen["action_mask"]).tolist() == state.legal_actions(seat)
                kind = state.get_game().get_type()
                has_states = kind.provides_information_state_tensor
                tensor = "information_state_tensor" if has_states else "observation_tensor"
                assert seen["observation"].tolist() == pytest.approx(getattr(state, tensor)(seat))
                assert action == next(moves).action
                made.append(action)
            state.apply_actions(made) if at_once else state.apply_action(made[0])
        assert not list(turn)
        assert [played.returns[agent] for agent in seats] == state.returns()
        assert sorted(played.terminated) == sorted(seats)


def test_chance_is_drawn_by_the_seed() -> None:
    simulation = make_simulation("open_spiel:kuhn_poker", {})

    def drawn(seed: int) -> str:
        simulation.reset(seed=seed)
        return str(simulation._state)

    begun = [drawn(seed) for seed in range(600)]
    assert begun == [drawn(seed) for seed in range(600)]
    counts = Counter(begun)
    assert len(counts) == 6
    assert min(counts.values()) > 60
    assert max(counts.values()) < 140


@pytest.mark.parametrize(
    ("game", "kwargs", "message"),
    [
        ("kuhn_pokr", {}, "'open_spiel:kuhn_pokr': .*no game .*; did you mean 'kuhn_poker'"),
        ("kuhn_poker", {"player": 3}, "parameter 'player'. Available parameters are: players"),
        ("kuhn_poker", {"players": 33}, "num_players_ = 33"),
        ("mfg_garnet", {}, "mean-field"),
        ("coin_game", {}, "neither information states nor observations as tensors"),
    ],
)
def test_games_that_cannot_be_played_are_refused(game: str, kwargs: Any, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        make_simulation(f"open_spiel:{game}", kwargs)


def test_a_wrong_action_is_refused_by_name() -> None:
    simulation = make_simulation("open_spiel:leduc_poker", {})
    simulation.reset(seed=0)
    with pytest.raises(SimulationError, match=r"chose action 0, but .* allows only \[1, 2\]"):
        simulation.step({"player_0": 0})
    with pytest.raises(SimulationError, match="not to act now"):
        simulation.step({"player_1": 1})
    with pytest.raises(SimulationError, match=r"of single episodes.*\['speed'\]"):
        simulation.reset(options={"speed": 1.0})
    with pytest.raises(SimulationError, match="respawn"):
        make_simulation("open_spiel:leduc_poker", {}, respawn="same_id")


def test_a_game_that_draws_for_itself_is_noted() -> None:
    (note,) = look(make_simulation("open_spiel:negotiation", {})).notes
    assert "draws its chance events itself" in note
