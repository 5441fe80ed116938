"""The functions that the walks of docs/architecture.md name are called in their order."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from muxrl.orchestrator.cli import main
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.launch.in_process import serve

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"`([\w/]+\.py):([\w.]+)`")
MOST_PLACES = 12


def walk(heading: str) -> list[str]:
    """Returns the functions that a walk names, in its order."""
    page = (ROOT / "docs/architecture.md").read_text()
    (section,) = re.findall(rf"^## {heading}:.*?\n(.*?)(?=^## |\Z)", page, re.M | re.DOTALL)
    places = [f"{path}:{name}" for path, name in PLACE.findall(section)]
    assert len(places) == len(set(places)) <= MOST_PLACES
    return places


@contextmanager
def traced() -> Iterator[list[str]]:
    """Gathers muxrl's functions that are called, even in threads that begin meanwhile."""
    calls: list[str] = []
    names: dict[Any, str] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if (name := names.get(code)) is None:
            path = Path(code.co_filename).resolve()
            inside = path.is_relative_to(ROOT)
            name = f"{path.relative_to(ROOT)}:{code.co_qualname}" if inside else ""
            names[code] = name
        if name:
            calls.append(name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_step_and_a_batch_call_the_functions_of_their_walks() -> None:
    small = {"train_batch_size_per_learner": 20, "minibatch_size": 10, "num_epochs": 1}
    config = load_config("cartpole_ppo", {"servers.ppo.settings": small})
    with traced() as calls, serve(config) as served, served.client() as client:
        simulation = served.simulation()
        seen, _ = simulation.reset(0)
        episode_id = client.start_episode()
        for t in range(25):  # the batch is complete after 20; then steps wait for its update
            began_at = len(calls)
            result = simulation.step(client.get_action(episode_id, seen))
            if t == 10:
                step, batch_at = list(dict.fromkeys(calls[began_at:])), began_at
            client.log_returns(episode_id, result.rewards)
            seen = result.observations
            if result.is_over:
                client.end_episode(episode_id, result.final_observations)
                episode_id = client.start_episode()
                seen, _ = simulation.reset(t)
    assert in_order(step, walk("One step")) == walk("One step")
    assert in_order(calls[batch_at:], walk("One batch")) == walk("One batch")


def test_a_run_calls_the_functions_of_its_walk(tmp_path: Path) -> None:
    quick = ["servers.ppo.settings.train_batch_size_per_learner=100", "stop.env_steps=200",
             "servers.ppo.settings.minibatch_size=50", "evaluation.interval_env_steps=100",
             "evaluation.num_episodes=1", "evaluation.final_num_episodes=1"]  # fmt: skip
    run = str(tmp_path / "run")
    with traced() as calls:
        assert main(["launch", "cartpole_ppo", "--run-dir", run, "--no-progress", *quick]) == 0
    # The first evaluation is before the first env step.
    assert in_order(calls, walk("One run")) == walk("One run")


def in_order(calls: list[str], places: list[str]) -> list[str]:
    """Returns the places that are called one after the other, up to the first that is missing."""
    left = iter(calls)
    found = []
    for place in places:
        if place not in left:
            break
        found.append(place)
    return found
