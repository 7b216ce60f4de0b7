from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unisono.report.axes import Quantity, duration, make_axis, short

SIZES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def value_of(label: str, quantity: Quantity, title: str) -> float:
    """Reads a label as a person would."""
    number, _, letter = label.replace("\N{MINUS SIGN}", "-").partition(" ")
    scale = 1.0
    if quantity is Quantity.TIME:
        scale = {"s": 1.0, "min": 60.0, "h": 3600.0}[title.partition("(")[2].rstrip(")")]
    elif letter:
        scale = 0.01 if letter == "%" else SIZES[letter]
    return float(number) * scale


@example([5e-324], Quantity.NUMBER, 15.0)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.sampled_from([Quantity.NUMBER, Quantity.COUNT]),
    st.floats(1e-3, 1e3),
)
def test_values_fit_and_labels_tell_the_truth(
    values: list[float], quantity: Quantity, scale: float
) -> None:
    spread = max(values) - min(values)
    if 0 < spread < 1e-3 * max(abs(value) for value in values):
        return  # a curve as flat as that has no use for three digits
    axis = make_axis("y", [value * scale for value in values], quantity)
    assert all(-1e-6 <= axis.place(value * scale) <= 1 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks) <= 9
    places = [place for place, _ in axis.ticks]
    assert places == sorted(set(places))
    assert axis.low == pytest.approx(places[0])
    assert axis.high == pytest.approx(places[-1])
    if quantity is Quantity.NUMBER:
        step = places[1] - places[0]
        for place, label in axis.ticks:
            assert value_of(label, quantity, axis.title) == pytest.approx(place, abs=step * 1e-3)


@pytest.mark.parametrize(
    ("high", "unit", "last"), [(150, "(s)", 140), (300, "(min)", 300), (20 * 3600, "(h)", 72000)]
)
def test_time_has_a_unit_that_fits(high: float, unit: str, last: float) -> None:
    axis = make_axis("time", [high], Quantity.TIME, zero=True, snug=True, most=8)
    assert axis.title == f"time {unit}"
    assert (axis.low, axis.high) == (0, high)
    assert axis.ticks[-1][0] == pytest.approx(last)
    assert value_of(axis.ticks[-1][1], Quantity.TIME, axis.title) == pytest.approx(last)


def test_shares_are_percent_and_end_at_all() -> None:
    axis = make_axis("right", [0.42, 0.97], Quantity.SHARE)
    assert axis.high == 1.0
    assert [label for _, label in axis.ticks][:2] == ["40 %", "50 %"]
    close = make_axis("right", [0.501, 0.504], Quantity.SHARE)
    assert close.ticks[0][1] == "50.10 %"


def test_one_value_and_none_still_make_an_axis() -> None:
    assert make_axis("y", [3.0], Quantity.NUMBER).place(3.0) == pytest.approx(0.5, abs=0.1)
    assert make_axis("y", [0.0], Quantity.COUNT, zero=True).ticks
    assert make_axis("y", [], Quantity.COUNT).ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (999, "999"),
        (999.9, "1 k"),
        (12345, "12.3 k"),
        (2.22e6, "2.22 M"),
        (-1500, "\N{MINUS SIGN}1.5 k"),
    ],
)
def test_short_counts(value: float, text: str) -> None:
    assert short(value) == text


def test_durations() -> None:
    assert [duration(s) for s in (3.14, 100, 3725)] == ["3.1 s", "1 min 40 s", "1 h 2 min"]
