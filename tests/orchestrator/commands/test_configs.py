"""`muxrl configs` lists the packaged configs."""

from __future__ import annotations

from tests.orchestrator.commanded import Muxrl

from muxrl.orchestrator.commands.configs import describe
from muxrl.orchestrator.config import packaged_configs


def test_every_packaged_config_is_listed_with_a_sentence(muxrl: Muxrl) -> None:
    rows = [line.strip().partition("  ") for line in muxrl("configs").out.splitlines()]
    named = {name: sentence.strip() for name, _, sentence in rows}
    for kind in ("conf", "sweeps", "leagues"):
        for name, path in packaged_configs(kind).items():
            assert name in named
            assert 20 < len(describe(path)) < 200, f"{path} begins with another comment"
            assert describe(path)[-1] in ".?"
    assert named["two_step"] == (
        "The two-step game of the QMIX paper (Rashid et al. 2018, section 5), under uniform "
        "exploration."
    )
