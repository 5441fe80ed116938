import math

import pytest

from muxrl.orchestrator.measure.number_text import interval, number
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.reports.table import Column, grid, markdown, stacked


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (7, "7.00"),
        (-126.64, "−126.6"),
        (12_345.6, "12,346"),
        (0.005, "0.01"),
        (0.001, "0.001"),
        (-0.00123456, "−0.00123"),
        (1.5e-7, "1.5e−07"),
        (0.0, "0.00"),
        (-1e-16, "0.00"),  # the rounding error of a sum
    ],
)
def test_numbers_have_the_digits_a_reader_can_use(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_difference_shows_its_sign() -> None:
    assert interval(Estimate(3.1, -2.0, 4.2), "seeds", "+") == "+3.10 [−2.00, 4.20] over seeds"
    assert interval(Estimate(-3.1, math.nan, math.nan), "seeds", "+") == "−3.10 [–] over seeds"


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        ((0.001, 0.0006, 0.0014), "+0.0010 [0.0006, 0.0014]"),
        ((0.001, 0.001, 0.001), "+0.001 [0.001, 0.001]"),
        ((2.5, 0.001, 5.0), "+2.50 [0.001, 5.00]"),
        ((0.001, -3.0, 3.1), "+0.00 [−3.00, 3.10]"),
        ((0.88, 0.87, 0.89), "+0.88 [0.87, 0.89]"),
        ((0.88, 0.878, 0.882), "+0.880 [0.878, 0.882]"),
        ((5.0, 5.0, 5.0 + 1e-15), "+5.00 [5.00, 5.00]"),
        ((2e-9, 1e-9, 3e-9), "+2e−09 [1e−09, 3e−09]"),
        ((0.0, 0.0, 0.0), "0.00 [0.00, 0.00]"),
        ((1_234.5, 1_234.4, 1_234.6), "+1,234.5 [1,234.4, 1,234.6]"),
    ],
)
def test_an_interval_has_the_digits_that_show_its_width_and_on_which_side_of_0_it_is(
    estimate: tuple[float, float, float], text: str
) -> None:
    assert interval(Estimate(*estimate), "seeds", "+") == f"{text} over seeds"


def test_a_long_text_has_lines_on_the_page() -> None:
    labels = [{"label": "ppo"}, {"label": "ppo [" + "lr=0.0003, " * 7 + "]"}]
    cells = [row.cells[0] for row in grid(labels, "label").rows]
    assert [cell.css for cell in cells] == ["text", "wrap"]


def test_a_stacked_cell_has_the_first_of_many_lines_and_a_brief_one_no_interval() -> None:
    columns = {"agents": Column(shown=tuple, css="wrap", gap=", ")}
    rows = [{"agents": "abcdefg", "return": Estimate(2.0, 1.0, 3.0)}]
    whole = grid(rows, "agents return", columns, "seeds")
    assert markdown(whole).splitlines()[0] == "| agents | return [95 %, seeds] |"
    assert markdown(whole).endswith("| a, b, c, d, e, f, g | 2.00 [1.00, 3.00] |")
    shown = stacked(whole, ("agents return absent",), brief="return")
    assert [heading.text for heading in shown.headings] == ["agents return"]
    ((cell,),) = (row.cells for row in shown.rows)
    assert cell.lines == ("a", "b", "c", "d", "and 3 more")
    assert [below.lines for below in cell.below] == [("2.00",)]
