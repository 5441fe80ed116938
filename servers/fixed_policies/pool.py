"""A pool: for each episode one of its members is drawn, and acts for all agents of the server.

Members are policies that do not change, the newest weights of another server of the same run, and
snapshots of that server, which the run passes on (`PoolPolicies.sync`). With equal seeds, members
and win rates the draw of an episode is the same; an episode without a seed is drawn by its id.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from muxrl.protocol.errors import NotServing
from muxrl.protocol.messages import StartEpisode
from muxrl.servers.acting import Acted, Acting, Asked
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.blocks import Block, Seats
from muxrl.servers.fixed_policies.alike import Alike, form_of
from muxrl.servers.fixed_policies.policies import FixedPolicies
from muxrl.servers.training.policies import Record

Draw = Literal["weights", "recency", "hard", "even", "nash", "alpha_rank"]
"""How to draw a member; the last two use weights that a run has computed before."""
_WINDOW = 100
"""Number of episodes over which a win rate is a mean, since the opponents learn and change."""
_LEAST = 0.001
"""Added to a weight from a win rate, so that members that always or never lose are still drawn."""


class PoolSource(Protocol):
    """A fixed algorithm, in the form that a pool needs to act with it."""

    @property
    def seating(self) -> Seating: ...
    def make_seats(self, plan: ServerPlan) -> dict[str, Seat]: ...
    def make_acting(self, plan: ServerPlan) -> Acting: ...


@dataclass
class Result:
    """The results of training episodes with one member.

    `beaten` is the share of episodes that the others won, where a draw counts half: a running mean
    that begins with one draw. `mean_return` is the mean over the pool's own agents.
    """

    num_episodes: int = 0
    beaten: float = 0.5
    mean_return: float = 0.0

    def add(self, returns: Mapping[str, float], win_above: float) -> None:
        """Counts an episode; the pool's agents won if their returns sum to over `win_above`."""
        self.num_episodes += 1
        num = min(self.num_episodes, _WINDOW)
        total = sum(returns.values())
        lost = 0.5 if total == win_above else float(total < win_above)
        self.beaten += (lost - self.beaten) / (num + 1)
        self.mean_return += (total / max(1, len(returns)) - self.mean_return) / num


@dataclass
class PoolMember:
    """A member that can play an episode; see `muxrl.servers.episodes.table.Player`."""

    name: str
    seats: Seats
    acting: Acting
    result: Result
    win_above: float
    follow: Callable[[LiveCheckpoint], None] | None = None
    """Takes newer weights; None: the member's weights never change."""
    alike: Alike | None = None
    """Acts in its place, together with other members; None: the member acts by itself."""

    def end(self, returns: Mapping[str, float]) -> None:
        self.result.add(returns, self.win_above)


def weigh(weight: float, beaten: Sequence[float], draw: Draw) -> list[float]:
    """Returns the weights of an entry's members, oldest first.

    "hard" and "even" are f_hard and f_var of prioritized fictitious self-play (Vinyals et al. 2019,
    doi 10.1038/s41586-019-1724-z), computed from the rates at which the members are beaten.
    """
    num = len(beaten)
    if draw == "recency":
        return [weight * 2 * (i + 1) / (num * (num + 1)) for i in range(num)]
    if draw == "hard":
        return [weight / num * ((1 - p) ** 2 + _LEAST) for p in beaten]
    if draw == "even":
        return [weight / num * (p * (1 - p) + _LEAST) for p in beaten]
    return [weight / num] * num


