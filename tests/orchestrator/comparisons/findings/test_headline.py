"""A comparison's headline: differences whose interval leaves out 0, and learners that learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.orchestrator.comparisons.compared_runs import made_up_run

from muxrl.orchestrator.comparisons.compare import compare_runs
from muxrl.orchestrator.comparisons.findings.findings import headline
from muxrl.orchestrator.comparisons.findings.frames import Frames, framed
from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay, HeadToHead
from muxrl.orchestrator.comparisons.findings.learners import BELOW, LEARNED
from muxrl.orchestrator.measure.statistics import UNKNOWN, Estimate
from muxrl.orchestrator.reports.table import Row


def told(
    scores: Mapping[str, float] | None = None,
    differences: Mapping[str, Estimate | None] | None = None,
    learners: Sequence[Row] = (),
    played: HeadToHead | None = None,
) -> list[str]:
    """Returns the headline's sentences on the role predators.

    Args:
        scores: by label.
        differences: by two labels, such as "ppo_qmix".
        learners: rows of that table.
        played: the head to head.
    """
    rows = [
        {"role": "predators", "label": label, "iqm": Estimate(x, x, x), "among": ("ppo prey",)}
        for label, x in (scores or {}).items()
    ]
    pairings = []
    for names, difference in (differences or {}).items():
        first, second = names.split("_")
        back = difference and Estimate(-difference.mean, -difference.high, -difference.low)
        pairings += [
            {"role": "predators", "first": first, "second": second, "difference": difference},
            {"role": "predators", "first": second, "second": first, "difference": back},
        ]
    frames: Frames = {
        "roles": framed("roles", rows),
        "pairings": framed("pairings", pairings),
        "learners": framed("learners", learners),
    }
    return headline(frames, played)


def learner(
    label: str, verdict: str, advantage: Estimate, num_runs: int = 2, role: str = "predators"
) -> Row:
    about = {"role": role, "label": label, "others": "ppo prey", "num_runs": num_runs}
    return {**about, "advantage": advantage, "verdict": verdict}


BETTER, WORSE = Estimate(0.5, 0.1, 0.9), Estimate(-0.4, -3.0, 2.2)


def test_a_difference_is_claimed_where_its_interval_leaves_out_0() -> None:
    differences = {
        "qmix_ppo": Estimate(-0.42, -0.61, -0.23),
        "qmix_a2c": Estimate(-0.1, -0.5, 0.3),
        "ppo_a2c": Estimate(0.3, math.nan, math.nan),
    }
    assert told({"qmix": 1.0, "ppo": 1.4, "a2c": 1.1}, differences) == [
        "As predators, among the same others: ppo is better than qmix by 0.42 [0.23, 0.61] over "
        "seeds; ppo and a2c differ by 0.30 [–] over seeds, with no interval; a2c and qmix cannot "
        "be told apart (+0.10 [−0.30, 0.50] over seeds)."
    ]


def test_with_many_labels_each_is_compared_with_the_best() -> None:
    labels = {"e": 1.0, "d": 2.0, "c": 3.0, "b": 4.0, "a": 5.0}
    differences = {
        f"{first}_{second}": Estimate(labels[first] - labels[second], 0.5, 9.0)
        for first in labels
        for second in labels
        if labels[first] > labels[second]
    }
    (sentence,) = told(labels, differences)
    assert sentence.count(" by ") == 4
    assert sentence.count("a is better than ") == 4


def test_two_labels_without_a_common_seed_are_not_compared() -> None:
    (sentence,) = told({"qmix": 1.0, "ppo": 2.0}, {"qmix_ppo": None})
    assert sentence.endswith("ppo and qmix have no seed in common.")


@pytest.mark.parametrize(
    ("learners", "sentences"),
    [
        (
            [learner("qmix", "", Estimate(1.0, -2.0, 4.0)), learner("ppo", "", WORSE)],
            [
                "With 2 seeds, no learner is shown to have learned: of 2 learners (a role in an "
                "assignment), none has an advantage over random agents in the same place whose "
                "interval is above 0.",
            ],
        ),
        (
            [learner("qmix", LEARNED, BETTER), learner("ppo", BELOW, Estimate(-0.4, -0.6, -0.2))],
            [
                "With 2 seeds, 1 of 2 learners (a role in an assignment) is shown to have learned, "
                "compared with random agents in the same place: qmix as predators beside ppo "
                "prey (+0.50 [0.10, 0.90] over seeds).",
                "1 of 2 ends below random agents in the same place: ppo as predators beside ppo "
                "prey (−0.40 [−0.60, −0.20] over seeds).",
            ],
        ),
        (
            [
                learner("qmix", LEARNED, BETTER),
                learner("ppo", LEARNED, BETTER),
                learner("x", "", UNKNOWN, 0, "prey"),
            ],
            [
                "With 2 seeds, all 2 learners (a role in an assignment) are shown to have learned, "
                "compared with random agents in the same place.",
                "Whether prey learned is not known: random agents in the same place were not "
                "measured.",
            ],
        ),
        (
            [learner("qmix", "", Estimate(1.0, math.nan, math.nan), 1)],
            [
                "With 1 seed, qmix as predators beside ppo prey (+1.00 [–] over seeds) is not "
                "shown to have learned, compared with random agents in the same place."
            ],
        ),
    ],
)
def test_the_headline_says_which_learners_have_learned(
    learners: list[Row], sentences: list[str]
) -> None:
    assert told(learners=learners) == sentences


@pytest.mark.parametrize(
    ("low", "sentence"),
    [
        (0.1, "qmix has the highest merit, +0.20 [0.10, 0.50] over pairs of seeds."),
        (
            -0.1,
            "no player's merit is shown to be above 0; "
            "the highest is qmix's, +0.20 [−0.10, 0.50] over pairs of seeds.",
        ),
        (
            math.nan,
            "no player's merit is shown to be above 0; "
            "the highest is qmix's, +0.20 [–] over pairs of seeds.",
        ),
    ],
)
def test_the_highest_merit_of_a_head_to_head_is_told(low: float, sentence: str) -> None:
    ends = (low, math.nan if math.isnan(low) else 0.5)
    merits = {"qmix": Estimate(0.2, *ends), "ppo": UNKNOWN, "random": Estimate(-0.2, -1, 0.6)}
    table = CrossPlay("predators", {}, merits)
    played = HeadToHead((table,), (), (), (), 1, 0, (), should_explore=False)
    assert told(played=played) == [f"Head to head as predators, {sentence}"]


def test_runs_below_random_are_found_and_marked(tmp_path: Path) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", s, -1.0 - 0.01 * s, prey_gain=2.0 + 0.01 * s)
        for s in (1, 2, 3)
    ]
    found = compare_runs(paths, num_episodes=2)
    frame = found.frame("learners")
    assert (frame.num_below[0], frame.num_runs[0]) == (3, 3)
    assert frame.advantage[0] == pytest.approx(-1.02)
    assert list(frame["verdict"]) == ["below random", "learned"]
    page = found.write(tmp_path / "out").read_text()
    assert page.index("1 of 2 ends below random") < page.index("<h2")
    assert "−1.02 [−1.05, −0.99]\N{THIN SPACE}▼" in page


@pytest.mark.parametrize(
    ("untrained", "verdict"),
    [(None, "learned"), (0.5, "learned"), (2.0, "not shown: untrained")],
)
def test_better_than_random_is_not_shown_where_untrained_policies_are_as_good(
    tmp_path: Path, untrained: float | None, verdict: str
) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", s, 2.0 + 0.01 * s, untrained=untrained)
        for s in (1, 2, 3)
    ]
    found = compare_runs(paths, num_episodes=2)
    frame = found.frame("learners")
    assert frame.advantage_low[0] > 0
    assert frame["verdict"][0] == verdict
    if untrained is None:
        assert math.isnan(frame["over_untrained"][0])
    else:
        assert frame["over_untrained"][0] == pytest.approx(2.02 - untrained)
    is_shown = any("is shown to have learned" in sentence for sentence in found.headline)
    assert is_shown is (verdict == "learned")
