"""Prompt lookup against a search that reads the whole text every time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.lookup import NgramIndex


def naive_continuation(ids: Sequence[int], n_min: int, n_max: int, length: int) -> tuple[int, ...]:
    """The longest suffix first; of its earlier occurrences the last; copied through its own end."""
    for size in range(min(n_max, len(ids) - 1), n_min - 1, -1):
        suffix = list(ids[-size:])
        for start in range(len(ids) - size - 1, -1, -1):
            if list(ids[start : start + size]) == suffix:
                extended = list(ids)
                for place in range(start + size, start + size + length):
                    extended.append(extended[place])
                return tuple(extended[len(ids) :])
    return ()


def continuation(ids: Sequence[int], n_min: int, n_max: int, length: int) -> tuple[int, ...]:
    index = NgramIndex(n_min, n_max)
    index.extend(ids)
    return index.continuation(ids, length)


@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    n_min=st.integers(1, 4),
    more=st.integers(0, 4),
    length=st.integers(0, 12),
)
def test_against_the_naive_search(ids: list[int], n_min: int, more: int, length: int) -> None:
    n_max = n_min + more
    assert continuation(ids, n_min, n_max, length) == naive_continuation(ids, n_min, n_max, length)


@given(
    chunks=st.lists(st.lists(st.integers(0, 2), max_size=7), min_size=1, max_size=12),
    n_min=st.integers(1, 3),
)
def test_an_index_grown_bit_by_bit_is_the_one_built_at_once(chunks: list[list[int]], n_min: int) -> None:
    index, ids = NgramIndex(n_min, 4), [0]
    for chunk in chunks:
        ids += chunk
        index.extend(ids)
        assert index.continuation(ids, 6) == naive_continuation(ids, n_min, 4, 6)


def test_the_longest_suffix_wins_over_a_more_recent_shorter_one() -> None:
    #      [1 2 3] -> 7    [9 2 3] -> 8, more recent
    ids = [1, 2, 3, 7, 0, 9, 2, 3, 8, 0, 1, 2, 3]
    assert continuation(ids, 2, 3, 2) == (7, 0)
    assert continuation(ids, 2, 2, 2) == (8, 0)


def test_the_most_recent_of_equal_length_wins() -> None:
    assert continuation([1, 2, 5, 0, 1, 2, 6, 0, 1, 2], 2, 2, 1) == (6,)


def test_a_repeating_text_is_drafted_at_full_length() -> None:
    assert continuation([4, 5, 4, 5, 4], 1, 3, 7) == (5, 4, 5, 4, 5, 4, 5)
    assert continuation([8, 8], 1, 1, 5) == (8, 8, 8, 8, 8)


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 3, 4]])
def test_nothing_seen_before_proposes_nothing(ids: list[int]) -> None:
    assert continuation(ids, 1, 4, 5) == ()


def test_a_suffix_shorter_than_the_minimum_does_not_count() -> None:
    assert continuation([1, 5, 1], 2, 4, 3) == ()


def test_extending_touches_each_token_once() -> None:
    class Counting(list):  # type: ignore[type-arg]
        read = 0

        def __getitem__(self, place):  # type: ignore[no-untyped-def]
            Counting.read += 1
            return super().__getitem__(place)

    index, ids = NgramIndex(2, 4), Counting(n % 97 for n in range(2000))
    index.extend(ids)
    Counting.read = 0
    for n in range(50):
        ids.append(n)
        index.extend(ids)
        index.continuation(ids, 4)
    # A round reads three n-grams to index, at most three to look up, and four ids to propose.
    assert Counting.read <= 50 * 10
