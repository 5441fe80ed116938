"""The soak: one long run, a random fault at each interval, and what has to hold at its end.

Three servers, four simulation processes and the evaluation, as `muxrl launch` starts them. Every
`--fault-every-s` seconds one is killed, stopped for ever, or stopped for a moment.

    python -m benchmarks.soak --minutes 60

Prints one table. Exit code 1: something does not hold.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.soak.run import Outcome, SoakFailed, soak


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of training")
    parser.add_argument("--fault-every-s", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        outcome = soak(args.minutes, args.fault_every_s, args.seed)
    except SoakFailed as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    show(outcome)
    return 1 if outcome.problems else 0


def show(outcome: Outcome) -> None:
    """Prints what was seen and what does not hold."""
    print(f"{'process':28}{'lives':>6}{'longest s':>11}{'RSS MiB':>16}{'fds':>12}{'threads':>12}")
    for name, lives in outcome.lives.items():
        life = max(lives, key=lambda life: life.lasted_s)
        shown = life.settled or life.samples[-1:]
        first, last = shown[0], shown[-1]
        rss = f"{first.rss_mib:.0f} -> {last.rss_mib:.0f}"
        descriptors = f"{first.descriptors} -> {last.descriptors}"
        threads = f"{first.threads} -> {last.threads}"
        print(
            f"{name[:27]:28}{len(lives):>6}{life.lasted_s:>11.0f}{rss:>16}{descriptors:>12}"
            f"{threads:>12}"
        )
    print()
    for check in outcome.checks:
        print(f"{check.what:12}{'NO' if check.problems else 'ok':4}{check.seen}")
        for problem in check.problems:
            print(f"{'':16}{problem}")


if __name__ == "__main__":
    sys.exit(main())
