"""Recorded episodes are read back as they were played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted_servers import CountingSimulation
from tests.orchestrator.records.recorded import play

from muxrl.client.adapters import adapt
from muxrl.experiments.simulations.stairs import Stairs
from muxrl.orchestrator.records import played
from muxrl.orchestrator.records.played import (
    ParquetFile,
    Recorded,
    keep_share,
    read_episodes,
    share_of,
)
from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)

LEAVES = st.sampled_from(
    [Box((2, 3)), Box((), "float64"), Box((2,), "uint8", 0, 255), Discrete(3, -1),
     MultiDiscrete((2, 9)), MultiBinary(3)]
)  # fmt: skip
SPACES = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(st.sampled_from("zab"), inner, min_size=1, max_size=3).map(DictSpace)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: TupleSpace(tuple(parts)))
    ),
    max_leaves=5,
)


def a_value(space: Space, rng: np.random.Generator) -> Any:
    if isinstance(space, DictSpace):
        return {key: a_value(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, TupleSpace):
        return tuple(a_value(part, rng) for part in space.spaces)
    if isinstance(space, Discrete):
        return int(rng.integers(space.n))
    if isinstance(space, Box):
        return rng.integers(0, 255, space.shape).astype(space.dtype)
    num = len(space.nvec) if isinstance(space, MultiDiscrete) else space.n
    return rng.integers(0, 2, num)


def plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=lambda array: (str(array.dtype), array.tolist()))


class Any2(CountingSimulation):
    """A simulation of two agents with given spaces and values."""

    def __init__(self, spaces: list[Space], values: list[Any]) -> None:
        super().__init__(num_steps=2)
        self.possible_agents = ("a", "b")
        self.observation_spaces = dict(zip("ab", spaces, strict=True))
        self.action_spaces = dict(zip("ba", spaces, strict=True))
        self.values = dict(zip("ab", values, strict=True))

    def _observations(self) -> dict[str, Any]:
        return self.values


@settings(max_examples=30)
@given(SPACES, SPACES, st.integers(0, 2**32))
def test_values_of_every_space_are_read_back_with_type_and_shape(
    one: Space, other: Space, seed: int
) -> None:
    import tempfile

    rng = np.random.default_rng(seed)
    values = [a_value(one, rng), a_value(other, rng)]
    simulation = Any2([one, other], values)
    rows: list[Any] = []
    recorded = Recorded(simulation, lambda of_one, _: rows.extend(of_one))
    recorded.reset(3)
    for _ in range(2):
        recorded.step(dict(zip("ba", values, strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        file = ParquetFile(Path(folder) / "one.parquet")
        file.write(simulation, rows, {"speed": 2.5})
        file.close()
        ((read, parameters),) = read_episodes(Path(folder) / "one.parquet")
    assert parameters == {"speed": 2.5}
    assert [plain({"final_observation": None, **row}) for row in rows] == [
        plain({"final_observation": None, **row}) for row in read
    ]


def test_a_share_of_the_episodes_is_kept_and_the_same_ones_again(tmp_path: Path) -> None:
    simulation = keep_share(adapt(Stairs(height=4)), tmp_path, 0.3)
    rng = np.random.default_rng(0)
    returns = {}
    for seed in range(100):
        steps = play(simulation, seed, lambda *_: int(rng.integers(2)), distance=1 + seed % 4)
        returns[seed] = sum(sum(step.rewards.values()) for step in steps)
    kept = {seed for seed in range(100) if share_of(seed, 0.3)}
    assert 15 < len(kept) < 45
    assert {path.name for path in tmp_path.iterdir()} == {f"{seed}.parquet" for seed in kept}
    frame = pd.read_parquet(tmp_path)
    assert frame.groupby("seed")["reward"].sum().to_dict() == {s: returns[s] for s in kept}
    assert (frame["parameter.distance"] == 1 + frame["seed"] % 4).all()
    assert frame["terminated"].sum() == 2 * len(kept)


def test_a_full_disk_costs_only_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(played.ParquetFile, "write", full)
    play(keep_share(adapt(Stairs(height=4)), tmp_path, 1.0), 1, lambda *_: 1)
    assert "an episode could not be recorded: [Errno 28]" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="holds no episodes"):
        list(read_episodes(tmp_path / "other.parquet"))
