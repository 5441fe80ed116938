"""A mixer matters, as a real server proves: QMIX reaches 8 where a sum of values reaches 7."""

import pytest

from muxrl.client import MultiplexingClient
from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.studies.two_step.cases import TABLE
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.launch.in_process import serve

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.night  # by day: test_matrix_games.py; qmix/test_fits.py
@pytest.mark.parametrize(("algorithm", "held"), [("QMIX", 8.0), ("VDN", 7.0)])
def test_greedy_joint_return_under_uniform_exploration(algorithm: str, held: float) -> None:
    outcome = TABLE.run(algorithm)
    assert outcome.held == held, outcome.returns


@pytest.mark.night  # by day: compliance/test_local_values.py
def test_the_game_is_learned_from_clients_with_local_inference() -> None:
    settings = "{hidden_dim: 32, agent: gru, lr: 0.002, target_update_freq: 50}"
    config = load_config("two_step", ["seed=1", f"servers.team.settings={settings}"])
    with serve(config) as served:
        (server,) = served.servers.values()
        with MultiplexingClient([server.address], inference_mode="local") as client:
            EnvLoop([served.simulation()], client, seeds=iter(range(2_500))).run()
            assert client.num_mismatches == 0
        server.finish_training(60.0)
        served.check()
        (result,) = served.evaluate(1)
        status = server.status()
    assert (status.num_env_steps, status.num_stale_steps) == (5_000, 0)
    assert sum(result.returns.values()) == 8.0
