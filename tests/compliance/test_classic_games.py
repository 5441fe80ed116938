"""Every algorithm that follows action masks plays PettingZoo's classic games to their end."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.compliance.classic_games import CIRCLES, make_game
from tests.nights import at_night
from tests.servers.resumable import CASES

from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.config import ServerConfig
from muxrl.servers.lookup import own_algorithms

GAMES: dict[str, dict[str, Any]] = {
    "tictactoe_v3": {},
    "connect_four_v3": {},
    "go_v5": {"board_size": 5},
    "leduc_holdem_v4": {},
    "texas_holdem_v4": {},
    "texas_holdem_no_limit_v6": {},
    "chess_v6": {},
}
"""By game: the arguments with which it is made. All games have action masks."""
NUM_STEPS = 220
"""Each algorithm plays whole games of at least this many steps: QMIX's batches need 200."""
READS_FLAT = ("MAPPO", "HAPPO")
"""Algorithms whose networks refuse boards: they play the games with flat observations."""

FOLLOWS_MASKS = [e.name for e in own_algorithms() if e.name != "MASAC"]  # a Box has no action masks
SHORT = [game for game in GAMES if game != "chess_v6"]
KINDRED = ("APPO", "HAPPO", "VDN", "IQL", "QPLEX")
"""Algorithms that play at night only; by day their relatives IMPALA, MAPPO and QMIX play."""
BY_DAY = [(algorithm, SHORT[n % 6]) for n, algorithm in enumerate(FOLLOWS_MASKS)]
"""By day each algorithm plays one of the short games."""
AT_NIGHT = [
    *((algorithm, SHORT[(n + n // 6 + 1) % 6]) for n, algorithm in enumerate(FOLLOWS_MASKS)),
    *((algorithm, "chess_v6") for algorithm in ("PPO", "DQN", "MAPPO", "QMIX")),
]
"""At night each algorithm plays another short game, and one of each kind plays chess, the
longest."""


@pytest.mark.slow
# Of Texas hold'em.
@pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered:UserWarning")
@pytest.mark.parametrize(
    ("algorithm", "game"),
    at_night([*BY_DAY, *AT_NIGHT], [*AT_NIGHT, *(case for case in BY_DAY if case[0] in KINDRED)]),
)
def test_a_game_with_masks_is_played_to_its_end(
    one_thread: None, algorithm: str, game: str
) -> None:
    _, settings, model = CASES[algorithm]
    if "batch_size_episodes" in settings:
        # A single game of chess may be all that is played.
        settings = {**settings, "batch_size_episodes": 1, "num_episodes_before_learning": 1}
    config = ExperimentConfig(
        "classic",
        simulation=SimulationConfig(
            f"{make_game.__module__}:make_game",
            {"game": game, "is_flat": algorithm in READS_FLAT, **GAMES[game]},
        ),
        servers={"both": ServerConfig(algorithm, ["*"], settings=settings, model=model)},
    )
    played: list[EpisodeResult] = []
    with serve(config) as served:
        with served.client() as client:
            EnvLoop([served.simulation()], client, seeds=itertools.count()).run(
                played.append, lambda: sum(game.num_steps for game in played) >= NUM_STEPS
            )
        evaluated = served.evaluate(2, should_explore=game in CIRCLES)
        served.check()
        server = served.servers["both"]
        server.finish_training()
        assert server.status().weights_seq_no > 0
    for episode in [*played, *evaluated]:
        # A forbidden move would end the game at once, with -1 for its player and 0 for the other.
        assert sum(episode.returns.values()) == pytest.approx(0.0)
