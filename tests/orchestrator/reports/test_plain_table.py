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
        (-0.001, "0.00"),
    ],
)
def test_numbers_have_the_digits_a_reader_can_use(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_difference_shows_its_sign() -> None:
    assert interval(Estimate(3.1, -2.0, 4.2), "seeds", "+") == "+3.10 [−2.00, 4.20] over seeds"
    assert interval(Estimate(-3.1, math.nan, math.nan), "seeds", "+") == "−3.10 [–] over seeds"


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
