"""The commands and programs of docs/external.md run as the page shows them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import requests
from tests.compliance.gateways import gateway_to
from tests.compliance.real_servers import MakeServer, make_plan, running

from muxrl.client import PolicyClient
from muxrl.client.adapters import adapt
from muxrl.client.adapters.simulation import COMMON
from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config.load import load_config
from muxrl.orchestrator.config.resolve import prepare
from muxrl.protocol.spaces import Box, Space
from muxrl.servers.server import PolicyServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "external.md").read_text()
ADDRESS = "127.0.0.1:9900"


def test_an_episode_with_curl_alone(make_server: MakeServer, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    servers = servers_of(page_config(), make_server, tmp_path)
    shown = re.findall(rf"```\n(curl {ADDRESS}.*?')\n(\{{.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 4
    with gateway_to(*servers) as gateway:
        for command, answer in shown:
            here = command.replace(ADDRESS, gateway.address)
            done = subprocess.run(
                ["bash", "-c", here], capture_output=True, text=True, check=True, timeout=30
            )
            said, expected = json.loads(done.stdout), json.loads(answer)
            if "logged_actions" not in command:  # a policy's own choice of actions is random
                for reply in [*said.get("replies", []), *expected.get("replies", [])]:
                    assert all(0 <= action < 10 for action in reply["actions"].values())
                    reply["actions"] = sorted(reply["actions"])
            assert said == expected
    assert servers[0].policies.store.counts.num_agent_steps == 8


SEED = {
    "group_1": [[0.0, 0.0, 10.0, 10.0, 0.1], [-10.0, -10.0, 0.0, 0.0, 0.7]],
    "group_2": [[10.0, 10.0, 0.0, 0.0, 0.02], [0.0, 0.0, -10.0, -10.0, 0.99]],
}
"""What a user of RLlib 1.7 sent: his client grouped drivers; the page names each driver."""


def test_observations_by_group_are_refused_where_the_agents_are_drivers(
    make_server: MakeServer, tmp_path: Path
) -> None:
    reply = said_by_group(page_config(), {}, make_server, tmp_path)
    assert reply["code"] == 422
    assert "there is no agent 'group_1' here" in reply["message"]
    assert reply["message"].endswith("it is a group: name its members, driver_1, driver_2")


def test_observations_by_group_are_taken_where_each_group_is_an_agent(
    make_server: MakeServer, tmp_path: Path
) -> None:
    (declared,) = re.findall(r"```yaml\n(    group_\{1\.\.2\}:.*?)```", PAGE, re.DOTALL)
    config = re.sub(r"    driver_\{1..4\}:.*?\n\n", f"{declared}\n", page_config(), flags=re.DOTALL)
    config = re.sub(
        r"  qmix:.*?\n\n", "  a2c: {algorithm: A2C, agents: ['*']}\n", config, flags=re.DOTALL
    )
    reply = said_by_group(config, {}, make_server, tmp_path)
    assert [len(reply["actions"][group]) for group in SEED] == [2, 2]
    chosen = {"group_1": [0, 7], "group_2": [8, 4]}
    reply = said_by_group(config, {"logged_actions": chosen}, make_server, tmp_path)
    assert reply["actions"] == chosen


def page_config() -> str:
    """Returns the config with which the page begins."""
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def servers_of(config: str, make_server: MakeServer, folder: Path) -> list[PolicyServer]:
    (folder / "routes.yaml").write_text(config)
    experiment = prepare(load_config(folder / "routes.yaml"))
    return [make_server(plan) for plan in experiment.servers.values()]


def said_by_group(
    config: str, more: dict[str, Any], make_server: MakeServer, folder: Path
) -> dict[str, Any]:
    """Returns what a gateway answers if the observations of `SEED` are sent as they are."""
    with gateway_to(*servers_of(config, make_server, folder)) as gateway:
        url = f"http://{gateway.address}/v1"
        requests.post(f"{url}/episodes", json={"episode_id": "floof"}, timeout=10)
        step = {"type": "step", "episode_id": "floof", "t": 0, "observations": SEED, **more}
        answer = requests.post(f"{url}/step", json={"items": [step]}, timeout=10)
        (reply,) = answer.json()["replies"]
        assert isinstance(reply, dict)
        return reply


@pytest.mark.parametrize("example", ["twenty_lines.py", "twenty_lines_http.py", "on the page"])
def test_the_loops_play_until_the_run_is_over(example: str, tmp_path: Path) -> None:
    if example == "on the page":
        (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    else:
        code = (ROOT / "experiments/examples" / example).read_text()
    assert ADDRESS in code
    sees: dict[str, Space] = {f"adversary_{i}": Box((16,)) for i in range(3)} | {
        "agent_0": Box((14,))
    }
    with (
        running(make_plan("RANDOM", sees)) as server,
        gateway_to(server, num_episodes=6) as gateway,
    ):
        loop = tmp_path / "loop.py"
        loop.write_text(code.replace(ADDRESS, gateway.address))
        subprocess.run([sys.executable, loop], check=True, timeout=60)
        counts = gateway.gateway.episodes.counts
        assert counts.num_episodes >= 6
        assert counts.num_agent_steps >= 6 * 25 * 4


def test_the_ready_loop_plays_until_the_run_is_over_and_tells_its_metrics() -> None:
    class Won(gymnasium.Wrapper[Any, Any, Any, Any]):
        """Puts a `win` into the infos of every step."""

        def step(self, action: Any) -> Any:
            *result, info = super().step(action)
            return *result, {**info, "win": 1.0}

    simulation = adapt(Won(gymnasium.make("CartPole-v1")))
    spaces = simulation.observation_spaces["agent"], simulation.action_spaces["agent"]
    plan = make_plan("RANDOM", {"agent": spaces})
    with running(plan) as server, gateway_to(server, num_episodes=3) as gateway:
        with PolicyClient(gateway.address) as client:
            loop = EnvLoop([simulation], client, on_lost="restart", metrics={"win": "max"})
            loop.run()
        assert loop.num_episodes >= 3
        played = list(gateway.gateway.episodes.ended)
    assert played
    assert all(episode.returns.keys() == {"agent"} for episode in played)
    assert all(episode.metrics.pop("episode_length")[COMMON] > 0 for episode in played)
    assert all(episode.metrics.pop("truncated") == {COMMON: 0.0} for episode in played)
    assert all(episode.metrics == {"win": {"agent": 1.0}} for episode in played)