def share_of(seed: int, episode: str) -> float:
    """Returns a number in [0, 1) for an episode's seed or id, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{episode}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


class Pool(Acting):
    """Draws members, and acts with them.

    Args:
        plan: the server.
        settings: of the pool, checked; see `PoolAlgorithm`.
        sources: by entry, the members that do not change.
        open_snapshot: opens a checkpoint for an entry.
    """

    def __init__(
        self,
        plan: ServerPlan,
        settings: Mapping[str, Any],
        sources: Mapping[str, PoolSource],
        open_snapshot: Callable[[str, str], PoolSource],
    ) -> None:
        self.num_records = 0
        """Number of records of its members so far."""
        self.results: dict[str, Result] = {}
        """By name, the results of all members, including former ones."""
        self._plan = plan
        self._settings = settings
        self.rule: Draw = settings["draw"]
        self._entries: Mapping[str, Mapping[str, Any]] = settings["members"]
        self._open_snapshot = open_snapshot
        self._alike: dict[Any, Alike] = {}
        self._random_states: dict[str, Any] = {}
        """Random states of members that a resumed run has not yet passed on, by name."""
        self.members: dict[str, list[PoolMember]] = {}
        """By entry: its members, oldest first."""
        for entry, one in sources.items():
            self.members[entry] = [self._made(entry, one)]

    # --- draws --------------------------------------------------------------------------

    def weights(self, draw: Draw) -> Iterator[tuple[PoolMember, float]]:
        """Yields each member with its weight in the draw."""
        for entry, members in self.members.items():
            weight = self._entries[entry].get("weight", 1.0)
            beaten = [member.result.beaten for member in members]
            yield from zip(members, weigh(weight, beaten, draw), strict=True)

    def draw(self, item: StartEpisode) -> PoolMember:
        """Draws the member that plays an episode; evaluations use the weights alone.

        Raises:
            NotServing: there is no member yet.
        """
        weights = list(self.weights(self.rule if item.mode == "train" else "weights"))
        episode = item.episode_id if item.seed is None else str(item.seed)
        left = share_of(self._plan.seed, episode) * sum(weight for _, weight in weights)
        for member, weight in weights:
            left -= weight
            if left < 0:
                return member
        if weights:  # left over by rounding
            return weights[-1][0]
        raise NotServing(
            f"server {self._plan.server_id!r} has no member to play yet: its members are weights "
            "of other servers, which only a run provides"
        )

    def pass_of(self, block: Block) -> Any:
        """Returns a key for the networks that act: of one member, or of several that are alike."""
        assert block.players is not None
        first = block.players[0]
        return first.name if first.alike is None else first.alike

    def answer(self, asked: Asked) -> Acted:
        of_rows: list[PoolMember] = [
            block.players[row] for block, row in asked.episodes() if block.players
        ]
        first = of_rows[0]
        if first.alike is not None:
            return first.alike.answer(asked, [member.acting for member in of_rows])
        return first.acting.answer(asked)

    # --- members ------------------------------------------------------------------------

    def _made(self, name: str, one: PoolSource) -> PoolMember:
        plan = one.seating.with_groups(self._plan)
        return self._member(name, one.make_seats(plan), one.make_acting(plan))

    def _live(self, entry: str, live: LiveCheckpoint) -> PoolMember:
        from muxrl.servers.fixed_policies.frozen import open_policies

        modules = open_policies(live, self._entries[entry].get("policies", {}))
        plan = modules.seating.with_groups(self._plan)
        observing = modules.observing(plan)
        seats = modules.make_seats(plan, observing)
        should_explore = self._settings["should_explore"]
        acting = modules.make_inference(plan, should_explore=should_explore)
        names = modules.names_of(plan)

        def follow(newer: LiveCheckpoint) -> None:
            acting.put("weights", {ours: newer.weights[name] for ours, name in names.items()})
            acting.num_env_steps_sampled = newer.env_steps
            if observing.normalizes:
                observing.set_state(newer.observations, names=names, has_states=False)

        return self._member(entry, seats, acting, follow)

    def _member(
        self,
        name: str,
        seats: dict[str, Seat],
        acting: Acting,
        follow: Callable[[LiveCheckpoint], None] | None = None,
    ) -> PoolMember:
        result = self.results.setdefault(name, Result())
        if name in self._random_states:
            acting.set_random_state(self._random_states.pop(name))
        alike, form = None, form_of(seats, acting)
        if form is not None:
            if form not in self._alike:
                self._alike[form] = Alike(Seats(self._plan.agents, seats))
            alike = self._alike[form]
        known = alike.seats if alike else Seats(self._plan.agents, seats)
        win_above = self._settings["win_above"]
        return PoolMember(name, known, acting, result, win_above, follow, alike)

    def renewed(
        self, source: str, snapshots: Mapping[int, str], live: LiveCheckpoint | None
    ) -> dict[str, list[PoolMember]]:
        """Returns the members after a change of another server; see `PoolPolicies.sync`.

        Members that follow the server do not have its newest weights yet.
        """
        found: dict[str, list[PoolMember]] = {}
        for entry, given in self._entries.items():
            own = {member.name: member for member in self.members.get(entry, ())}
            if given.get("snapshots") == source and snapshots:
                newest = {f"{entry}@{n}": snapshots[n] for n in sorted(snapshots)[-given["last"] :]}
                found[entry] = [
                    own.get(name) or self._made(name, self._open_snapshot(entry, path))
                    for name, path in newest.items()
                ]
            elif source in (given.get("live"), given.get("snapshots")) and live is not None:
                found[entry] = [own.get(entry) or self._live(entry, live)]
            elif own:
                found[entry] = list(own.values())
        return found

    def put(
        self, members: dict[str, list[PoolMember]], source: str, live: LiveCheckpoint | None
    ) -> None:
        """Lets members play from now on; those that follow a server get its newest weights."""
        self.members = members
        for alike in self._alike.values():
            alike.forget()
        for entry, own in members.items():
            if source in map(self._entries[entry].get, ("live", "snapshots")) and live is not None:
                for member in own:
                    if member.follow is not None:
                        member.follow(live)

    # --- resuming -----------------------------------------------------------------------

    def get_random_state(self) -> dict[str, Any]:
        members = [member for those in self.members.values() for member in those]
        return {
            "members": {member.name: member.acting.get_random_state() for member in members},
            "results": {name: vars(result) for name, result in self.results.copy().items()},
            "num_records": self.num_records,
        }

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        self.num_records = state["num_records"]
        for name, of_member in state["results"].items():
            vars(self.results.setdefault(name, Result())).update(of_member)
        self._random_states = dict(state["members"])
        for members in self.members.values():
            for member in members:
                if member.name in self._random_states:
                    member.acting.set_random_state(self._random_states.pop(member.name))


class PoolPolicies(FixedPolicies):
    """A pool, and the episodes that its members play.

    Args:
        plan: the server.
        seats: by seat id.
        acting: the pool.

    Raises:
        ServerProblem: as `FixedPolicies`.
    """

    def __init__(self, plan: ServerPlan, seats: dict[str, Seat], acting: Pool) -> None:
        super().__init__(plan, seats, acting)
        self._pool = acting
        self._adding = threading.Lock()
        self._num_reported = self.store.counts.num_episodes
        self.iteration = acting.num_records
        self.store.draw = acting.draw

    def drain_records(self) -> list[Record]:
        """Returns a record of all members, if training episodes have ended since the last one."""
        counts, pool = self.store.counts, self._pool
        if counts.num_episodes == self._num_reported:
            return []
        self._num_reported = counts.num_episodes
        pool.num_records += 1
        self.iteration = pool.num_records
        weights = list(pool.weights(pool.rule))
        total = sum(weight for _, weight in weights)
        members = {m.name: {**vars(m.result), "share": weight / total} for m, weight in weights}
        return [
            {
                "iteration": self.iteration,
                "env_steps": counts.num_env_steps,
                "episodes": counts.num_episodes,
                "learner": members,
            }
        ]

    def sync(self, source: str, snapshots: Mapping[int, str], live: LiveCheckpoint | None) -> None:
        """Renews the members that come from another server; may be called from any thread.

        Args:
            source: the server's id.
            snapshots: the folder of each of its snapshots, by env steps.
            live: its newest weights, which stand in for snapshots until there are some; None: they
                are unchanged.
        """
        with self._adding:
            members = self._pool.renewed(source, snapshots, live)
            self.feed.on_serving_thread(lambda: self._pool.put(members, source, live))
