"""Identical, near-tie or different."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compare.audit import allowed_gap, first_difference, is_comparable, judge
from app.compare.record import Audit
from app.core.settings import Mode, SamplingSettings
from tests.unit.comparisons import K4, LOOKUP, PLAIN, column

ids = st.lists(st.integers(0, 3), max_size=6)


@given(ids, ids)
def test_the_first_difference_is_where_the_outputs_part(plain: list[int], ours: list[int]) -> None:
    found = first_difference(plain, ours)
    if found is None:
        assert plain == ours
    else:
        place, a, b = found
        assert plain[:place] == ours[:place]
        assert a == (plain[place] if place < len(plain) else None)
        assert b == (ours[place] if place < len(ours) else None)
        assert a != b


@pytest.mark.parametrize(
    ("quantisation", "gap"),
    [
        ("F16", 0.05),
        ("all F32", 0.05),
        ("BF16", 0.05),
        ("Q4_K_M", 0.5),
        ("Q8_0", 0.5),
        ("unknown", 0.5),
        ("", 0.5),
    ],
)
def test_how_far_apart_a_near_tie_may_be(quantisation: str, gap: float) -> None:
    assert allowed_gap(quantisation) == gap


@pytest.mark.parametrize(
    ("top", "logits", "quantisation", "expected"),
    [
        ((7, 8), (5.0, 4.9), "Q4_K_M", Audit("near_tie", 3, (7, 8), pytest.approx(0.1))),
        ((8, 7), (5.0, 4.5), "Q4_K_M", Audit("near_tie", 3, (7, 8), pytest.approx(0.5))),
        ((7, 8), (5.0, 4.4), "Q4_K_M", Audit("different", 3, (7, 8), pytest.approx(0.6))),
        ((7, 8), (5.0, 4.9), "F16", Audit("different", 3, (7, 8), pytest.approx(0.1))),
        ((7, 8), (5.0, 4.96), "F16", Audit("near_tie", 3, (7, 8), pytest.approx(0.04))),
        ((7, 9), (5.0, 5.0), "Q4_K_M", Audit("different", 3, (7, 8))),  # not the two favourites
    ],
)
def test_the_verdict_on_a_difference(
    top: tuple[int, int], logits: tuple[float, float], quantisation: str, expected: Audit
) -> None:
    assert judge((3, 7, 8), top, logits, quantisation) == expected


def test_an_output_that_ends_early_is_different() -> None:
    assert judge((3, 7, None), (7, 8), (5.0, 5.0), "Q4_K_M") == Audit("different", 3, (7, None))


def test_only_greedy_columns_that_ask_for_the_same_are_compared() -> None:
    warm = SamplingSettings(temperature=0.5)
    assert is_comparable(K4, PLAIN)
    assert is_comparable(LOOKUP, PLAIN)
    assert is_comparable(column(sampling=SamplingSettings(top_k=3, seed=4), load={"threads": 3}), PLAIN)
    for other in (
        column(sampling=warm),
        column(sampling=SamplingSettings(repeat_penalty=1.1)),
        column(max_tokens=9),
        column(load={"n_ctx": 99}),
        column(load={"cache_type_k": "q8_0"}),
    ):
        assert not is_comparable(other, PLAIN)
        assert not is_comparable(PLAIN, other)
    assert not is_comparable(column("s", Mode.LOOKUP, sampling=warm), column(sampling=warm))
