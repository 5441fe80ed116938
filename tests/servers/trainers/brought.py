"""Trainers as users write them: a right one, and some in which one thing is different or wrong."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from muxrl.servers.trainers.interface import Acted


class Counting:
    """Takes the number of its updates as action, modulo the actions; counts what it gets to
    learn."""

    learns_from = "newest"
    batch_env_steps = 4
    gamma = 0.9

    def __init__(self, policy: Any, start: int = 0, *, rate: float = 0.1) -> None:
        self.policy = policy
        self.num_updates = start
        self.rate = rate
        self.num_rows = 0
        self.seen: list[Any] = []

    def act(self, rows: Any) -> Any:
        drawn = rows.rng.integers(1000, size=len(rows))
        actions = np.full(len(rows), self.num_updates % self.policy.action_space.n)
        states = [(0 if state is None else state) + 1 for state in rows.states]
        return Acted(actions, {"drawn": drawn}, states)

    def learn(self, trajectories: Any) -> dict[str, float]:
        self.num_updates += 1
        self.num_rows += sum(map(len, trajectories))
        self.seen += trajectories
        return {"loss": 1.0 / self.num_updates, "rows": self.num_rows}

    def weights(self) -> dict[str, Any]:
        return {"num_updates": self.num_updates}

    def set_weights(self, weights: dict[str, Any]) -> None:
        self.num_updates = weights["num_updates"]

    def state(self) -> dict[str, Any]:
        return {"num_updates": self.num_updates, "num_rows": self.num_rows}

    def load(self, state: dict[str, Any]) -> None:
        self.num_updates, self.num_rows = state["num_updates"], state["num_rows"]


class Blocking(Counting):
    """Learns until `may_end` is set."""

    learns_from = "replay"
    may_end = threading.Event()

    def learn(self, trajectories: Any) -> dict[str, float]:
        assert self.may_end.wait(20.0)
        return super().learn(trajectories)


class Remembering(Counting):
    """Keeps in arrays how often an agent has acted."""

    remembers = "num"

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"num": np.zeros(1, np.int64)}

    def act(self, rows: Any) -> Any:
        num = rows.states["num"]
        assert num.shape == (len(rows), 1)
        actions = np.full(len(rows), self.num_updates % self.policy.action_space.n)
        return Acted(actions, {"num": num}, {self.remembers: num + 1})


class RemembersAnother(Remembering):
    remembers = "count"


class Telling(Counting):
    """Has no recurrent state, and returns probabilities and values."""

    told = (0.5, 0.25, 0.25)

    def act(self, rows: Any) -> Any:
        return super().act(rows).actions

    def probabilities(self, rows: Any) -> Any:
        assert rows.should_explore
        assert not rows.is_training
        return np.array([self.told] * len(rows))

    def value(self, rows: Any) -> Any:
        return rows.observations.sum(axis=1) + self.num_updates


class TellsTooMuch(Telling):
    told = (0.5, 0.5, 0.5)

    def value(self, rows: Any) -> Any:
        return np.full(len(rows), np.nan)


class WithoutWeights:
    batch_env_steps = 4
    act, learn = Counting.act, Counting.learn
    state, load = Counting.state, Counting.load
    __init__ = Counting.__init__


class WithoutLearn:
    batch_env_steps = 4

    def __init__(self, policy: Any) -> None:
        pass

    def act(self, rows: Any) -> Any:
        return np.zeros(len(rows), int)


class NeedsASetting(Counting):
    def __init__(self, policy: Any, width: int) -> None:
        super().__init__(policy)


class FailsToBegin(Counting):
    def __init__(self, policy: Any) -> None:
        raise RuntimeError("no such device")


class EndsTheProcess(Counting):
    def __init__(self, policy: Any) -> None:
        raise SystemExit("no such device")


class CopiesWithoutWeights:
    acts_while_learning = True
    batch_env_steps = 4
    act, learn = Counting.act, Counting.learn
    state, load = Counting.state, Counting.load

    def __init__(self, policy: Any) -> None:
        pass


class ByAgent(Counting):
    def act(self, rows: Any) -> Any:
        return dict.fromkeys(rows.agents, 0)


class SaysItsLoss(Counting):
    def learn(self, trajectories: Any) -> Any:
        return {"loss": "low"}


class TooFewRows(Counting):
    def act(self, rows: Any) -> Any:
        return np.zeros(len(rows) + 1, int)


class OutsideOfItsSpace(Counting):
    def act(self, rows: Any) -> Any:
        return np.full(len(rows), 99)


class Fractions(Counting):
    def act(self, rows: Any) -> Any:
        return np.full(len(rows), 0.5)


class FailsToAct(Counting):
    def act(self, rows: Any) -> Any:
        raise ValueError("lost my weights")


class NoBatch(Counting):
    batch_env_steps = 0  # type: ignore[assignment]


class LearnsFromNothing(Counting):
    learns_from = "old"


class KeepsObjects(Counting):
    def state(self) -> dict[str, Any]:
        return {"rng": np.random.default_rng(0)}


class LoadsAnotherKey(Counting):
    def load(self, state: dict[str, Any]) -> None:
        self.num_updates = state["updates"]


class FailsToLearn(Counting):
    def learn(self, trajectories: Any) -> Any:
        raise ArithmeticError("the loss is gone")


class WithCopies(Counting):
    acts_while_learning = True


class Forgetful(Counting):
    """Its `load` leaves out how many rows it has learned."""

    def load(self, state: dict[str, Any]) -> None:
        self.num_updates = state["num_updates"]


NOT_CALLABLE = 3


class WithState(Counting):
    """Learns with the global state, and returns the sum of its first numbers as a metric."""

    reads_state = True

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        assert policy.observation_space.shape == (2,)

    def learn(self, trajectories: Any) -> dict[str, float]:
        for one in trajectories:
            assert one.observations.shape == (len(one) + 1, 2)
            assert one.states.shape == (len(one) + 1, self.policy.state_size)
        return super().learn(trajectories) | {"state": float(trajectories[0].states[:, 0].sum())}


class ReusesItsArrays(Counting):
    """Writes into its arguments, and returns the same arrays every time."""

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self.kept: dict[int, Any] = {}

    def act(self, rows: Any) -> Any:
        rows.observations[:] = 0.0
        drawn, states = self.kept.setdefault(len(rows), np.zeros((2, len(rows), 1), int))
        drawn[:, 0] = rows.rng.integers(1000, size=len(rows))
        states[:, 0] = [1 if state is None else state[0][0] + 1 for state in rows.states]
        return Acted(np.zeros(len(rows), int), {"drawn": drawn}, [(one,) for one in states])


class Infinite(Counting):
    def act(self, rows: Any) -> Any:
        return np.full((len(rows), 1), [[0.0], [np.inf]])


class OfTeams(Counting):
    """Learns for teams; gives absent members an action outside of their space."""

    forms_teams = True

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        assert policy.members == {"team": ("a", "b")}
        assert policy.observation_space.shape == (2, 2)

    def act(self, rows: Any) -> Any:
        actions = np.full((len(rows), 2), self.num_updates % 3)
        states = [(0 if state is None else state) + 1 for state in rows.states]
        drawn = rows.rng.integers(1000, size=len(rows))
        return Acted(np.where(rows.present, actions, 99), {"drawn": drawn}, states)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "mixer": np.zeros(self.policy.state_size)}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        assert state["mixer"].shape == (self.policy.state_size,)


class OneTensor(Counting):
    """Adam on a tensor by the mean reward; a reward of 1e30 spoils its state."""

    def __init__(self, policy: Any) -> None:
        import torch

        super().__init__(policy)
        self.torch, self.weight = torch, torch.zeros(3, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.weight], lr=0.1)

    def learn(self, trajectories: Any) -> dict[str, float]:
        mean = float(np.mean([one.rewards.mean() for one in trajectories]))
        self.optimizer.zero_grad()
        loss = ((self.weight - mean) ** 2).sum()
        loss.backward()
        self.optimizer.step()
        return super().learn(trajectories) | {"loss": loss.item()}

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "weight": self.weight.detach(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.weight.data.copy_(state["weight"])
        self.optimizer.load_state_dict(state["optimizer"])


class InNumpy(Counting):
    """Adds up rewards. The best one so far is infinite before the first reward, which is no
    error."""

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self.sums, self.best = np.zeros(3, np.float32), -np.inf
        self.recent = np.full(3, np.nan)

    def learn(self, trajectories: Any) -> dict[str, float]:
        for one in trajectories:
            with np.errstate(all="ignore"):
                self.sums += one.rewards.sum().astype(np.float32) ** 2
            self.best = max(self.best, float(one.rewards.max())) if self.num_updates else self.best
        return super().learn(trajectories)

    def state(self) -> dict[str, Any]:
        return super().state() | {"sums": self.sums, "best": self.best, "recent": self.recent}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.sums, self.best, self.recent = state["sums"], state["best"], state["recent"]


class RaisesWhenSpoilt(InNumpy):
    """Raises in the middle of an update, as a library whose distribution checks its arguments."""

    def learn(self, trajectories: Any) -> dict[str, float]:
        metrics = super().learn(trajectories)
        if not np.isfinite(self.sums).all():
            raise ValueError("expected finite logits")
        return metrics


class FromAReplay(InNumpy):
    """Learns its whole replay again in every update."""

    learns_from = "replay"
    batch_env_steps = 2

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self.replay: list[Any] = []

    def learn(self, trajectories: Any) -> dict[str, float]:
        self.replay += trajectories
        return super().learn(self.replay)

    def learned_state(self) -> dict[str, Any]:
        return super().state()


class HasADefaultThatIsAClass(Counting):
    def __init__(self, policy: Any, activation: type = dict, rate: float = 0.1) -> None:
        super().__init__(policy, rate=rate)
