"""The contestants with their setups, the updaters, and the results of a round. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.environments import OWN
from benchmarks.peers.work import Setup

ONE_SERVER = tuple(Setup(1, n) for n in (1, 4, 16))
TWO_SERVERS = tuple(Setup(2, n) for n in (1, 4, 16))
THREE_SERVERS = (Setup(3, 1), Setup(3, 16))
_CONTESTANTS = "benchmarks.peers.contestants"


@dataclass(frozen=True)
class Contestant:
    """A program that plays, and perhaps learns, until it is ended.

    Attributes:
        title: its name, also in tables and files.
        environment: the environment whose interpreter runs it.
        program: module and first arguments; the folder and the setup follow.
        beside: title of our contestant that it is compared with.
        setups: the setups that it plays.
        is_learning: whether it learns; measuring then begins after every server's first update.
    """

    title: str
    environment: str
    program: tuple[str, ...]
    beside: str
    setups: tuple[Setup, ...]
    is_learning: bool = True

    def command(self, python: str, folder: str, setup: Setup, seed: int) -> list[str]:
        """Returns the command that plays a setup."""
        return [
            python,
            "-m",
            *self.program,
            f"--folder={folder}",
            f"--servers={setup.num_servers}",
            f"--simulations={setup.num_simulations}",
            f"--seed={seed}",
        ]


OURS = "muxrl, remote"
OURS_LOCAL = "muxrl, local"
OURS_ACTING = "muxrl, acting only"
_OLD_SETUPS = (Setup(1, 1), *TWO_SERVERS, Setup(3, 1))

CONTESTANTS = (
    Contestant(
        OURS,
        OWN,
        (f"{_CONTESTANTS}.ours", "remote", "train"),
        OURS,
        (*ONE_SERVER, *TWO_SERVERS, *THREE_SERVERS),
    ),
    Contestant(
        "RLlib 2.6.3, remote",
        "old_rllib",
        (f"{_CONTESTANTS}.old_rllib", "play", "remote"),
        OURS,
        _OLD_SETUPS,
    ),
    Contestant(
        OURS_LOCAL,
        OWN,
        (f"{_CONTESTANTS}.ours", "local", "train"),
        OURS_LOCAL,
        (*ONE_SERVER, *TWO_SERVERS, *THREE_SERVERS),
    ),
    Contestant(
        "RLlib 2.6.3, local",
        "old_rllib",
        (f"{_CONTESTANTS}.old_rllib", "play", "local"),
        OURS_LOCAL,
        _OLD_SETUPS,
    ),
    Contestant("RLlib 2.60, in process", OWN, (f"{_CONTESTANTS}.rllib",), OURS, ONE_SERVER),
    Contestant(
        "Sample Factory 2.1.1",
        "sample_factory",
        (f"{_CONTESTANTS}.sample_factory",),
        OURS,
        THREE_SERVERS,
    ),
    Contestant(
        OURS_ACTING,
        OWN,
        (f"{_CONTESTANTS}.ours", "remote", "eval"),
        OURS_ACTING,
        THREE_SERVERS,
        is_learning=False,
    ),
    Contestant(
        "TorchRL 0.14.1, acting only",
        "torchrl_server",
        (f"{_CONTESTANTS}.torchrl_server",),
        OURS_ACTING,
        THREE_SERVERS,
        is_learning=False,
    ),
)


@dataclass(frozen=True)
class Updater:
    """A program that makes updates on a batch and prints their seconds as JSON.

    Attributes:
        title: its name.
        environment: the environment whose interpreter runs it.
        program: module and arguments.
    """

    title: str
    environment: str
    program: tuple[str, ...]


OUR_UPDATE = "muxrl"
UPDATERS = (
    Updater(OUR_UPDATE, OWN, (f"{_CONTESTANTS}.update_ours",)),
    Updater("RLlib 2.60", OWN, (f"{_CONTESTANTS}.update_rllib",)),
    Updater("RLlib 2.6.3", "old_rllib", (f"{_CONTESTANTS}.update_old_rllib",)),
    Updater("BenchMARL 1.5.2", "benchmarl", (f"{_CONTESTANTS}.update_benchmarl",)),
)


@dataclass(frozen=True)
class Played:
    """One round of one contestant in one setup.

    Attributes:
        contestant: title of the contestant.
        setup: the setup that was played.
        round: number of the round, from 0.
        env_steps_per_s: of all simulations together, in the measured time.
        wait_ms: p50, p99 and the longest time from the end of a simulation's step to the beginning
            of its next.
        played: env steps from the start to the end of the measured time.
        trained: by server: env steps on which it had trained by then; empty if none learns.
        load: load average of the last minute when the round began.
    """

    contestant: str
    setup: Setup
    round: int
    env_steps_per_s: float
    wait_ms: tuple[float, float, float]
    played: int
    trained: dict[str, int]
    load: float


@dataclass(frozen=True)
class Updated:
    """One round of one updater: the median milliseconds of an update for 1,000 agent steps."""

    updater: str
    round: int
    ms_per_1000: float
    load: float


@dataclass(frozen=True)
class Failure:
    """A contestant or updater that failed in a round; the others went on."""

    who: str
    round: int
    why: str
