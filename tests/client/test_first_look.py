"""Looking at an environment, for a step or for the same episode twice, in a process of its own."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.client.scripted_envs import Counting, TwoAgents, gives, raises

from muxrl.client import first_look
from muxrl.client.adapters import SimulationError, adapt
from muxrl.client.apart import ProcessCall
from muxrl.client.first_look import Subject, look, look_at, look_at_batch
from muxrl.orchestrator import cli
from muxrl.orchestrator.config import ConfigError, SimulationConfig, probe

HERE = __name__


class Unseeded(TwoAgents):
    num = 0

    def rewards(self) -> dict[str, Any]:
        self.num += 1
        return {"a": float(self.num), "b": 1.0}


class Sighted(TwoAgents):
    num = 0

    def seen(self) -> dict[str, Any]:
        self.num += 1
        return {**super().seen(), "b": np.full(3, self.num, np.float32)}


class Endless(TwoAgents):
    def is_over(self) -> bool:
        return False


class LateNaN(TwoAgents):
    def rewards(self) -> dict[str, Any]:
        return {"a": np.nan if self.t == 3 else 1.0, "b": 1.0}


class NoNumber(TwoAgents):
    def seen(self) -> dict[str, Any]:
        return {**super().seen(), "b": np.full(3, np.nan, np.float32)}


NESTED = gives(infos=lambda self: {"a": {"time": {"late": 1.0}, "said": "no"}})


@pytest.mark.parametrize(
    ("env", "found"),
    [
        (TwoAgents, []),
        (gives(rewards=lambda self: {"b": 0.0} if self.t > 1 else {}),
         ["'a' no reward for 4 of 4 actions", "'b' no reward for 1 of 4 actions"]),
        (Unseeded, ["differ: in step 1 the reward of agent 'a' is 1 in one and 5 in the"]),
        (Sighted, ["after reset(seed=0) the observation of agent 'b' differs"]),
        (Endless, ["no episode of random actions ended within 1,000 steps"]),
    ],
)  # fmt: skip
def test_a_whole_episode_shows_what_one_step_does_not(env: type, found: list[str]) -> None:
    notes = look(adapt(env()), is_whole=True).notes
    assert [part in note for note, part in zip(notes, found, strict=True)] == [True] * len(found)
    assert look(adapt(env())).notes == ()


@pytest.mark.parametrize(
    ("env", "metrics", "refusal"),
    [
        (LateNaN, {}, r"step\(\) number 3 gave agent 'a' the reward nan"),
        (gives(seen=lambda self: dict.fromkeys("ab", np.full(3, np.inf if self.t == 2 else 1))),
         {}, r"step\(\) number 2 gave agent 'a' .*infinity"),
        (gives(infos=lambda self: {"a": {"action_mask": np.ones(3)}} if self.t == 3 else {}),
         {}, "'a' have an 'action_mask' now"),
        (NESTED, {"time": "sum"}, "metric 'time' .*; name a number inside it, such as 'time/late'"),
        (NESTED, {"said": "sum"}, "metric 'said' in the info of 'a' is 'no'; expected a number"),
    ],
)  # fmt: skip
def test_a_whole_episode_refuses_what_a_run_would(env: type, metrics: Any, refusal: str) -> None:
    with pytest.raises(SimulationError, match=refusal):
        look(adapt(env()), metrics=metrics, is_whole=True)


def test_a_whole_episode_says_which_metrics_no_info_had() -> None:
    env = gives(infos=lambda self: {"a": {"wins": 1, "time": {"late": 2.0}}} if self.t > 1 else {})
    found = look(adapt(env()), metrics=dict.fromkeys(("wins", "win", "hit"), "last"), is_whole=True)
    assert found.absent_metrics == {
        "win": "; did you mean 'wins'?",
        "hit": "; its infos have wins, time/late",
    }
    assert look(adapt(env()), metrics={"win": "last"}).absent_metrics == {}, "of one step"
    unknown = gives(infos=lambda self: {"a": {"time": None, "speed": math.nan}})
    metrics = dict.fromkeys(("time", "speed"), "last")
    assert look(adapt(unknown()), metrics=metrics, is_whole=True).absent_metrics == {}
    assert look(adapt(Endless()), metrics={"win": "last"}, is_whole=True).absent_metrics == {}


class Slow(Endless):
    def step(self, actions: Any) -> Any:
        time.sleep(0.02)
        return super().step(actions)


def test_an_episode_that_takes_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_look, "_MOST_S", 0.1)
    (note,) = look(adapt(Slow()), is_whole=True).notes
    assert "ended within 0.1 s (" in note


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        (gives(state=lambda self: {"x": 1}),
         "state() returned a dict, which is not an array of numbers: {'x': 1}"),
        (gives(state=lambda self: [[1], [1, 2]]),
         "state() returned a list, which is not an array of numbers: [[1], [1, 2]]"),
        (gives(state=raises(KeyError("ship_0"))),
         "state() raised KeyError: 'ship_0' (scripted_envs.py, line "),
        (gives(state=lambda self: np.zeros(2), state_space=spaces.Box(0, 1, (3,))),
         "state() returned 2 numbers, but 3 were declared"),
        (gives(state=raises(NotImplementedError())), ""),
        (TwoAgents, ""),
    ],
)  # fmt: skip
def test_a_state_that_is_no_array_is_no_state(env: type, problem: str) -> None:
    found = look(adapt(env()))
    assert found.state_size is None
    assert problem in found.state_problem
    assert bool(problem) == bool(found.state_problem)


# --- in a process of its own --------------------------------------------------------------


class Leaves(TwoAgents):
    """Changes the working directory, opens a port, starts two programs that do not end, and cannot
    be closed."""

    def __init__(self, port: int, note: str) -> None:
        os.chdir("/")
        self.port = socket.create_server(("127.0.0.1", port))
        wait = [sys.executable, "-c", "import time; time.sleep(600)"]
        started = [subprocess.Popen(wait), subprocess.Popen(wait, start_new_session=True)]
        threading.Thread(target=time.sleep, args=(600,)).start()
        Path(note).write_text(" ".join(str(process.pid) for process in started))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        os.chdir("/tmp")
        return super().reset(seed, options)

    def close(self) -> None:
        raise RuntimeError("nothing can be closed")


class Exits(TwoAgents):
    def step(self, actions: Any) -> Any:
        os._exit(7)


class Crashes(TwoAgents):
    def step(self, actions: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.skipif(sys.platform != "linux", reason="what leaves its group is ended on Linux alone")
def test_nothing_of_an_environment_is_left(tmp_path: Path) -> None:
    here, kwargs = Path.cwd(), {"port": free_port(), "note": str(tmp_path / "started")}
    for _ in range(2):
        facts = probe(SimulationConfig(env=f"{HERE}:Leaves", kwargs=kwargs))
        assert facts.notes[0].startswith("close() raised RuntimeError")
        for pid in (tmp_path / "started").read_text().split():
            assert not Path(f"/proc/{pid}/cwd").exists() or Path(f"/proc/{pid}/stat").read_text() \
                .rpartition(")")[2].split()[0] == "Z"  # fmt: skip
    assert Path.cwd() == here


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        (
            lambda: probe(SimulationConfig(env=f"{HERE}:Exits")),
            r"ended the process that it ran in \(exit code 7",
        ),
        (
            lambda: probe(SimulationConfig(env=f"{HERE}:Crashes")),
            r"process that it ran in \(signal SIGSEGV",
        ),
        (
            lambda: probe(
                SimulationConfig(
                    env=f"{HERE}:Leaves",
                    kwargs={"port": free_port(), "note": os.devnull},
                    num_processes=2,
                ),
                is_whole=True,
            ),
            r"Address already in use .*each copy gets its own .*'\{5000 \+ index\}'",
        ),
    ],
)
def test_an_environment_that_ends_its_process_or_needs_it_alone_is_refused(
    call: Callable[[], Any], refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        call()


def test_check_plays_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    servers = "servers: {r: {algorithm: RANDOM, agents: ['*']}}"
    for env, code, said in (
        (
            "Unseeded",
            0,
            "warning: simulation.env: two episodes with the same seed and the same actions",
        ),
        ("LateNaN", 2, f"'{HERE}:LateNaN': step() number 3 gave agent 'a' the reward nan"),
        ("LateNaN', on_bad_value: 'episode", 0, "on_bad_value is 'episode', so training closes"),
        ("NoNumber', on_bad_value: 'episode", 0, "reset() gave agent 'b' an observation that is"),
    ):
        (tmp_path / "c.yaml").write_text(f"simulation: {{env: '{HERE}:{env}'}}\n{servers}\n")
        assert cli.main(["check", "c.yaml", "stop.env_steps=9"]) == code
        assert said in "".join(capsys.readouterr())


class ResetsSome(Counting):
    def __init__(self, num_envs: int) -> None:
        super().__init__(*[9] * num_envs)


class ResetsAll(ResetsSome):
    """Resets all copies, whatever mask it is given."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed)


def test_a_batch_that_ignores_the_mask_of_a_reset_is_refused() -> None:
    look_at_batch(Subject(f"{HERE}:ResetsSome", {}))
    batch = SimulationConfig(env=f"{HERE}:ResetsAll", vector_env=True)
    assert probe(batch).agents.keys() == {"a", "b"}, "alone, it is right"
    batch.num_envs_per_process = 2
    with pytest.raises(ConfigError, match=r"of copies \[0\] of 2 changed the observations of the"):
        probe(batch)


def test_an_error_that_is_not_the_environment_s_is_raised_as_it_is() -> None:
    with (
        ProcessCall(look_at, "no subject", False) as looking,
        pytest.raises(RuntimeError, match="apart"),
    ):
        looking.result()
