"""Joint records become strips of each server's states."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muxrl.orchestrator.records.rows import JointRow
from muxrl.orchestrator.watch.activity import Activities


def record(time_s: float, env_steps: int, **servers: dict[str, Any]) -> JointRow:
    return msgspec.convert({"time_s": time_s, "env_steps": env_steps, "servers": servers}, JointRow)


def own(time_s: float, learning_s: float, held_s: float, num_refused: int = 0) -> dict[str, Any]:
    seconds = {"time_s": time_s, "learning_s": learning_s, "held_s": held_s}
    return {**seconds, "num_refused": num_refused}


def watched(*records: JointRow) -> Activities:
    activities = Activities(["qmix", "ppo"])
    for one in records:
        activities.add(one)
    return activities


def test_seconds_are_divided_among_the_states() -> None:
    activities = watched(
        record(1.0, 0, qmix=own(11, 5, 1), ppo=own(9, 3, 3)),
        record(3.0, 50, qmix=own(13, 6, 1.5), ppo=own(11, 3, 3)),
    )
    ((begin, end, *seconds),) = activities.spans("qmix")
    assert (begin, end) == (1.0, 3.0)
    # In 2 s it learned for 1 s, and held the simulations for 0.5 s of it.
    assert seconds == pytest.approx([1.0, 0.5, 0.5, 0.0, 0.0, 0.0])
    ((*_, acting, learning, holding, waiting, silent, lost),) = activities.spans("ppo")
    # QMIX held the simulations for a quarter of the time.
    assert (learning, holding, silent, lost) == (0, 0, 0, 0)
    assert (acting, waiting) == pytest.approx((1.5, 0.5))


def test_without_steps_servers_that_do_not_hold_wait() -> None:
    activities = watched(
        record(1.0, 70, qmix=own(1, 0, 0), ppo=own(1, 0, 0)),
        record(2.0, 70, qmix=own(2, 1, 1), ppo=own(2, 0, 0)),
    )
    assert activities.spans("qmix")[0][2:] == pytest.approx((0, 0, 1, 0, 0, 0))
    assert activities.spans("ppo")[0][2:] == pytest.approx((0, 0, 0, 1, 0, 0))


def test_a_lost_server_is_lost_until_its_next_process_reports() -> None:
    activities = watched(
        record(1.0, 10, qmix=own(50, 20, 10, num_refused=3), ppo=own(50, 0, 0)),
        record(2.0, 10, qmix={"is_lost": True}, ppo=own(51, 0, 0)),
        record(3.0, 20, qmix=own(4, 1, 0, num_refused=2), ppo=own(52, 0, 0)),
    )
    lost, again = activities.spans("qmix")
    assert lost[2:] == pytest.approx((0, 0, 0, 0, 0, 1))
    assert again[2:] == pytest.approx((0.75, 0.25, 0, 0, 0, 0)), "since its process began"
    assert activities.spans("ppo")[0][2:] == pytest.approx((0, 0, 0, 1, 0, 0))
    assert activities.num_refused("qmix") == 5


def test_a_server_is_shown_as_lost_for_as_long_as_it_was() -> None:
    activities = watched(
        record(1.0, 10, qmix=own(50, 20, 10) | {"lost_s": 2.0}),
        record(2.0, 10, qmix={"is_lost": True, "lost_s": 2.25}),
        record(3.0, 10, qmix={"is_lost": True, "lost_s": 3.25}),
    )
    before, rest = activities.spans("qmix")
    assert before[2:] == pytest.approx((0, 0, 0, 0, 0.75, 0.25)), "it had not reported since"
    assert rest[2:] == pytest.approx((0, 0, 0, 0, 0, 1))


def test_a_resumed_run_counts_losses_from_0() -> None:
    activities = Activities(["qmix"])
    activities.add(record(1.0, 10, qmix=own(50, 20, 10) | {"lost_s": 2.0}))
    again = record(3.0, 20, qmix=own(1, 0, 0) | {"lost_s": 0.5})
    activities.add(msgspec.structs.replace(again, resumed_from=10))
    assert activities.spans("qmix")[0][2:] == pytest.approx((1.5, 0, 0, 0, 0, 0.5))


def test_a_loss_between_two_rows_is_shown() -> None:
    activities = watched(
        record(1.0, 10, qmix=own(50, 20, 10) | {"lost_s": 2.0}),
        record(3.0, 20, qmix=own(1, 0.5, 0) | {"lost_s": 2.5}),
        record(5.0, 20, qmix=own(1, 0.5, 0) | {"lost_s": 3.0}),
        record(5.5, 30, qmix=own(1, 0.5, 0) | {"lost_s": 3.0}),
    )
    again, silent, since = activities.spans("qmix")
    assert again[2:] == pytest.approx((0.75, 0.75, 0, 0, 0, 0.5))
    assert silent[2:] == pytest.approx((0, 0, 0, 0, 1.5, 0.5)), "it has not reported since"
    assert since[2:] == pytest.approx((0, 0, 0, 0, 0.5, 0))


def test_a_server_without_a_new_report_is_silent_and_others_wait() -> None:
    activities = watched(
        record(1.0, 10, qmix=own(5, 2, 0), ppo=own(5, 0, 0)),
        record(3.0, 10, qmix=own(5, 2, 0), ppo=own(7, 0, 0)),
        record(4.0, 20, qmix=own(8, 2, 0), ppo=own(8, 0, 0)),
    )
    silent, again = activities.spans("qmix")
    assert silent == (1.0, 3.0, 0, 0, 0, 0, 2.0, 0)
    assert again[2:] == pytest.approx((1, 0, 0, 0, 0, 0))
    assert activities.spans("ppo")[0][2:] == pytest.approx((0, 0, 0, 2, 0, 0))


def test_a_server_that_never_reported_has_no_state() -> None:
    """Runs of earlier versions did not record states."""
    activities = watched(
        record(1.0, 10, ppo={}), record(2.0, 20, ppo={}), JointRow(time_s=3.0, env_steps=30)
    )
    assert not activities.spans("qmix")
    assert not activities.spans("ppo")
